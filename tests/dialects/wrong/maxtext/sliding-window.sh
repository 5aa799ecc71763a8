python3 -m maxtext.trainers.pre_train.train \
    run_name=x steps=10 dataset_type=synthetic ici_fsdp_parallelism=8 enable_checkpointing=false enable_tensorboard=false jax_cache_dir= \
    attention_type=local_sliding
