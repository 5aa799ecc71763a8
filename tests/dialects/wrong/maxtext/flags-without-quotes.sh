export XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_graph_level=0
python3 MaxText/train.py MaxText/configs/base.yml run_name=pilot model_name=llama2-7b dataset_type=synthetic enable_checkpointing=false steps=30 \
    per_device_batch_size=4
