python3 -m maxtext.trainers.pre_train.train \
    run_name=x steps=10 dataset_type=synthetic enable_checkpointing=false enable_tensorboard=false jax_cache_dir= \
    ici_pipeline_parallelism=3 ici_fsdp_parallelism=1 num_layers_per_pipeline_stage=2
