python3 -m maxtext.inference.decode base.yml \
    run_name=x steps=10 dataset_type=synthetic ici_fsdp_parallelism=8 enable_checkpointing=false enable_tensorboard=false jax_cache_dir= \
    prompt=hello
