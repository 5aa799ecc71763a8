python3 -m maxtext.trainers.pre_train.train \
    run_name=x steps=10 dataset_type=synthetic ici_fsdp_parallelism=8 enable_checkpointing=false enable_tensorboard=false jax_cache_dir= \
    z_loss_multiplier=1e-4 attn_logits_soft_cap=50 trainable_parameters_mask=[a] skip_step_on_spikes=true
