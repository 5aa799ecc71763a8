python3 MaxText/train.py MaxText/configs/base.yml run_name=pilot model_name=llama2-7b \
    dataset_type=synthetic enable_checkpointing=false steps=abc \ 
    per_device_batch_size=4
