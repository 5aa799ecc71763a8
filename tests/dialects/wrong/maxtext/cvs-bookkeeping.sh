python3 -m maxtext.trainers.pre_train.train \
    run_name=x steps=10 dataset_type=synthetic ici_fsdp_parallelism=8 enable_checkpointing=false enable_tensorboard=false jax_cache_dir= \
    batch_size=16 precision=bf16 fsdp=1 tensor_parallelism=8 sequence_length=4096 model_size=7 tokenizer_model=x recompute=1 micro_batch_size=2 pipeline_parallelism=1
