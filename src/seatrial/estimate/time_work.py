"""The work of a device in a step, counted: matrix products, attention, bytes moved, optimizer, collectives.

Counts are those of the pipeline stage that does most. A pass is one micro-batch's way forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from seatrial.estimate.layer_memory import BYTES, KEPT, PARTS, layer_activations
from seatrial.estimate.memory import DATA, FSDP, OWN, groups, shards
from seatrial.spec import RunSpec

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "forward", "input_gradient", "weight_gradient"
PRODUCTS = ("query", "key", "value", "out", "gate", "up", "down")

# Bytes for each parameter of this device in an update: parameter, gradient and Adam's two moments, read and written;
# our own trainer reads gradients once more for their norm, and once more to scale them.
UPDATE_BYTES = 28.0
NORM_BYTES = 8.0
# For each parameter and pass: cast to the compute format, forward and backward, and its gradient added up in float32.
CAST_BYTES, ADD_BYTES = 6.0, 12.0
# Times a layer's hidden states are read or written, forward and backward: two norms, two sums with the residual.
HIDDEN_FORWARD, HIDDEN_BACKWARD = 10.0, 12.0
HEADS_MOVED = 2.0  # queries and keys are turned, each way
FFN_FORWARD, FFN_BACKWARD = 3.0, 5.0  # gate, up, their product; with the gradients of all three
LOGITS_BYTES = 22.0  # for each logit of a chunk: float32 written, read for the maximum, sum and gradient
QUANTIZE_BYTES = 4.0  # for each number of a product's operands: read in two bytes, written in one, and transposed
KERNELS_FORWARD, KERNELS_BACKWARD = 22, 36  # of a layer
# On a processor our own trainer's program is another one. Attention goes by blocks of queries, each over all keys up to
# its end (`train.blockwise_attention`, whose sizes these are). What a loop over layers keeps is filled with zeros,
# copied, written and read; gradients of layers are filled with zeros, written and read again for a stack of them; the
# output head's gradient is added up over chunks of tokens. None of that is fused with what comes before or after.
LEAST_BLOCK, MOST_BLOCKS, CHUNK_OF_QUERIES = 128, 8, 2048
TIMES_KEPT = 5.0
STACK_BYTES, CHUNK_BYTES, TOKENS_OF_LOGITS = 16.0, 12.0, 512
TABLES_ON_HOST = 2.0
SCALES_OF_LAYER = 4  # all-reduces of a layer's largest values, where fp8 scales follow those of all devices


@dataclass(frozen=True, kw_only=True)
class Product:
    """Products [m, k] × [k, n] in a format, so many of them in a step; `is_head`: of the output head, which is wide."""

    kind: str
    number_format: str
    m: float
    k: float
    n: float
    times: float
    is_head: bool = False

    @property
    def flops(self) -> float:
        return 2 * self.m * self.k * self.n * self.times


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A kind of collective over an axis: bytes that a ring of `size` passes through each device, so many times; on a
    processor `on_host` times as many. `over`: the axes of its group, where these are not that one alone."""

    axis: str
    kind: str
    total_bytes: float  # of the whole tensor, of which a device sends (size - 1) / size; of an all-reduce twice
    times: float
    on_host: float = 1.0
    over: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """Bytes that are read and written in a step: of the layers, and of the tables and the output head."""

    layers: float
    head: float


@dataclass(frozen=True, kw_only=True)
class Work:
    """A device's work in a step. `waits` is the share that a pipeline adds to its layers' time, and to the head's
    where that is in its `turns`.

    On a processor attention by blocks computes `blocks` times the causal half, and the bytes of `host` are moved, too.
    """

    products: tuple[Product, ...]
    attention_format: str
    head_dim: int
    attention_forward_flops: float  # of the causal half, recomputation included
    attention_backward_flops: float
    blocks: float
    moved: Bytes
    host: Bytes
    optimizer_bytes: float
    collectives: tuple[Collective, ...]
    kernels: float
    waits: float
    head_in_turns: bool


def is_scaled_over_devices(spec: RunSpec) -> bool:
    """True if fp8 scales follow the largest values of all devices, which takes an all-reduce for each."""
    return bool(spec.precision.quantization) and spec.mesh["data"] * spec.mesh["fsdp"] > 1


def number_format(spec: RunSpec) -> str:
    """That of the layers' matrix products."""
    quantization = spec.precision.quantization or ""
    compute = spec.precision.compute_dtype
    return "fp8" if "fp8" in quantization else "bfloat16" if compute == "float16" else compute


def recomputed(spec: RunSpec) -> set[str]:
    """The tensors of a layer that its backward pass makes again; "rest": norms, activations, positions."""
    remat = spec.execution.remat
    everything = {"query", "key", "value", "context", "out", "gate", "up", "rest"}
    if remat == "none":
        return set()
    if remat == "selective":
        parts = spec.execution.remat_modules
        if "layer" in parts:
            return everything
        made = {"core_attn": {"context"}, "mlp": {"gate", "up", "rest"}}
        return {name for part in parts for name in made.get(part, {"rest"} if part in PARTS else set())}
    kept = (*spec.execution.remat_kept, *spec.execution.remat_offloaded) if remat == "custom" else KEPT.get(remat, ())
    if remat in ("minimal_offloaded", "qkv_proj_offloaded"):
        kept = KEPT["minimal" if remat == "minimal_offloaded" else "save_qkv_proj"]
    return everything - {*kept}


def blocks_over_pairs(length: int, window: int | None = None) -> float:
    """Pairs of queries and keys that attention by blocks computes, over those that a query reads, in the mean."""
    window = min(window or length, length)
    chunk = min(length, CHUNK_OF_QUERIES)
    block = min(chunk, max(LEAST_BLOCK, chunk / MOST_BLOCKS))
    pairs = window - window**2 / (2 * length)
    return min(pairs + block / 2, length) / pairs


def work_of(spec: RunSpec, engine: str) -> Work:
    """The work of one device in a step; the mesh must fit the devices, and recomputation be decided."""
    return _Count(spec, engine).work()


class _Count:
    def __init__(self, spec: RunSpec, engine: str) -> None:
        self.spec, self.own = spec, engine == OWN
        self.model, self.mesh, self.passes = spec.model, spec.mesh, spec.accumulation_steps
        self.groups, self.shards = groups(spec, engine), shards(spec, engine)
        self.tensor, self.stages = self.mesh["tensor"], self.mesh["pipeline"]
        # Our own pipeline takes all micro-batches through embedding and head at once, others each by itself.
        self.at_once = self.own and self.stages > 1
        self.head_passes = 1 if self.at_once else self.passes
        micro, batch = spec.sequences_per_example * spec.batch.micro_batch_size, spec.batch
        self.tokens = micro * batch.sequence_length / self.mesh["context"]  # of a pass, inside a block
        self.layers = self.model.num_layers / self.stages
        self.compute = BYTES[spec.precision.compute_dtype]
        self.format = number_format(spec)
        self.recomputed = recomputed(spec)
        self.between = self.tensor if spec.parallelism.sequence_parallel else 1
        copied = self.model.num_kv_heads < self.tensor
        self.query = self.model.num_heads * self.model.head_dim / self.tensor
        self.key = self.model.head_dim * (1 if copied else self.model.num_kv_heads / self.tensor)
        self.ffn = self.model.ffn_dim / self.tensor
        multiple = self.model.vocab_multiple * self.tensor
        self.words = -(-self.model.vocab_size // multiple) * multiple / self.tensor

    def work(self) -> Work:
        forward, backward = self._attention()
        return Work(
            products=tuple(self._products()),
            attention_format="float32" if self.spec.precision.compute_dtype == "float32" else "bfloat16",
            head_dim=self.model.head_dim,
            attention_forward_flops=forward,
            attention_backward_flops=backward,
            blocks=blocks_over_pairs(self.spec.batch.sequence_length, self.model.sliding_window),
            moved=self._moved(),
            host=self._host(),
            optimizer_bytes=self._optimizer(),
            collectives=tuple(each for each in self._collectives() if each.times and each.total_bytes),
            kernels=self.passes * self.layers * (KERNELS_FORWARD * (1 + bool(self.recomputed)) + KERNELS_BACKWARD),
            waits=self._waits(),
            head_in_turns=not self.at_once,
        )

    def _maps(self) -> dict[str, tuple[float, float]]:
        """Inputs and outputs of a layer's linear maps, as one device has them."""
        width = self.model.hidden_dim
        maps = {
            "query": (width, self.query), "key": (width, self.key), "value": (width, self.key),
            "out": (self.query, width), "gate": (width, self.ffn), "up": (width, self.ffn), "down": (self.ffn, width),
        }  # fmt: skip
        return maps if self.model.activation == "swiglu" else {k: v for k, v in maps.items() if k != "gate"}

    def _products(self) -> Iterator[Product]:
        times, tokens = self.passes * self.layers, self.tokens
        for name, (inputs, outputs) in self._maps().items():
            again = 2 if name in self.recomputed else 1
            yield Product(kind=FORWARD, number_format=self.format, m=tokens, k=inputs, n=outputs, times=times * again)
            yield Product(kind=INPUT_GRADIENT, number_format=self.format, m=tokens, k=outputs, n=inputs, times=times)
            yield Product(kind=WEIGHT_GRADIENT, number_format=self.format, m=inputs, k=tokens, n=outputs, times=times)
        head = self.format if self.format != "fp8" else "bfloat16"  # the output head is not quantized
        tokens, width = self._head_tokens(), self.model.hidden_dim
        for kind, m, k, n in (
            (FORWARD, tokens, width, self.words), (INPUT_GRADIENT, tokens, self.words, width),
            (WEIGHT_GRADIENT, width, tokens, self.words),
        ):  # fmt: skip
            twice = 2 if kind == FORWARD and self.spec.objective.kind in ("dpo", "orpo") else 1
            yield Product(kind=kind, number_format=head, m=m, k=k, n=n, times=self.head_passes * twice, is_head=True)

    def _head_tokens(self) -> float:
        """Those whose loss this device computes at a time: our own stages share them, else they are the last one's."""
        return self.tokens * self.passes / self.head_passes / (self.stages if self.own else 1)

    def _attention(self) -> tuple[float, float]:
        length = self.spec.batch.sequence_length
        window = min(self.model.sliding_window or length, length)
        pairs = window - window**2 / (2 * length)  # keys that a query reads, in the mean
        forward = 4 * self.tokens * self.query * pairs * self.passes * self.layers
        return forward * (2 if "context" in self.recomputed else 1), 2.5 * forward

    def _host(self) -> Bytes:
        """Bytes that our own trainer moves on a processor beside those of `_moved`: its layers compute in float32."""
        if not self.own:
            return Bytes(layers=0.0, head=0.0)
        wider = self._numbers() * (BYTES["float32"] - self.compute) * self.tokens * self.layers
        kept = TIMES_KEPT * layer_activations(self.spec, own=True) * self.tokens * self.layers
        stacks = STACK_BYTES * self.layer_parameters * self.layers
        head = self.words * self.model.hidden_dim * CHUNK_BYTES * max(1.0, self._head_tokens() / TOKENS_OF_LOGITS)
        return Bytes(
            layers=self.passes * (wider + kept + stacks), head=self.head_passes * (head + STACK_BYTES * self.tables)
        )

    def _numbers(self) -> float:
        """Numbers per token of a layer that are read and written outside of products and attention."""
        width, moved = self.model.hidden_dim / self.between, HEADS_MOVED * (self.query + self.key)
        inputs = 1 if self.model.activation == "swiglu" else 2 / 3
        forward = HIDDEN_FORWARD * width + moved + FFN_FORWARD * self.ffn * inputs
        backward = HIDDEN_BACKWARD * width + moved + FFN_BACKWARD * self.ffn * inputs
        again = forward if "rest" in self.recomputed else 0.0
        return forward + backward + again

    def _moved(self) -> Bytes:
        """Bytes read and written outside of products and attention."""
        numbers = self._numbers() * self.compute
        if self.format == "fp8":
            numbers += sum(QUANTIZE_BYTES * (i + o) for i, o in self._maps().values())
        tokens = numbers * self.tokens * self.layers
        logits = self._head_tokens() * (self.words * LOGITS_BYTES + 6 * self.model.hidden_dim * self.compute)
        of_layers = self.layer_parameters * self.layers / self.shards[FSDP] * self._of_weights(self.passes)
        of_tables = self.tables / self.shards[FSDP] * self._of_weights(self.head_passes)
        return Bytes(layers=self.passes * (tokens + of_layers), head=self.head_passes * (logits + of_tables))

    def _of_weights(self, passes: int) -> float:
        """Bytes for each parameter that so many passes go through, in one of them."""
        return self._casts() + (ADD_BYTES if passes > 1 or not self.own else 0.0)  # XLA leaves our own single sum out

    def _casts(self) -> float:
        """Bytes for each parameter and pass of our own trainer, which casts weights where it uses them."""
        if not self.own or self.spec.precision.params_dtype != "float32":
            return 0.0
        backward = (
            2 if self.recomputed else int(self.spec.execution.scan_layers)
        )  # else those of the forward pass serve
        return CAST_BYTES * (1 + backward)

    @property
    def layer_parameters(self) -> float:
        return sum(inputs * outputs for inputs, outputs in self._maps().values())

    @property
    def parameters(self) -> float:
        """Of this device's stage, where fsdp does not split them."""
        return self.layer_parameters * self.layers + self.tables

    @property
    def tables(self) -> float:
        """Parameters of embedding and output head: our own stages have both, else the first and the last one each."""
        both = self.words * self.model.hidden_dim * (1 if self.model.tied_embeddings else 2)
        return both / (1 if self.own or self.stages == 1 else 2)

    def _optimizer(self) -> float:
        held = self.parameters / self.shards[FSDP]
        moments = BYTES[self.spec.precision.optimizer_dtype] / 4
        update = (UPDATE_BYTES - 16 + 16 * moments) / (self.shards[DATA] if self.spec.parallelism.zero1 else 1)
        return held * (update + NORM_BYTES)

    def _waits(self) -> float:
        if self.stages == 1:
            return 0.0
        virtual = self.spec.parallelism.virtual_pipeline
        if self.own:  # idle turns of the ring are computed, too
            turns = virtual * max(self.passes, self.stages) + self.stages - 1
            return turns / (virtual * self.passes) - 1
        return (self.stages - 1) / (self.passes * virtual)

    def _collectives(self) -> Iterator[Collective]:
        spec, mesh, passes = self.spec, self.mesh, self.passes
        layers = passes * self.layers
        yield from self._of_fsdp()
        yield from self._of_data()
        if self.tensor > 1:
            precision = spec.precision
            of_number = BYTES[precision.tensor_reduce_dtype or precision.compute_dtype]
            hidden = self.tokens * self.model.hidden_dim * of_number
            again = 1 if "out" in self.recomputed else 0
            yield Collective(axis="tensor", kind="all-reduce", total_bytes=hidden, times=(4 + again) * layers)
        if mesh["context"] > 1:
            keys = self.tokens * mesh["context"] * 2 * self.key * self.compute
            again = 1 if "context" in self.recomputed else 0
            yield Collective(axis="context", kind="all-gather", total_bytes=keys, times=(1 + again) * layers)
            yield Collective(axis="context", kind="reduce-scatter", total_bytes=2 * keys, times=layers)
        if self.stages > 1:
            hidden = self.tokens * self.model.hidden_dim / self.between * self.compute
            turns = 2 * passes * spec.parallelism.virtual_pipeline
            yield Collective(axis="pipeline", kind="permute", total_bytes=hidden, times=turns)
        if is_scaled_over_devices(spec):  # our own trainer looks for the largest values of all weights at once
            times = float(mesh["fsdp"] > 1) if self.own else SCALES_OF_LAYER * layers
            yield Collective(axis="scales", kind="all-reduce", total_bytes=4.0, times=times)

    def _of_fsdp(self) -> Iterator[Collective]:
        if self.shards[FSDP] == 1:
            return
        reduce, layers, over = BYTES[self.spec.precision.reduce_dtype], self.passes * self.layers, self.groups[FSDP]
        gathers = 2 + (1 if self.own and self.recomputed & {*PRODUCTS} else 0)
        # XLA:CPU gathers in float32, whatever is asked for; tables take twice as long there as layers do.
        wide, twice = (BYTES["float32"] / self.compute, TABLES_ON_HOST) if self.own else (1.0, 1.0)
        for held, gathered, scattered, longer in (
            (self.layer_parameters, gathers * layers, layers, 1.0),
            (self.tables, self.head_passes, self.head_passes, twice),
        ):
            yield Collective(
                axis=FSDP, kind="all-gather", total_bytes=held * self.compute, times=gathered, on_host=wide * longer,
                over=over,
            )  # fmt: skip
            yield Collective(
                axis=FSDP, kind="reduce-scatter", total_bytes=held * reduce, times=scattered, on_host=longer, over=over
            )

    def _of_data(self) -> Iterator[Collective]:
        if self.shards[DATA] == 1:
            return
        precision, over = self.spec.precision, self.groups[DATA]
        held = self.parameters / self.shards[FSDP]
        sums = held * BYTES[precision.reduce_dtype]
        if self.spec.parallelism.zero1:
            back = held * (BYTES[precision.params_dtype] if self.own else self.compute)
            yield Collective(axis=DATA, kind="reduce-scatter", total_bytes=sums, times=1, over=over)
            yield Collective(axis=DATA, kind="all-gather", total_bytes=back, times=1, over=over)
        else:
            yield Collective(axis=DATA, kind="all-reduce", total_bytes=sums, times=1, over=over)
