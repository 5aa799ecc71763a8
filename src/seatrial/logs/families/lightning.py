"""PyTorch Lightning: NeMo 2's lines, and the progress bars of NeMo 1, of AWS NxDT and of Lightning itself.

NeMo 2   `Training epoch 0, iteration 49/49 | lr: 7.5e-06 | … | train_step_timing in s: 12.39 | consumed_samples: 6400`
NeMo 1   `Epoch 0: : 100%|████| 50/50 [16:26<00:00, v_num=gjbq, reduced_train_loss=11.70, global_step=49.00, …]`
NxDT     the same bar with `throughput=0.181`, in sequences a second of the whole job
its own  `Epoch 0:  10%|█ | 50/500 [00:41<06:10,  1.21it/s, v_num=3, train_loss=2.104]`, whose names the user chooses

Numbers have three or four digits. Steps count from 0, and "49/49" is the last one. A bar is drawn many times for a
step, and its own count runs ahead of its figures; it counts the batches of an epoch, so its total says nothing of the
run's. How many epochs were asked for is known from the end, where "`Trainer.fit` stopped" says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from seatrial.logs.grammar import END, EVAL, FACTS, Family, Field, Found, Reading, loss_of, note, read_values
from seatrial.logs.numbers import NUMBER, quantity

FIELDS: Mapping[str, Field] = {
    "train_step_timing in s": Field(name="seconds"),
    "reduced_train_loss": Field(name="loss"),
    "lr": Field(name="learning_rate"),
    "grad_norm": Field(name="grad_norm"),
    "gradient_norm": Field(name="grad_norm"),
    "parameter_norm": Field(name="params_norm"),
    "global_batch_size": Field(name="global_batch_size"),
    "consumed_samples": Field(name="consumed_samples"),
    "peak_memory_usage": Field(name="memory_bytes"),  # until 2025, and what it was called afterwards
    "max_memory_reserved": Field(name="memory_bytes"),
    "TFLOPS_per_GPU": Field(name="tflops_per_second_per_device"),
    "tokens_per_sec_per_gpu": Field(name="tokens_per_second_per_device"),
    "throughput": Field(name="samples_per_second_total"),
}

# The names of a loss in a bar of one's own; of several the first, the loss of this step.
_OWN_LOSSES = ("train_loss_step", "train/loss_step", "loss_step", "train_loss", "train/loss", "loss")

# Of an evaluation, and the running mean of Lightning's own bar, which is NaN before it has a first loss.
_OF_OTHERS = {"val_loss", "loss"}
_PAIR = re.compile(rf"([^|:]{{1,60}}): ({NUMBER})(?=\s*(?:\||$))", re.IGNORECASE)
_LINE = re.compile(r"Training epoch \d+, iteration (?P<n>\d+)/(?P<total>\d+)\s*\|(?P<pairs>.{0,2000})")
_BAR = re.compile(
    r"Epoch (?P<epoch>\d+):.{0,300}?(?P<n>\d+)(?:/(?P<of>\d+|\?))?(?:it)? "
    r"\[(?P<inside>[^\[\]]{0,2000}(?:reduced_train_loss|global_step)=[^\[\]]{0,2000})\]"
)
_OWN_BAR = re.compile(
    r"(?<![\w:])Epoch (?P<epoch>\d{1,9}): +\d{1,3}%\|[^|]{0,300}\| *(?P<n>\d{1,12})/(?P<of>\d{1,12}) "
    r"\[(?P<inside>[^\[\]]{0,1000}\bv_num=[^\[\]]{0,1000})\]"
)
_RATE = re.compile(r"([\d.]+)(it/s|s/it)")
_STOPPED = re.compile(r"Trainer\.fit` stopped: `max_(?P<what>steps|epochs)=(?P<count>\d{1,12})` reached")
# The script goes on to its test where the training returned in order: behind its last epoch, whatever ended it.
_TESTED = "Testing DataLoader 0: 100%|"


class _Log:
    """The bar of Lightning's own that was drawn last, by which its epochs are counted."""

    def __init__(self) -> None:
        self._drawn: re.Match[str] | None = None

    def __call__(self, line: str) -> Iterator[Found]:
        yield from _read(line)
        of_nemo = "reduced_train_loss=" in line or "global_step=" in line
        for bar in _OWN_BAR.finditer(line) if "v_num=" in line else ():
            if not self._is_old(bar):
                yield from () if of_nemo else _read_own_bar(bar)
                self._drawn = bar
        for stopped in _STOPPED.finditer(line):
            yield END, {"planned_epochs": stopped["count"]} if self._is_whole(stopped) else {}
        if _TESTED in line and self._drawn and self._drawn["n"] == self._drawn["of"]:
            yield END, {"planned_epochs": str(int(self._drawn["epoch"]) + 1)}

    def _is_old(self, bar: re.Match[str]) -> bool:
        """True if this is still the bar of the epoch before, which is full and has the name of the next one already."""
        if self._drawn is None or int(bar["epoch"]) != int(self._drawn["epoch"]) + 1:
            return False
        return bar["n"] == bar["of"] == self._drawn["n"] != "1"

    def _is_whole(self, stopped: re.Match[str]) -> bool:
        """True if the last bar is a full one, of the last of the epochs that were asked for."""
        if self._drawn is None or stopped["what"] != "epochs":
            return False
        epoch, n, of = (int(self._drawn[name]) for name in ("epoch", "n", "of"))
        return (epoch + 1, n) == (int(stopped["count"]), of)


def _read(line: str) -> Iterator[Found]:
    if "Epoch " in line and "=" in line:
        for bar in _BAR.finditer(line):
            yield from _read_bar(bar)
    if "Training epoch " in line and (found := _LINE.search(line)) and not FAMILY.head.search(line):
        yield from _read_line(found)


def _read_bar(bar: re.Match[str]) -> Iterator[Found]:
    parts = (part.partition("=") for part in bar["inside"].split(", "))
    pairs = [(name.strip(), text) for name, _, text in parts]
    counted = int(bar["n"]) - 1
    if bar["of"] and bar["of"] != "?":
        counted += int(bar["epoch"]) * int(bar["of"])
    step = _step(dict(pairs).get("global_step", ""), counted)
    if step >= 0:
        yield from _found(step, pairs, inferred=True)


def _read_own_bar(bar: re.Match[str]) -> Iterator[Found]:
    """Lightning's own bar counts batches; its rate is a running mean of these."""
    parts = bar["inside"].split(", ")
    pairs = {name.strip(): text for name, _, text in (part.partition("=") for part in parts)}
    name = next((name for name in _OWN_LOSSES if quantity(pairs.get(name, "")) is not None), "")
    n = int(bar["epoch"]) * int(bar["of"]) + int(bar["n"]) - 1
    if name and int(bar["n"]) > 0:  # else it shows what the epoch before ended with
        rate = next((found for part in parts if (found := _RATE.fullmatch(part.strip()))), None)
        pace = (quantity(rate[1]) or 0.0) if rate else 0.0
        speed = {"steps_per_second": pace if rate and rate[2] == "it/s" else 1 / pace} if pace > 0 else {}
        yield FACTS, {"by_block": True}  # it is drawn by the clock
        yield Reading(values={"step": n, **speed, **loss_of(pairs[name])}, inferred=True, redrawn=True)


def _read_line(found: re.Match[str]) -> Iterator[Found]:
    pairs = [(pair[1].strip(), pair[2]) for pair in _PAIR.finditer(found["pairs"])]
    n, total, said = int(found["n"]), int(found["total"]), dict(pairs).get("global_step", "")
    if said.isdigit() and int(said) == n - 1:  # 2024: counted from 1
        yield from _found(int(said), pairs, total - 1)
    elif said.isdigit() and int(said) != n:  # counted from the beginning of the epoch
        yield from _found(int(said), pairs)
    else:
        yield from _found(n, pairs, total)


def _step(said: str, counted: int) -> int:
    """The step that a bar's figures belong to; large ones are rounded ("1.23e+05"), unlike the bar's own count."""
    number = quantity(said)
    if number is None or ("e" in said and float(f"{counted:.3g}") == number):
        return counted
    return int(number)


def _found(
    step: int, pairs: Sequence[tuple[str, str]], total: int | None = None, *, inferred: bool = False
) -> Iterator[Found]:
    own = [(name, text) for name, text in pairs if name not in _OF_OTHERS]
    values = {"step": step, **({} if total is None else {"total": total}), **read_values(own, FIELDS).values}
    yield Reading(values=values, inferred=inferred)
    validated = [text for name, text in pairs if name == "val_loss" and quantity(text) is not None]
    yield from ((EVAL, {"loss": text}) for text in validated[-1:])


_NOTES = (
    note("start", "All distributed processes registered.",
         r"Starting with (?P<num_processes>(?P<num_devices>\d+)) processes"),
    note("facts", "effective maximum steps = ", r"effective maximum steps = (?P<planned_steps>\d+)\)"),
    # Of a run that goes on, not of a test.
    note("checkpoint", "Restored all states from the checkpoint",
         r"Restored all states from the checkpoint(?: file)? at (?:\S{0,400}\bstep=(?P<step>\d{1,12}))?",
         action="restore"),
    note("checkpoint", "Global Checkpoint Save",
         r"Global Checkpoint Save\s*:\s*Rank\s*:\s*\d+\s*:\s*Iteration\s*:\s*(?P<step>\d+)\s*:.{0,60}?"
         rf"Save duration\s*:\s*(?P<seconds>{NUMBER})s"),
)  # fmt: skip

FAMILY = Family(
    name="lightning",
    anchors=("Training epoch ", "iteration "),
    # Other lines go to the custom reader: those whose "global_step" is another step, or that repeat a validation.
    head=re.compile(
        r"Training epoch \d+, iteration (?P<step>\d+)/(?P<total>\d+)\s*\|"
        r"(?!.{0,2000}(?:\bval_loss: |\bglobal_step: (?!(?P=step)\s*(?:\||$))))"
    ),
    pair=_PAIR,
    fields=FIELDS,
    counted_from=0,
    last_is_total=True,
    custom_reader=_Log,
    custom_words=("Epoch ", "Training epoch ", "Trainer.fit` stopped: `max_", _TESTED),
    notes=_NOTES,
)
