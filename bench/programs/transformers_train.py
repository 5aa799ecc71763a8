"""The training of `bench/cpu_train.py` in PyTorch, as a user of transformers writes it; prints a JSON object a step."""

from __future__ import annotations

import argparse
import contextlib
import json
import time

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", type=json.loads)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), required=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, required=True)
    given = parser.parse_args()
    shape = given.shape
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape["vocab_size"], hidden_size=shape["hidden_dim"], num_hidden_layers=shape["num_layers"],
        num_attention_heads=shape["num_heads"], num_key_value_heads=shape["num_kv_heads"],
        intermediate_size=shape["ffn_dim"], max_position_embeddings=shape["sequence_length"],
        use_cache=False, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).train()
    # Hugging Face's Trainer: `adamw_torch_fused`, clipping at 1.0, autocast where bf16 is asked for.
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    forward = torch.compile(model) if given.compile else model
    numbers = np.random.default_rng(0).integers(0, shape["vocab_size"], (shape["batch"], shape["sequence_length"]))
    tokens = torch.tensor(numbers)
    for _ in range(given.steps):
        start = time.perf_counter()
        lower = given.dtype == "bfloat16"
        with torch.autocast("cpu", dtype=torch.bfloat16) if lower else contextlib.nullcontext():
            loss = forward(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(json.dumps({"loss": loss.item(), "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
