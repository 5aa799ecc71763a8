python3 MaxText/train.py MaxText/configs/v5e/llama2_70b.yml \
    run_name=x dataset_type=synthetic ici_fsdp_parallelism=8 enable_checkpointing=false enable_tensorboard=false jax_cache_dir= \
    steps=10
