"""The training of `bench/cpu_train.py` and `bench/gpu_train.py` in PyTorch, as a user of transformers writes it.

Prints a JSON object a step. On a GPU attention is PyTorch's (`sdpa`, which is FlashAttention there), and a batch that
does not fit is halved until it does; its size is printed with each step.
"""

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
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    batch = given.shape["batch"]
    while True:
        try:
            return train(given, batch)
        except torch.OutOfMemoryError:
            if batch == 1:
                raise
        batch //= 2
        torch.cuda.empty_cache()


def train(given: argparse.Namespace, batch: int) -> None:
    shape, on_gpu = given.shape, given.device == "cuda"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape["vocab_size"], hidden_size=shape["hidden_dim"], num_hidden_layers=shape["num_layers"],
        num_attention_heads=shape["num_heads"], num_key_value_heads=shape["num_kv_heads"],
        intermediate_size=shape["ffn_dim"], max_position_embeddings=shape["sequence_length"],
        use_cache=False, tie_word_embeddings=shape.get("tied_embeddings", False),
        **({"attn_implementation": "sdpa"} if on_gpu else {}),
    )  # fmt: skip
    with torch.device(given.device):
        model = LlamaForCausalLM(config).train()
    # Hugging Face's Trainer: `adamw_torch_fused`, clipping at 1.0, autocast where bf16 is asked for.
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    forward = torch.compile(model) if given.compile else model
    numbers = np.random.default_rng(0).integers(0, shape["vocab_size"], (batch, shape["sequence_length"]))
    tokens = torch.tensor(numbers, device=given.device)
    for _ in range(given.steps):
        start = time.perf_counter()
        lower = given.dtype == "bfloat16"
        with torch.autocast(given.device, dtype=torch.bfloat16) if lower else contextlib.nullcontext():
            loss = forward(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        row = {"loss": loss.item(), "seconds": time.perf_counter() - start, "batch": batch}
        if on_gpu:
            torch.cuda.synchronize()
            row |= {"seconds": time.perf_counter() - start, "peak_bytes": torch.cuda.max_memory_allocated()}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
