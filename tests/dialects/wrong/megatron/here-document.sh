torchrun pretrain_gpt.py <<EOF
--num-layers 4
EOF
