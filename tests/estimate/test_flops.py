"""Parameters and FLOPs against published figures and an independent count."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from seatrial.estimate import flops, hardware
from seatrial.metrics import days_to_train
from seatrial.spec import ModelSpec
from seatrial.spec.presets import MODELS

# Parameters as published with the weights (safetensors index), and GFLOPs per token at the sequence length that the
# model is pretrained with: causal (MaxText and Megatron-LM today), non-causal (NVIDIA's recipes), PaLM.
PUBLISHED = {
    "llama2-7b": (6_738_415_616, 4096, 42.86, 46.08, 46.87),
    "llama2-13b": (13_015_864_320, 4096, None, None, None),
    "llama2-70b": (68_976_648_192, 4096, 428.39, 444.49, 446.07),
    "llama3.1-8b": (8_030_261_248, 8192, 51.47, 57.91, 61.07),
    "llama3.1-70b": (70_553_706_496, 8192, 449.22, 481.43, 487.75),
    "llama3.1-405b": (405_853_388_800, 8192, 2523.96, 2625.42, 2638.06),
    "llama3.2-1b": (1_235_814_400, 8192, None, None, None),
    "llama3.2-3b": (3_212_749_824, 8192, None, None, None),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameters_and_flops(name: str) -> None:
    parameters, sequence, causal, non_causal, palm = PUBLISHED[name]
    model = MODELS[name]
    assert flops.num_parameters(model) == parameters
    for convention, gflops in (("causal", causal), ("non_causal", non_causal), ("palm", palm)):
        if gflops is not None:
            assert flops.flops_per_token(model, sequence, convention) / 1e9 == pytest.approx(gflops, abs=0.0051)


def test_parameters_of_models_that_are_no_llamas() -> None:
    """GPT-2 and Pythia 70M, as `transformers` counts their weights."""
    gpt2 = ModelSpec(
        name="gpt2", vocab_size=50_257, hidden_dim=768, num_layers=12, num_heads=12, num_kv_heads=12, head_dim=64,
        ffn_dim=3072, norm="layernorm", activation="gelu", positions="learned", max_positions=1024, biases=True,
        tied_embeddings=True,
    )  # fmt: skip
    pythia = ModelSpec(
        name="pythia", vocab_size=50_304, hidden_dim=512, num_layers=6, num_heads=8, num_kv_heads=8, head_dim=64,
        ffn_dim=2048, norm="layernorm", activation="gelu", biases=True, rotary_fraction=0.25,
    )  # fmt: skip
    assert flops.num_parameters(gpt2) == 124_439_808
    assert flops.num_parameters(pythia) == 70_426_624
    assert flops.matrix_parameters(pythia) == 6 * 3_145_728 + 50_304 * 512


def random_model(rng: random.Random) -> ModelSpec:
    kv_heads = rng.choice([1, 2, 4])
    heads, head_dim = kv_heads * rng.choice([1, 2, 8]), rng.choice([16, 64, 128])
    return ModelSpec(
        name="random", vocab_size=rng.randrange(100, 50_000), hidden_dim=heads * head_dim,
        num_layers=rng.randrange(1, 40), num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim,
        ffn_dim=rng.randrange(64, 20_000), tied_embeddings=rng.random() < 0.5,
    )  # fmt: skip


def seed_recipe(model: ModelSpec, sequence: int) -> float:
    """The "model flops" of NVIDIA's Llama-2-70B recipe, term by term as it prints them (hidden = heads × head_dim)."""
    hidden = model.hidden_dim
    attention = 12 * model.num_layers * hidden**2 * (1 + model.num_kv_heads / model.num_heads + sequence / hidden)
    mlp = 18 * model.num_layers * model.ffn_dim * hidden
    embedding = 6 * model.vocab_size * hidden
    return sequence * (attention + mlp + embedding)


def maxtext(model: ModelSpec, sequence: int) -> float:
    """FLOPs per sequence as MaxText counts them since July 2025, product by product, for one sequence."""
    T, D, F, H, K, E = sequence, model.hidden_dim, model.ffn_dim, model.num_heads, model.num_kv_heads, model.head_dim
    ffn = 2 * T * F * D * 2 + 2 * T * F * D
    qkv = 2 * T * D * (H + 2 * K) * E
    projection = 2 * T * D * H * E
    attention = 4 * T * sequence * H * E / 2
    return 3 * (model.num_layers * (ffn + qkv + projection + attention) + 2 * T * D * model.vocab_size)


def test_random_models_agree_with_the_published_formulas() -> None:
    rng = random.Random(2)
    for _ in range(300):
        model, sequence = random_model(rng), rng.choice([128, 2048, 8192])
        assert flops.flops_per_sequence(model, sequence, "non_causal") == pytest.approx(seed_recipe(model, sequence))
        assert flops.flops_per_sequence(model, sequence, "causal") == pytest.approx(maxtext(model, sequence))


def test_attention_in_a_window_counts_the_pairs_in_it() -> None:
    """Pairs are counted one by one; of those on the two edges of the band, the conventions take one half."""
    rng = random.Random(3)
    for _ in range(100):
        model, sequence = random_model(rng), rng.randrange(1, 300)
        window = rng.randrange(1, 400)
        pairs = sum(0 <= query - key < window for query in range(sequence) for key in range(sequence))
        pairs -= min(window, sequence) / 2
        per_pair = 3 * 2 * 2 * model.num_layers * model.num_heads * model.head_dim
        weights = 6 * sequence * flops.matrix_parameters(model)
        narrow = replace(model, sliding_window=window)
        assert flops.flops_per_sequence(narrow, sequence, "causal") == pytest.approx(weights + per_pair * pairs)
        assert flops.flops_per_sequence(narrow, sequence, "non_causal") == pytest.approx(weights + 2 * per_pair * pairs)


def test_an_unknown_convention_is_refused() -> None:
    with pytest.raises(KeyError):
        flops.flops_per_token(MODELS["llama2-7b"], 4096, "hardware")


# --- NVIDIA's recipe for Llama-2-70B on H100: GPUs, step time, tokens/s, MFU in %, days to 1T tokens ---

SEQUENCE, SEQUENCES_PER_GPU = 4096, 2
BF16 = (
    (64, 6.999, "74908.99", "52.59", "154.51"),
    (128, 7.072, "148271.49", "52.04", "78.06"),
    (256, 7.153, "293184.96", "51.45", "39.48"),
    (512, 7.091, "591496.83", "51.90", "19.57"),
    (1024, 7.084, "1184162.62", "51.95", "9.77"),
    (2048, 7.066, "2374358.34", "52.09", "4.87"),
)
FP8 = (
    (64, 4.324, "121250.69", None, "95.46"),
    (128, 4.556, "230152.77", None, "50.29"),
    (256, 4.959, "422898.16", None, "27.37"),
    (512, 5.043, "831708.11", None, "13.92"),
    (1024, 5.062, "1657172.66", None, "6.98"),
    (2048, 4.930, "3403086.41", None, "3.40"),
)
# The recipe rounds the model FLOPs before it divides; these are the same utilisations without that rounding.
EXACT_BF16 = ("52.60", "52.06", "51.47", "51.92", "51.97", "52.11")
ROUNDED_FLOPS = 1.82e15


def recipe_mfu(gpus: int, step_seconds: float, per_sequence: float, peak: float) -> float:
    return flops.model_flops_utilization(
        flops_per_step=SEQUENCES_PER_GPU * gpus * per_sequence,
        step_seconds=step_seconds,
        num_devices=gpus,
        peak_flops_per_second=peak,
    )


def test_the_recipes_model_flops() -> None:
    exact = flops.flops_per_sequence(MODELS["llama2-70b"], SEQUENCE, "non_causal")
    assert exact == 4096 * (104_689_827_840 + 338_228_674_560 + 1_572_864_000)
    assert f"{exact:.2E}" == "1.82E+15"


def test_the_recipes_worked_example() -> None:
    exact = flops.flops_per_sequence(MODELS["llama2-70b"], SEQUENCE, "non_causal")
    peak, _ = hardware.DEVICES["h100-sxm"].peak("bfloat16") or (0.0, "")
    throughput = SEQUENCE * 128 / 7.908
    assert f"{throughput:.2f}" == "66298.43"
    days = days_to_train(tokens=1e12, tokens_per_second=throughput)
    assert f"{days:.4f}" == "174.5754"
    assert math.floor(100 * days) / 100 == 174.57  # cut off here; rounded in the recipe's tables
    assert f"{recipe_mfu(64, 7.908, ROUNDED_FLOPS, peak):.2%}" == "46.54%"
    assert f"{recipe_mfu(64, 7.908, exact, peak):.2%}" == "46.56%"


@pytest.mark.parametrize(("table", "exact_mfu"), [(BF16, EXACT_BF16), (FP8, None)], ids=["bf16", "fp8"])
def test_the_recipes_tables(
    table: tuple[tuple[int, float, str, str | None, str], ...], exact_mfu: tuple[str, ...] | None
) -> None:
    exact = flops.flops_per_sequence(MODELS["llama2-70b"], SEQUENCE, "non_causal")
    peak, _ = hardware.DEVICES["h100-sxm"].peak("bfloat16") or (0.0, "")
    for row, (gpus, seconds, printed_tokens, printed_mfu, printed_days) in enumerate(table):
        throughput = SEQUENCE * SEQUENCES_PER_GPU * gpus / seconds
        assert f"{throughput:.2f}" == printed_tokens
        assert f"{days_to_train(tokens=1e12, tokens_per_second=throughput):.2f}" == printed_days
        if printed_mfu and exact_mfu:
            assert f"{100 * recipe_mfu(gpus, seconds, ROUNDED_FLOPS, peak):.2f}" == printed_mfu
            assert f"{100 * recipe_mfu(gpus, seconds, exact, peak):.2f}" == exact_mfu[row]
