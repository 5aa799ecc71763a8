"""The memory that a run needs of each device: arithmetic, before anything runs.

Memory, per device, of the pipeline stage that holds most (bytes):

    parameters   what the optimizer updates, split over tensor and fsdp
    optimizer    its moments (Adam: two), split likewise, and over data with ZeRO-1
    gradients    accumulated over the micro-batches, split as the parameters
    activations  what the forward pass keeps of every layer for the backward pass, by the row of recomputation; a
                 pipeline keeps them for as many micro-batches as it has stages (Korthikanti et al., Reducing Activation
                 Recomputation in Large Transformer Models, arXiv 2205.05198, section 4); attention keeps no scores
                 unless its row says so
    working      of two things whichever is larger: one layer in the backward pass, with its weights and their gradient
                 brought together; or the output head, with the logits of one chunk of tokens and their gradient

Of Seatrial's own trainer more is known, from what XLA reserves for its compiled steps (`tools/compiled_memory.py`,
`tests/helpers/compiled.py`) and from the buffers that it assigns (`--xla_dump_to`). It is what is held at the worst of
these moments:

    backward     in the loop over the layers: all that is kept, all gradients, one layer at work (`LAYER_AT_WORK`), a
                 second copy of the largest gradient, and of the tables those gradients that are not yet split
    head         all that is kept; the output head's weights, their gradient, the logits of a chunk and their gradient
    forward      of a pipeline: all that is kept, and a stage's weights as they are computed with
    update       all gradients, and the largest twice more while moments are changed into another format

Layers that are not scanned free what they keep as their gradients come, and hold other things (`_Own._unrolled`). A
pipeline keeps the activations of all micro-batches of a step, and what enters and leaves the stages with them.

What a runtime takes beside that (CUDA context, communication buffers, fragmentation) is not in it: some gigabytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from seatrial.estimate import hardware
from seatrial.spec import INPUT, RunSpec
from seatrial.xla_flags import OWN_SHARE, SHARE_VARIABLES

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# Values that an optimizer keeps for each parameter.
MOMENTS = {
    "adamw": 2, "adamw_fp32": 2, "adam": 2, "sgd": 1, "adadelta": 2, "adamax": 2, "adagrad": 1, "rmsprop": 1,
    "rprop": 2, "novograd": 1, "adafactor": 0,
}  # fmt: skip

# What each row of recomputation keeps beside the layer's input; "none" keeps everything. What the last matrix product
# gives need not be kept: the sum with it is the next layer's input.
KEPT: dict[str, tuple[str, ...]] = {
    "full": (),
    "minimal": ("query", "key", "value", "out", "gate", "up"),
    "minimal_with_context": ("query", "key", "value", "context", "out", "gate", "up"),
    "minimal_flash": ("query", "key", "value", "context", "out", "gate", "up"),
    "save_dot_except_mlp": ("query", "key", "value", "out"),
    "save_dot_with_context_except_mlp": ("query", "key", "value", "context", "out"),
    "save_dot_except_mlpwi": ("query", "key", "value", "out"),
    "save_qkv_proj": ("query", "key", "value"),
    "save_out_proj": ("out",),
    "minimal_offloaded": (),  # the rest waits in the host's memory
    "qkv_proj_offloaded": (),
}
EVERYTHING = (
    "norm", "query", "key", "value", "context", "out", "middle", "norm", "gate", "up", "product",
)  # fmt: skip
# What the row "selective" does not keep of everything, by the parts of a layer that it recomputes: what a part gives
# to a matrix product is kept for that.
PARTS: dict[str, tuple[str, ...]] = {
    "core_attn": (), "mlp": ("gate", "up", "product"), "layernorm": (), "mlp_act": (), "rope": (), "layer": EVERYTHING,
}  # fmt: skip
# From the row that recomputes least to the one that recomputes most: what "auto" chooses from.
BY_RECOMPUTATION = (
    "none", "minimal_with_context", "minimal", "save_dot_with_context_except_mlp", "save_dot_except_mlp",
    "save_qkv_proj", "save_out_proj", "full",
)  # fmt: skip
DOUBT = 0.1  # by how much the estimate may be too high
ROOM = 0.9  # of the memory is what "auto" fills by the estimate
WORKING = 1.5  # times what one layer keeps, while its backward pass runs
# Of our own trainer, while the backward pass of a layer runs: how many tensors of each size there are at once. Found by
# least squares from the rows "calibration" of `bench/results/compiled_memory.csv` and from `tests/helpers/compiled.py`.
LAYER_AT_WORK = {
    "ffn": 5.9,  # gate, up, their product and the gradients of all three
    "whole": 4.6,  # hidden states with all of the sequence's tokens, as norms give them to products, and gradients
    "between": 2.3,  # hidden states between the blocks, of which sequence parallelism gives each device a part
}
WEIGHTS_AT_WORK = {False: 1.75, True: 6.6}  # bytes for each weight of it; with fsdp, gathered and not yet split
# With fsdp and few tokens: the gradients of two layers in float32, one of which is crossing the network, and a part of
# the gathered weights.
WEIGHTS_ALONE = 9.0
BLOCKS_AT_WORK, CHUNK_OF_QUERIES = 2, 2048  # attention by blocks: scores of a chunk of the sequence, and their gradient
PLANNED = 0.8  # of the device's memory is what XLA plans a step with
COMBINED = 30 * 2**20  # bytes up to which XLA's combiners bring reductions over the network together
# Of what layers that are not scanned recompute, the share that waits until gradients of weights are made of it, in a
# step of one pass and of several; by what crosses the network. From rows "calibration": 2 and 5, 1 and 1, 1 and 1.
WAITING = {"gradients": (0.72, 0.5), "context": (0.72, 0.85), "tokens": (1.0, 0.3)}
LARGEST_AGAIN = 0.8  # of the largest gradient with fsdp: a copy in the order in which it crossed the network
KEEPS_SCORES = ("dot_product",)  # rows of attention that hold a number for each pair of tokens

OWN = "native"  # the engine that is Seatrial's own trainer
# Engines whose processes get the memory of an accelerator from JAX, and the share of it that JAX takes if no variable
# says otherwise. It is a limit, even where it is not taken at the start (XLA_PYTHON_CLIENT_PREALLOCATE=false).
SHARES = {OWN: OWN_SHARE, "maxtext": 0.75}
ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"  # of which the row "platform" knows no share
# The engine of those who have a configuration in this spelling, where nobody has said what is to train.
USUAL_ENGINES = {"native": OWN, "cvs-jax": "maxtext", "cvs-2026": "maxtext", "maxtext": "maxtext"}

CHUNK_TOKENS = 1024  # whose logits are held at once by Seatrial's own trainer; on a CPU it holds fewer


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes per device, by what they hold; `state_bytes` is what no way of computing can do without."""

    parameters_bytes: float
    optimizer_bytes: float
    gradients_bytes: float
    activations_bytes: float
    working_bytes: float
    state_bytes: float

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by what they hold."""
        return {name.removesuffix("_bytes"): value for name, value in vars(self).items() if name != "state_bytes"}

    @property
    def total_bytes(self) -> float:
        return sum(self.parts.values())


def per_device(spec: RunSpec, engine: str, *, chunk_tokens: int | None = CHUNK_TOKENS) -> Memory:
    """The memory that a spec needs of each device when an engine trains it; its mesh must fit its devices.

    `chunk_tokens` are those whose logits are held at once; None: all of a micro-batch.
    """
    spec, own = decided(spec, engine), engine == OWN
    model, mesh, precision = spec.model, spec.mesh, spec.precision
    tensor, fsdp, zero = mesh["tensor"], mesh["fsdp"], mesh["data"] if spec.parallelism.zero1 else 1
    compute, stored = BYTES[precision.compute_dtype], BYTES[precision.params_dtype]
    layer, head = _layer_parameters(spec), model.hidden_dim * _padded_vocabulary(spec) / tensor
    ends = head if model.tied_embeddings or (mesh["pipeline"] > 1 and not own) else 2 * head
    ends += _positions(spec)
    layers = layer * _most_layers(spec)
    held = layers + ends
    moments = MOMENTS[spec.optimizer.algorithm] * BYTES[precision.optimizer_dtype]
    optimizer = held / fsdp / zero * moments
    least = min(stored, compute) if zero > 1 else stored
    gradient = min(compute, BYTES[precision.gradient_dtype])
    tokens = spec.sequences_per_example * spec.batch.micro_batch_size * spec.batch.sequence_length / mesh["context"]
    one_layer = tokens * (_kept(spec, "none", whole_width=True) * compute + _scores(spec))
    logits = min(tokens, chunk_tokens or tokens) * _padded_vocabulary(spec) / tensor
    of_head = logits * (2 * BYTES["float32"] + compute) + head * compute
    gradients = held / fsdp * BYTES[precision.gradient_dtype]
    if own:
        state = held / fsdp * stored + optimizer
        parts = _Own(
            spec=spec, tokens=tokens, layer=layer, layers=layers, head=head, held=held, state=state, of_head=of_head
        )  # fmt: skip
        gradients, activations, working = max(parts.moments(), key=sum)
    else:
        activations = _layers_in_flight(spec, own) * tokens * _activations(spec, own)
        working = max(WORKING * one_layer + layer * 2 * compute, of_head + head * BYTES["float32"])
    return Memory(
        parameters_bytes=held / fsdp * stored,
        optimizer_bytes=optimizer,
        gradients_bytes=gradients,
        activations_bytes=activations,
        working_bytes=working,
        state_bytes=held / fsdp * (least + (gradient + stored - least) / zero) + optimizer,
    )


def is_uncertain(spec: RunSpec) -> bool:
    """True if the estimate of our own trainer can be far off: how long XLA waits is its own choice."""
    return not spec.execution.scan_layers and math.prod(spec.mesh.values()) > spec.mesh["pipeline"]


def usual_engine(spec: RunSpec) -> str:
    """What will train a run of which nobody has said it: by the spelling of its configuration."""
    return USUAL_ENGINES.get(spec.dialect, "megatron")


def share(spec: RunSpec, engine: str) -> tuple[float, str]:
    """The share of a device's memory that a process of an engine gets, and the variable that says so ("": none)."""
    if engine not in SHARES or _exported(spec, ALLOCATOR) == "platform":
        return 1.0, ""
    name = next((name for name in SHARE_VARIABLES if _exported(spec, name)), "")
    return fraction(_exported(spec, name) or None, SHARES[engine]), name


def available_bytes(spec: RunSpec, engine: str) -> float | None:
    """What a process of an engine gets of each device's memory; None where the device is not known."""
    device = hardware.find(spec.topology.device)
    return device.memory_bytes * share(spec, engine)[0] if device else None


def fraction(text: str | None, otherwise: float = 1.0) -> float:
    """A share that is given as text, where it is one."""
    try:
        part = float(text) if text is not None else otherwise
    except ValueError:
        return otherwise
    return part if 0 < part <= 1 else otherwise


def decided(spec: RunSpec, engine: str, memory_bytes: float | None = None) -> RunSpec:
    """The spec with the least recomputation by which it fits its devices, where it leaves that open ("auto").

    `memory_bytes`: of each device; None: what is known of it. What fits in no way, and what fits an unknown device, is
    recomputed in full.
    """
    if spec.execution.remat != "auto":
        return spec
    there = (memory_bytes or available_bytes(spec, engine) or 0.0) * ROOM
    rows = [replace(spec, execution=replace(spec.execution, remat=row)) for row in BY_RECOMPUTATION]
    return next((row for row in rows if per_device(row, engine).total_bytes <= there), rows[-1])


def _padded_vocabulary(spec: RunSpec) -> int:
    multiple = spec.model.vocab_multiple * spec.mesh["tensor"]
    return -(-spec.model.vocab_size // multiple) * multiple


def _exported(spec: RunSpec, name: str) -> str:
    """A variable as the configuration exports it to every process; empty where it does not."""
    inside = spec.container.environment if spec.container else {}
    return inside.get(name, spec.execution.environment.get(name, ""))


def _positions(spec: RunSpec) -> float:
    """Parameters of a table of learned positions."""
    if spec.model.positions != "learned":
        return 0.0
    return (spec.model.max_positions or spec.batch.sequence_length) * spec.model.hidden_dim / spec.mesh["tensor"]


def _layer_parameters(spec: RunSpec) -> float:
    """Parameters of a layer that a device of the tensor axis holds: parts of matrices, norms and copied heads whole."""
    model, tensor = spec.model, spec.mesh["tensor"]
    ffn, norms = model.ffn_dim / tensor, 2 if model.norm == "layernorm" else 1
    query = model.num_heads * model.head_dim / tensor
    key_value = model.num_kv_heads * model.head_dim / (tensor if model.num_kv_heads % tensor == 0 else 1)
    inputs = 2 if model.activation == "swiglu" else 1
    matrices = model.hidden_dim * (2 * query + 2 * key_value + (inputs + 1) * ffn)
    biases = query + 2 * key_value + inputs * ffn + 2 * model.hidden_dim
    return matrices + (biases if model.biases else 0) + 2 * norms * model.hidden_dim


def _activations(spec: RunSpec, own: bool) -> float:
    """Bytes per token of this device that are kept of a layer."""
    remat, compute = spec.execution.remat, BYTES[spec.precision.compute_dtype]
    kept = _kept(spec, remat) * compute
    again = _recomputed(spec)
    if remat not in ("none", "selective") or "layer" in again:
        # cuDNN's backward pass wants more of the forward pass than its result, so that is computed again, and not kept.
        unused = own and _is_cudnn(spec) and "context" in KEPT.get(remat, ())
        return kept - (_sizes(spec)["context"] * compute if unused else 0.0)
    local, whole = _sizes(spec)["norm"], _sizes(spec, whole_width=True)["norm"]
    kept += 2 * (whole - local) * compute  # what norms give to products is kept as it was brought together
    if spec.execution.scan_layers and "layernorm" not in again:
        # The loop keeps what happens inside of norms, too: two results and the input of both, in float32; and
        # attention's result twice, as it leaves cuDNN and as it enters the product.
        kept += local * (6 * 4 - 5 * compute) + 2 * local * compute + _sizes(spec)["context"] * compute
    return kept + (0.0 if "core_attn" in again else _scores(spec)) + _masks(spec)


def _is_cudnn(spec: RunSpec) -> bool:
    """True if our own trainer's attention on NVIDIA's devices is cuDNN's; `train.attention` knows more conditions."""
    is_ring = spec.mesh["context"] > 1 and spec.parallelism.context_strategy == "ring"
    can = spec.precision.compute_dtype == "bfloat16" and not spec.dropout.attention and spec.model.head_dim <= 128
    return can and not is_ring and spec.execution.attention not in (*KEEPS_SCORES, "blocks", "reference")


def _recomputed(spec: RunSpec) -> set[str]:
    return set(spec.execution.remat_modules) if spec.execution.remat == "selective" else set()


def _masks(spec: RunSpec) -> float:
    """Bytes per token of a layer's dropout masks, of a byte each."""
    sizes, dropout = _sizes(spec), spec.dropout
    return (2 * sizes["input"] if dropout.hidden else 0) + (sizes["product"] if dropout.ffn else 0)


def _sizes(spec: RunSpec, *, whole_width: bool = False) -> dict[str, float]:
    """Numbers per token of a layer's tensors; `whole_width`: as gathered inside the layer."""
    model, tensor = spec.model, spec.mesh["tensor"]
    width = model.hidden_dim / (tensor if spec.parallelism.sequence_parallel and not whole_width else 1)
    query, key = model.num_heads * model.head_dim / tensor, max(1, model.num_kv_heads / tensor) * model.head_dim
    ffn = model.ffn_dim / tensor
    return {
        "input": width, "norm": width, "out": width, "middle": width, "query": query, "context": query,
        "key": key, "value": key, "gate": ffn if model.activation == "swiglu" else 0, "up": ffn, "product": ffn,
    }  # fmt: skip


def _kept(spec: RunSpec, remat: str, *, whole_width: bool = False) -> float:
    """Numbers per token that a row of recomputation keeps of a layer."""
    sizes = _sizes(spec, whole_width=whole_width)
    dropped = {name for part in _recomputed(spec) for name in PARTS.get(part, ())} if remat == "selective" else set()
    if remat == "custom":
        return _of_custom(spec, sizes)
    return sizes["input"] + sum(sizes[name] for name in KEPT.get(remat, EVERYTHING) if name not in dropped)


def _of_custom(spec: RunSpec, sizes: Mapping[str, float]) -> float:
    """Numbers per token that the row "custom" keeps on the device; what waits in the host's memory is not there."""
    execution = spec.execution
    kept = {INPUT, *execution.remat_kept} - {*execution.remat_offloaded}
    return sum(sizes.get(name, 0.0) for name in kept)  # the last product's is the next layer's input


def _scores(spec: RunSpec) -> float:
    """Bytes per token of a layer's attention scores and probabilities, where attention holds them."""
    if spec.execution.attention not in KEEPS_SCORES:
        return 0.0
    each = BYTES["float32"] + BYTES[spec.precision.compute_dtype]
    return spec.model.num_heads / spec.mesh["tensor"] * spec.batch.sequence_length * each


def _most_layers(spec: RunSpec) -> float:
    """Layers of the stage that has most of them."""
    stages, own = spec.mesh["pipeline"], spec.parallelism.stage_layers
    if not own or stages == 1:
        return spec.model.num_layers / stages
    return max(sum(own[stage::stages]) for stage in range(stages))  # chunks go to the stages in turn


def _layers_in_flight(spec: RunSpec, own: bool) -> float:
    """Layers of the first stage × micro-batches whose activations are held at once (arXiv 2205.05198, 4.2.3)."""
    stages, virtual, passes = spec.mesh["pipeline"], spec.parallelism.virtual_pipeline, spec.accumulation_steps
    if own and stages > 1:  # what each turn of the ring keeps, idle ones too
        return _most_layers(spec) / virtual * (virtual * max(passes, stages) + stages - 1)
    interleaved = 1 + (stages - 1) / (stages * virtual) if virtual > 1 else 1
    return _most_layers(spec) * min(stages * interleaved, passes)


@dataclass(frozen=True, kw_only=True)
class _Own:
    """Memory of our own trainer beside parameters and moments; sizes in numbers of this device, as in `per_device`."""

    spec: RunSpec
    tokens: float  # of a micro-batch
    layer: float  # parameters of a layer,
    layers: float  # of all layers of a stage,
    head: float  # of the output head,
    held: float  # and of everything, where fsdp does not split them
    state: float  # bytes of parameters and moments
    of_head: float  # bytes, while the output head works

    def moments(self) -> Iterator[tuple[float, float, float]]:
        """Bytes of gradients, activations and working memory at each moment at which they may be most."""
        spec, fsdp = self.spec, self.spec.mesh["fsdp"]
        gradient, summed = self.held / fsdp * BYTES[spec.precision.gradient_dtype], self._summed()
        kept, hidden = self._kept(), self._hidden()
        at_work, table = self._layer_at_work(), self.head * BYTES["float32"]
        working = max(at_work + self._tables(), 0.0)
        if spec.execution.scan_layers or spec.mesh["pipeline"] > 1:
            yield gradient * self._share_before_the_sum() + self._added(), kept, working
        else:
            yield from self._unrolled(gradient, summed, kept, working)
        if (share := self._share_before_the_sum()) < 1:
            yield gradient * (1 + share), 0.0, 0.0
        yield summed, kept, self.of_head + table + hidden
        if gathered := self._gathered():
            yield 0.0, kept, gathered + self._forward_at_work()
        if spec.precision.optimizer_dtype != "float32":
            yield gradient + self._added(), 0.0, 2 * self._largest()

    def _share_before_the_sum(self) -> float:
        """Of all gradients' bytes, those before they are in their final format: a single pass makes them in the weights'."""
        spec = self.spec
        if spec.accumulation_steps > 1 or spec.mesh["pipeline"] > 1:
            return 1.0
        return min(1.0, BYTES[spec.precision.params_dtype] / BYTES[spec.precision.gradient_dtype])

    def _unrolled(
        self, gradient: float, summed: float, kept: float, working: float
    ) -> Iterator[tuple[float, float, float]]:
        """`moments` of layers that are not scanned, whose activations and slices are freed as their gradients come."""
        spec = self.spec
        slices, table = self._slices() + self._zeros(), self.head * BYTES["float32"]
        at_work = working - max(self._tables(), 0.0) + max(self._tables(), table) + slices
        yield summed, kept + self._waiting(summed + kept + at_work), at_work
        yield summed, kept, slices + self.of_head + table + self._hidden()
        yield gradient + self._added(), 0.0, working
        if (
            spec.mesh["data"] * spec.mesh["fsdp"] > 1
        ):  # what crosses the network is stacked before, one matrix at a time
            yield (
                gradient + self._added(),
                0.0,
                self._largest() * (1 if spec.precision.optimizer_dtype == "float32" else 3),
            )

    def _slices(self) -> float:
        """Each layer's weights, which XLA cuts out of the stack for the forward pass and keeps for the backward pass.

        As they are stored where a layer is recomputed, and as they are computed with where it is not.
        """
        spec = self.spec
        each = spec.precision.compute_dtype if spec.execution.remat == "none" else spec.precision.params_dtype
        return self.layers / spec.mesh["fsdp"] * BYTES[each]

    def _zeros(self) -> float:
        """What attention by blocks adds to in each layer, which XLA fills with zeros before the first layer runs."""
        if not self._is_by_blocks():
            return 0.0
        sizes = _sizes(self.spec)
        each = 2 * sizes["query"] + sizes["key"] + sizes["value"]  # the result; gradients of queries, keys and values
        return self.spec.model.num_layers * self.tokens * each * BYTES["float32"]

    def _is_by_blocks(self) -> bool:
        return not _is_cudnn(self.spec) and self.spec.execution.attention not in KEEPS_SCORES

    def _hidden(self) -> float:
        """Hidden states behind the last layer, whole, and their gradient; of a stage, its part of all micro-batches."""
        spec = self.spec
        tokens = self.tokens
        if spec.mesh["pipeline"] > 1:
            tokens *= spec.accumulation_steps / spec.mesh["pipeline"]
        return 2 * tokens * spec.model.hidden_dim * BYTES[spec.precision.compute_dtype]

    def _gathered(self) -> float:
        """A stage's weights as they are computed with, brought together over fsdp: a pipeline's forward pass keeps them.

        They are the same in each tick, so JAX takes their making out of the loop over the ticks. With several chunks
        a stage picks its weights within what is recomputed, and nothing is kept.
        """
        spec = self.spec
        if spec.mesh["pipeline"] == 1 or spec.parallelism.virtual_pipeline > 1:
            return 0.0
        compute = 1 if spec.precision.quantization else BYTES[spec.precision.compute_dtype]
        return self.layers * compute

    def _forward_at_work(self) -> float:
        """One layer in the forward pass: what enters and leaves its feed-forward block, and that inside."""
        sizes = _sizes(self.spec, whole_width=True)
        each = 3 * sizes["norm"] + sizes["gate"] + sizes["up"] + sizes["product"]
        return each * self.tokens * BYTES[self.spec.precision.compute_dtype]

    def _kept(self) -> float:
        """Activations of all that is in flight; of a pipeline the weights, too, where they are not kept in float32."""
        spec = self.spec
        again = spec.mesh["pipeline"] > 1 and spec.precision.params_dtype != "float32"
        return (
            (self.layers / spec.mesh["fsdp"] * BYTES["float32"] if again else 0.0)
            + _layers_in_flight(spec, own=True) * self.tokens * _activations(spec, own=True)
            + _between_stages(spec, self.tokens) * BYTES[spec.precision.compute_dtype]
        )

    def _layer_at_work(self) -> float:
        spec = self.spec
        compute, sizes = BYTES[spec.precision.compute_dtype], _sizes(spec, whole_width=True)
        number = {"ffn": sizes["up"], "whole": sizes["norm"], "between": _sizes(spec)["norm"]}
        at_work = sum(LAYER_AT_WORK[name] * size for name, size in number.items()) * self.tokens * compute
        if self._is_by_blocks():
            length = spec.batch.sequence_length / spec.mesh["context"]
            of_all = self.tokens * spec.model.num_heads / spec.mesh["tensor"] * BYTES["float32"]
            at_work += BLOCKS_AT_WORK * of_all * min(length, CHUNK_OF_QUERIES) ** 2 / length
        if spec.mesh["fsdp"] == 1:
            return at_work + WEIGHTS_AT_WORK[False] * self.layer
        alone = 0.0 if spec.precision.quantization else WEIGHTS_ALONE * self.layer
        return max(at_work + WEIGHTS_AT_WORK[True] * self.layer, alone) + LARGEST_AGAIN * self._largest()

    def _waiting(self, besides: float) -> float:
        """Of layers that are not scanned: what was recomputed for gradients of weights that XLA makes late.

        It does so to have work while something crosses the network, up to the memory that it plans with; `besides` is
        held beside it and the state.
        """
        spec = self.spec
        again = sum(_sizes(spec, whole_width=True).values()) * BYTES[spec.precision.compute_dtype]
        again = max(again - _activations(spec, own=True), 0.0)
        crosses = self._crosses()
        share = WAITING[crosses][spec.accumulation_steps > 1] if crosses else 0.0
        most = share * spec.model.num_layers * self.tokens * again
        device = hardware.find(spec.topology.device)
        return min(most, max(PLANNED * device.memory_bytes - self.state - besides, 0.0)) if device else most

    def _crosses(self) -> str:
        """For which gradients of weights wait, as a row of `WAITING`; "": they do not wait.

        Gradients that fsdp splits cross the network together until they are `COMBINED`, so where those of one layer are
        more, none waits for another layer's.
        """
        mesh, fsdp = self.spec.mesh, self.spec.mesh["fsdp"]
        if mesh["context"] > 1:
            return "context"
        if fsdp > 1:
            return "gradients" if self.layer / fsdp * BYTES["float32"] < COMBINED else ""
        return "tokens" if mesh["tensor"] > 1 and self.spec.parallelism.sequence_parallel else ""

    def _largest(self) -> float:
        """The largest gradient: of one of the feed-forward block's matrices, in all layers."""
        model, mesh = self.spec.model, self.spec.mesh
        one = model.hidden_dim * model.ffn_dim / mesh["tensor"] / mesh["fsdp"]
        return model.num_layers / mesh["pipeline"] * one * BYTES["float32"]

    def _tables(self) -> float:
        """Gradients of the tables beside their place among all gradients.

        With fsdp, from the head's to the end of the step, because XLA sums them over the network together; of a
        pipeline one. Without it, and where nothing is summed over devices, what the embedding's gradient will take
        serves the layers before.
        """
        spec, table = self.spec, self.head * BYTES["float32"]
        is_tied, is_staged = spec.model.tied_embeddings, spec.mesh["pipeline"] > 1
        if spec.mesh["fsdp"] > 1:
            if spec.execution.scan_layers and self.tokens <= CHUNK_TOKENS and not is_staged:
                return 0.0  # without a loop over chunks, XLA makes the head's gradient late, too
            return table if is_tied or is_staged else 2 * table
        if is_tied:  # two gradients are added, and then to the sum of all passes
            return table if spec.accumulation_steps > 1 else 0.0
        return -table if spec.mesh["data"] == spec.mesh["context"] == 1 else 0.0

    def _summed(self) -> float:
        """The sum of the gradients of earlier passes, which is there from the start where there are several."""
        spec = self.spec
        is_several = spec.accumulation_steps > 1 and spec.mesh["pipeline"] == 1
        return self.held / spec.mesh["fsdp"] * BYTES[spec.precision.gradient_dtype] if is_several else 0.0

    def _added(self) -> float:
        """The gradients that are about to be added to their sum."""
        spec = self.spec
        virtual = spec.parallelism.virtual_pipeline
        if spec.mesh["pipeline"] > 1 and virtual > 1 and spec.mesh["fsdp"] == 1:  # weights, too, in the order of chunks
            each = 2 * self.layers * BYTES["float32"]
        elif spec.mesh["pipeline"] > 1:  # all micro-batches are one pass, and each tick adds to the layers of a chunk
            each = self.layers / virtual * BYTES["float32"]
        else:
            each = self.held * BYTES[spec.precision.params_dtype] if spec.accumulation_steps > 1 else 0.0
        return each / spec.mesh["fsdp"]


def _between_stages(spec: RunSpec, tokens: float) -> float:
    """Numbers that our own pipeline keeps of what enters its first stage, and then of what leaves the last."""
    return _sizes(spec)["input"] * tokens * spec.accumulation_steps if spec.mesh["pipeline"] > 1 else 0.0
