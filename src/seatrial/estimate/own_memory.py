"""The memory of Seatrial's own trainer beside parameters and moments: what is held at each moment of a step.

Known from what XLA reserves for its compiled steps (`tools/compiled_memory.py`, `tests/helpers/compiled.py`), and from
the buffers that it assigns (`--xla_dump_to`).

    backward     in the loop over the layers: all that is kept, all gradients, one layer at work (`own_layer`), and of
                 the tables those gradients that are not yet split, or what they are made of
    head         all that is kept; the output head's weights, their gradient, the logits of a chunk and their gradient
    tables       with fsdp and few tokens, behind the layers: all gradients, those of both tables not yet split
    forward      of a pipeline: all that is kept, and a stage's weights as they are computed with
    update       all gradients, and the largest as the backward pass made it, or twice more while moments change format

Layers that are not scanned free what they keep as their gradients come, and hold other things (`_unrolled`). A pipeline
keeps the activations of all micro-batches of a step, and what enters and leaves the stages with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from seatrial.estimate import flops, hardware, own_layer
from seatrial.estimate.layer_memory import (
    BYTES,
    keeps_attention,
    layer_activations,
    layer_sizes,
    layers_in_flight,
    most_layers,
)
from seatrial.estimate.own_layer import adds_in_place
from seatrial.spec import RunSpec

# Tokens whose logits are held at once by Seatrial's own trainer: at least, and at most. On a CPU it holds fewer.
CHUNK_TOKENS, MOST_CHUNK_TOKENS = 1024, 8192
LOGIT_BYTES = 10  # by which the number of these tokens is chosen: float32, their exponentials and their gradient
PLANNED = 0.8  # of the device's memory is what XLA plans a step with
# Of what layers that are not scanned recompute, the share that waits until gradients of weights are made of it, by what
# crosses the network. Guessed from 5, 2 and 2 compiled steps, which have 0.43 to 0.47, 0.44 and 0.7, 0.56 and nothing.
WAITING = {"gradients": 0.44, "context": 0.72, "tokens": 0.56}


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
        spec, kept = self.spec, self._kept()
        gradient = self.held / spec.mesh["fsdp"] * BYTES[spec.precision.gradient_dtype]
        if spec.mesh["pipeline"] > 1:
            yield from self._staged(gradient, kept)
        elif spec.execution.scan_layers:
            yield from self._scanned(gradient, kept)
        else:
            yield from self._unrolled(gradient, kept)
        share = self._share_before_the_sum()
        yield gradient, 0.0, share * self._largest() if share < 1 else 0.0
        if spec.precision.optimizer_dtype != "float32":  # moments of which a device has a part only, with ZeRO-1
            zero = spec.mesh["data"] if spec.parallelism.zero1 else 1
            yield gradient + self._added(), 0.0, 2 * self._largest() / zero

    def _scanned(self, gradient: float, kept: float) -> Iterator[tuple[float, float, float]]:
        """`moments` of layers in a loop: in it; before it, where activations are turned around; and at the head."""
        spec, of_layers, tables = self.spec, self._of_layers(gradient), self._tables()
        yield of_layers, kept, max(self._layer_at_work() + tables, 0.0)
        weights = own_layer.turned_weights(spec)
        if turned := own_layer.turned_activations(spec, self.tokens):
            yield of_layers, kept + turned, max(tables, 0.0) + weights
        summed = self._summed()
        if spec.accumulation_steps > 1 and not adds_in_place(spec):  # zeros for this pass's own
            summed += self.layers / spec.mesh["fsdp"] * BYTES[spec.precision.params_dtype]
        yield summed, kept, self._head_at_work() + self._zeros_beside_the_head() + weights
        if self._has_loop_over_logits() and spec.model.tied_embeddings and spec.accumulation_steps == 1:
            yield gradient, kept, self._table() + weights  # the head's gradient is turned around
        if spec.mesh["fsdp"] > 1 and not self._has_loop_over_logits():
            yield self._behind_the_layers(gradient, of_layers), 0.0, self._whole_tables()

    def _behind_the_layers(self, gradient: float, of_layers: float) -> float:
        """Gradients while fsdp splits the head's, which XLA makes last where all tokens' logits are there at once.

        Of a single pass those of all layers, in the format of their sum, and the head's part.
        """
        return gradient * (self.layers + self.head) / self.held if self.spec.accumulation_steps == 1 else of_layers

    def _whole_tables(self) -> float:
        """The head's gradient before fsdp splits it, and zeros for the embedding's, which XLA fills meanwhile.

        With tied embeddings in float32 the embedding's gradient is added to the head's.
        """
        spec = self.spec
        is_one = spec.model.tied_embeddings and spec.precision.params_dtype == "float32" and not adds_in_place(spec)
        return self._table() if is_one else 2 * self._table()

    def _staged(self, gradient: float, kept: float) -> Iterator[tuple[float, float, float]]:
        """`moments` of a pipeline: of the backward pass, the head, the forward pass, and between these two.

        What enters the first stage and leaves the last of all micro-batches is there once in the backward pass, twice
        in the forward pass; at its end, JAX picks the last stage's in a third place. The backward pass cuts what a tick
        has kept out of what all have, and has of the tables only the head's gradient, before fsdp splits it.
        """
        spec = self.spec
        ends = _between_stages(spec, self.tokens) * BYTES[spec.precision.compute_dtype]
        of_layers = self.layers / spec.mesh["fsdp"] * BYTES[spec.precision.gradient_dtype]
        tick = most_layers(spec) / spec.parallelism.virtual_pipeline * self.tokens * layer_activations(spec, own=True)
        yield of_layers + self._added(), kept + tick + ends, self._layer_at_work() + self._table()
        yield 0.0, kept, self._head_at_work()
        yield 0.0, kept + 3 * ends, 0.0
        if gathered := self._gathered():
            yield 0.0, kept + 2 * ends, gathered + self._forward_at_work()

    def _of_layers(self, gradient: float) -> float:
        """Gradients during the backward pass over layers in a loop; with fsdp the tables' own come to it later."""
        spec, fsdp = self.spec, self.spec.mesh["fsdp"]
        gradient = gradient * self._share_before_the_sum() + self._added()
        if fsdp == 1:
            return gradient
        if spec.accumulation_steps == 1:
            return gradient * self.layers / self.held
        # Of those that are to be added to a sum, the embedding's has its place from the start, the head's has not.
        return gradient - (0.0 if spec.model.tied_embeddings else self.head / fsdp * BYTES[spec.precision.params_dtype])

    def _layer_at_work(self) -> float:
        return own_layer.at_work(self.spec, self.tokens, self.layer)

    def _table(self) -> float:
        return self.head * BYTES["float32"]

    def _head_at_work(self) -> float:
        return self.of_head + self._table() + self._hidden()

    def _share_before_the_sum(self) -> float:
        """Bytes of gradients as the backward pass makes them, for each of their sum: of one pass, as weights are."""
        spec = self.spec
        if spec.accumulation_steps > 1 or spec.mesh["pipeline"] > 1:
            return 1.0
        return min(1.0, BYTES[spec.precision.params_dtype] / BYTES[spec.precision.gradient_dtype])

    def _unrolled(self, gradient: float, kept: float) -> Iterator[tuple[float, float, float]]:
        """`moments` of layers that are not scanned, whose activations and slices are freed as their gradients come."""
        mesh, summed, slices = self.spec.mesh, self._summed(), self._slices() + self._zeros()
        at_work = self._layer_at_work()
        with_slices = at_work + max(self._tables(), self._table()) + slices
        yield summed, kept + self._waiting(summed + kept + with_slices), with_slices
        yield summed, kept, slices + self._head_at_work()
        yield gradient + self._added(), 0.0, at_work + max(self._tables(), 0.0)
        if mesh["data"] * mesh["fsdp"] > 1:  # what crosses the network is stacked before, one matrix at a time
            again = 1 if self.spec.precision.optimizer_dtype == "float32" else 3
            yield gradient + self._added(), 0.0, again * self._largest()

    def _slices(self) -> float:
        """Each layer's weights, which XLA cuts out of the stack for the forward pass and keeps for the backward pass.

        As they are stored where a layer is recomputed, and as they are computed with where it is not.
        """
        spec = self.spec
        each = spec.precision.compute_dtype if spec.execution.remat == "none" else spec.precision.params_dtype
        return self.layers / spec.mesh["fsdp"] * BYTES[each]

    def _zeros(self) -> float:
        """Bytes to which attention by blocks adds in all layers; XLA zeroes them before the first layer runs."""
        if not own_layer.is_by_blocks(self.spec):
            return 0.0
        sizes = layer_sizes(self.spec)
        each = 2 * sizes["query"] + sizes["key"] + sizes["value"]  # the result; gradients of queries, keys and values
        return self.spec.model.num_layers * self.tokens * each * BYTES["float32"]

    def _hidden(self) -> float:
        """Hidden states behind the last layer, whole, and their gradient; of a stage, its part of all micro-batches.

        A stage has that part once more, as it came from the last stage.
        """
        spec, number = self.spec, 2.0
        if spec.mesh["pipeline"] > 1:
            number = 3 * spec.accumulation_steps / spec.mesh["pipeline"]
        return number * self.tokens * spec.model.hidden_dim * BYTES[spec.precision.compute_dtype]

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
        weights = self.layers / spec.mesh["fsdp"] * BYTES["float32"] if again else 0.0
        return weights + layers_in_flight(spec, own=True) * self.tokens * layer_activations(spec, own=True)

    def _waiting(self, besides: float) -> float:
        """Of layers that are not scanned: what was recomputed for gradients of weights that XLA makes late.

        It does so to have work while something crosses the network, up to the memory that it plans with; `besides` is
        held beside it and the state.
        """
        spec = self.spec
        again = sum(layer_sizes(spec, whole_width=True).values()) * BYTES[spec.precision.compute_dtype]
        again = max(again - layer_activations(spec, own=True), 0.0)
        crosses = self._crosses()
        share = WAITING[crosses] if crosses else 0.0
        most = share * spec.model.num_layers * self.tokens * again
        device = hardware.find(spec.topology.device)
        return min(most, max(PLANNED * device.memory_bytes - self.state - besides, 0.0)) if device else most

    def _crosses(self) -> str:
        """For which gradients of weights wait, as a row of `WAITING`; "": they do not wait.

        Where attention's result is kept and nothing of the tensor axis crosses the network, none waits.
        """
        mesh = self.spec.mesh
        if mesh["tensor"] == 1 and keeps_attention(self.spec):
            return ""
        if mesh["context"] > 1:
            return "context"
        if mesh["fsdp"] > 1:
            return "gradients"
        return "tokens" if mesh["tensor"] > 1 and self.spec.parallelism.sequence_parallel else ""

    def _largest(self) -> float:
        """The largest gradient: of one of the feed-forward block's matrices, in all layers."""
        model, mesh = self.spec.model, self.spec.mesh
        one = model.hidden_dim * model.ffn_dim / mesh["tensor"] / mesh["fsdp"]
        return model.num_layers / mesh["pipeline"] * one * BYTES["float32"]

    def _tables(self) -> float:
        """Gradients of the tables beside their place among all gradients, while the layers' are made.

        With fsdp, the head's until XLA sums them over the network together at the end of the step, and zeros for the
        embedding's. Where the logits of all tokens are there at once, XLA makes the head's at the end, and keeps what
        it is made of. Without fsdp, and where nothing is summed over devices, what the embedding's gradient will take
        serves the layers before.
        """
        spec, table, is_tied = self.spec, self._table(), self.spec.model.tied_embeddings
        if spec.mesh["fsdp"] > 1:
            if not spec.execution.scan_layers:
                return table if is_tied else 2 * table
            if self._has_loop_over_logits():
                return table + self._zeros_beside_the_head()
            logits = self.head / spec.model.hidden_dim
            return self.tokens * (logits + spec.model.hidden_dim) * BYTES[spec.precision.compute_dtype]
        if is_tied:  # two gradients are added, and then to the sum of all passes
            copies = 1 if spec.precision.params_dtype == "float32" else 2
            return copies * table if spec.accumulation_steps > 1 else 0.0
        return -table if spec.mesh["data"] == spec.mesh["context"] == 1 else 0.0

    def _zeros_beside_the_head(self) -> float:
        """Zeros for the embedding's gradient, which XLA makes with those for the head's, where that takes a loop.

        With fsdp, and where gradients are not added in place. With fsdp and tied embeddings in float32, the embedding's
        gradient of a pass is added to the head's, and there are none.
        """
        spec = self.spec
        in_place, is_float32 = adds_in_place(spec), spec.precision.params_dtype == "float32"
        if spec.mesh["fsdp"] > 1:
            has_none = spec.model.tied_embeddings and is_float32 and not in_place
        else:
            has_none = spec.accumulation_steps == 1 or in_place
        return self._table() if self._has_loop_over_logits() and not has_none else 0.0

    def _has_loop_over_logits(self) -> bool:
        return self.tokens > chunk_tokens(self.spec)

    def _summed(self) -> float:
        """The sum of the gradients of earlier passes, which is there from the start where there are several."""
        spec = self.spec
        is_several = spec.accumulation_steps > 1 and spec.mesh["pipeline"] == 1
        return self.held / spec.mesh["fsdp"] * BYTES[spec.precision.gradient_dtype] if is_several else 0.0

    def _added(self) -> float:
        """The gradients that are about to be added to their sum."""
        spec = self.spec
        if spec.mesh["pipeline"] > 1:  # a tick's, of all the stage; of several chunks the weights, too, in their order
            copies = 1 if spec.parallelism.virtual_pipeline == 1 else 2
            each = copies * self.layers * BYTES["float32"]
        elif spec.accumulation_steps > 1:  # in place, the gradients of layers that are scanned are a layer's
            in_place = adds_in_place(spec) and spec.execution.scan_layers
            each = (self.held - self.layers * in_place) * BYTES[spec.precision.params_dtype]
        else:
            each = 0.0
        return each / spec.mesh["fsdp"]


def _between_stages(spec: RunSpec, tokens: float) -> float:
    """Numbers that our own pipeline keeps of what enters its first stage, and then of what leaves the last."""
    return layer_sizes(spec)["input"] * tokens * spec.accumulation_steps if spec.mesh["pipeline"] > 1 else 0.0
