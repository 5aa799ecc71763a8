"""Lines made to take long."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from seatrial import logs
from tests.helpers.log_cases import steps

LONG = 1 << 15
STARTS = {
    "maxtext": "completed step: 7, seconds: 1.000, ",
    "maxtext_checkpoint": "Finished save in 1.00 seconds @ ",
    "torchtitan": "step: 7  loss: 1.00000  memory: 1.00GiB(1.00%)  ",
    "nemo2": "Training epoch 0, iteration 7/99 | reduced_train_loss: 1.0 | ",
    "nemo1": "Epoch 0: :  10%|# | 8/99 [00:01<00:02, reduced_train_loss=1.0, global_step=7.000, ",
    "mlperf": ':::MLLOG {"key": ',
    "transformers": "{'loss': ",
    "olmo": "[step=7/9,epoch=0",
    "olmo_line": "    train/CrossEntropyLoss=",
    "composer": "[batch=7/9]:",
    "composer_line": "\t Train loss/train/total: ",
    "litgpt": "Epoch 1 | iter 7 step 7 | loss train: 1.000,",
    "torchtune": "Step 7 | loss:1.0 ",
    "torchtune_bar": "1|7|Loss: 1.0: 10%|",
    "nanogpt": "iter 7: loss 1.0000, time 1.00ms, ",
    "nanochat": "step 00007/00009 (1.00%) | loss: 1.000000 | dt: 1.00ms | tok/sec: ",
    "llmc": "step 7/9 | loss 1.000000 (+0.12z)| 1.00 ms | tok/s ",
    "modded": "step:7/9 train_loss:1.0 train_time:1ms step_avg:",
    "levanter": "Progress on:train 7.00it/9.00it rate:1.0it/s ",
    "levanter_bar": "train:  10%|# | 7/9 [00:01<00:02, ",
    "verl": "step:7 - actor/pg_loss:1.000 - ",
    "verl_sft": "step:7 - train/loss:1.000 - val/loss:",
    "deepspeed": "[Rank 0] step=7, skipped=0, lr=[",
    "deepspeed_loss": "steps: 7 loss: 1.0 iter time (s): 1.0 samples/sec: ",
    "lightning_own": "Epoch 0:  10%|# | 8/99 [00:01<00:02, v_num=1, train_loss=1.0, ",
}
MORE = ["a", "1", " ", "a ", "1,", "[", "a=", "a: 1.0 | "]


@pytest.mark.parametrize("start", STARTS)
def test_a_hostile_line_is_read_in_bounded_time(start: str) -> None:
    text = [STARTS[start] + more * (LONG // len(more)) + " x" for more in MORE]
    text += [STARTS[start] * (LONG // len(STARTS[start]))]
    assert {step.step for step in steps(logs.parse(text))} <= {7, 0, 1}


@pytest.mark.parametrize(
    "line",
    [
        "completed step: {}, seconds: 1.0, loss: 2.0",
        " iteration {}/ 50 | elapsed time per iteration (ms): 1.0 | lm loss: 1 |",
        "step: {} loss: 1.0 memory: 1.0GiB(1.0%) tps: 100 ", "1%|x| {}/3 [0", "1%|x| 1/{} [0",
        "{{'loss': 1.0, 'step': {}}}",
        "Total optimization steps = {}", "step {} loss 1.5",
    ],
)  # fmt: skip
@pytest.mark.parametrize("family", ["auto", "generic"])
def test_a_number_of_thousands_of_digits_is_no_step(line: str, family: str, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text((line.format("1" * 5000) + "\n") * 9)
    assert steps(logs.read([tmp_path / "log.txt"], family)) == []


@pytest.mark.parametrize(
    "prefix", ["{}: ", "[default{}]:", "[rank{}]:", "[RANK {}]: ", "[trainer0|{}]:", "[1,{}]<stdout>:", "a.b/{} "]
)
def test_a_rank_of_thousands_of_digits_is_none(prefix: str, tmp_path: Path) -> None:
    lines = [f"{prefix.format('1' * 5000)}{{'loss': 1.5, 'step': {n}}}" for n in range(9)]
    (tmp_path / "log.txt").write_text("\n".join(lines) + "\n")
    assert {step.process for step in steps(logs.read([tmp_path / "log.txt"]))} == {0}


def test_a_file_that_is_not_quite_gzip_is_named(tmp_path: Path) -> None:
    for name, content in {"a": b"\x1f\x8b\x07" + bytes(20), "b": bytearray(gzip.compress(b"hello"))}.items():
        if isinstance(content, bytearray):
            content[-6] ^= 255  # in the checksum
        (tmp_path / name).write_bytes(content)
        with pytest.raises(OSError, match=r"compression|CRC") as caught:
            logs.read([tmp_path])
        assert caught.value.filename == str(tmp_path / name)
        (tmp_path / name).unlink()
