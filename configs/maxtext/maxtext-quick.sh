#!/usr/bin/env bash
# MaxText's smallest command: its own model of a billion parameters, random data, a few steps.
# How many devices there are is MaxText's to find out; here it is said behind the file:
#   seatrial check maxtext-quick.sh topology.devices_per_node=8 topology.device=h100
python3 MaxText/train.py MaxText/configs/base.yml \
    run_name=quick \
    hardware=gpu \
    steps=20 \
    per_device_batch_size=4 \
    dataset_type=synthetic \
    enable_checkpointing=false
