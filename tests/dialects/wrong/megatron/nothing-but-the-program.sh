torchrun pretrain_gpt.py
