"""The memory of Seatrial's own trainer beside parameters and moments: what is held at each moment of a step.

Known from what XLA reserves for its compiled steps (`tools/compiled_memory.py`, `tests/helpers/compiled.py`), and from
the buffers that it assigns (`--xla_dump_to`).

    backward     in the loop over the layers: all that is kept, all gradients, one layer at work (`LAYER_AT_WORK`), a
                 second copy of the largest gradient, and of the tables those gradients that are not yet split
    head         all that is kept; the output head's weights, their gradient, the logits of a chunk and their gradient
    forward      of a pipeline: all that is kept, and a stage's weights as they are computed with
    update       all gradients, and the largest twice more while moments are changed into another format

Layers that are not scanned free what they keep as their gradients come, and hold other things (`_unrolled`). A pipeline
keeps the activations of all micro-batches of a step, and what enters and leaves the stages with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from seatrial.estimate import flops, hardware
from seatrial.estimate.layer_memory import (
    BYTES,
    KEEPS_SCORES,
    layer_activations,
    layer_sizes,
    layers_in_flight,
    uses_cudnn,
)
from seatrial.spec import QUANTIZATIONS, RunSpec

# Tokens whose logits are held at once by Seatrial's own trainer: at least, and at most. On a CPU it holds fewer.
CHUNK_TOKENS, MOST_CHUNK_TOKENS = 1024, 8192
LOGIT_BYTES = 10  # in float32, beside their exponentials, and their gradient
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


def chunk_tokens(spec: RunSpec) -> int:
    """Tokens whose logits are held at once on an accelerator: the more, the less often the head's gradient is read.

    More than `CHUNK_TOKENS` where there is room for them: in half of what the gradients of a single pass take later. In
    a quarter of it where layers are not scanned, whose activations are fewer by then, so that the head's moment may be
    the one with the most memory.
    """
    mesh, model = spec.mesh, spec.model
    if spec.accumulation_steps > 1 or mesh["pipeline"] > 1:
        return CHUNK_TOKENS
    room = flops.num_parameters(model) / mesh["tensor"] / mesh["fsdp"] * BYTES["float32"]
    room /= 2 if spec.execution.scan_layers else 4
    chunk = CHUNK_TOKENS
    while chunk < MOST_CHUNK_TOKENS and 2 * chunk * model.vocab_size / mesh["tensor"] * LOGIT_BYTES <= room:
        chunk *= 2
    return chunk


@dataclass(frozen=True, kw_only=True)
class OwnMemory:
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
        """Bytes of gradients as the backward pass makes them, for each of their sum: of one pass, as weights are."""
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
        sizes = layer_sizes(self.spec)
        each = 2 * sizes["query"] + sizes["key"] + sizes["value"]  # the result; gradients of queries, keys and values
        return self.spec.model.num_layers * self.tokens * each * BYTES["float32"]

    def _is_by_blocks(self) -> bool:
        return not uses_cudnn(self.spec) and self.spec.execution.attention not in KEEPS_SCORES

    def _hidden(self) -> float:
        """Hidden states behind the last layer, whole, and their gradient; of a stage, its part of all micro-batches."""
        spec = self.spec
        tokens = self.tokens
        if spec.mesh["pipeline"] > 1:
            tokens *= spec.accumulation_steps / spec.mesh["pipeline"]
        return 2 * tokens * spec.model.hidden_dim * BYTES[spec.precision.compute_dtype]

    def _gathered(self) -> float:
        """A stage's weights as they are computed with, brought together over fsdp: the forward pass keeps them.

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
        sizes = layer_sizes(self.spec, whole_width=True)
        each = 3 * sizes["norm"] + sizes["gate"] + sizes["up"] + sizes["product"]
        return each * self.tokens * BYTES[self.spec.precision.compute_dtype]

    def _kept(self) -> float:
        """Activations of all that is in flight; of a pipeline the weights, too, where they are not kept in float32."""
        spec = self.spec
        again = spec.mesh["pipeline"] > 1 and spec.precision.params_dtype != "float32"
        return (
            (self.layers / spec.mesh["fsdp"] * BYTES["float32"] if again else 0.0)
            + layers_in_flight(spec, own=True) * self.tokens * layer_activations(spec, own=True)
            + _between_stages(spec, self.tokens) * BYTES[spec.precision.compute_dtype]
        )

    def _layer_at_work(self) -> float:
        spec = self.spec
        compute, sizes = BYTES[spec.precision.compute_dtype], layer_sizes(spec, whole_width=True)
        number = {"ffn": sizes["up"], "whole": sizes["norm"], "between": layer_sizes(spec)["norm"]}
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
        again = sum(layer_sizes(spec, whole_width=True).values()) * BYTES[spec.precision.compute_dtype]
        again = max(again - layer_activations(spec, own=True), 0.0)
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
                return 0.0  # without a loop over chunks, XLA makes the head's gradient late, too; of more, not always
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
        elif spec.accumulation_steps > 1:  # in place, the gradients of layers that are scanned are a layer's
            in_place = adds_in_place(spec) and spec.execution.scan_layers
            each = (self.held - self.layers * in_place) * BYTES[spec.precision.params_dtype]
        else:
            each = 0.0
        return each / spec.mesh["fsdp"]


def adds_in_place(spec: RunSpec) -> bool:
    """True if the backward pass adds a micro-batch's gradients to their sum by itself; the trainer goes by this, too.

    JAX can do so where both have the same format, and where the largest values of fp8 do not come back beside them.
    """
    precision = spec.precision
    delayed = QUANTIZATIONS.get(precision.quantization or "", "").startswith("delayed")
    several = spec.accumulation_steps > 1 and spec.mesh["pipeline"] == 1
    return several and precision.gradient_dtype == precision.params_dtype and not delayed


def _between_stages(spec: RunSpec, tokens: float) -> float:
    """Numbers that our own pipeline keeps of what enters its first stage, and then of what leaves the last."""
    return layer_sizes(spec)["input"] * tokens * spec.accumulation_steps if spec.mesh["pipeline"] > 1 else 0.0
