"""Launchers of Megatron commands, their nodes and devices: hostfiles, options and variables."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from seatrial.capture.training import document, trainings
from seatrial.commands.check import ConfigArguments
from seatrial.commands.check import read as read_checked
from seatrial.dialects.megatron.hostfiles import Selection, filled, mpi_slots, selected, slots_of
from seatrial.dialects.megatron.write import command as megatron_command
from seatrial.errors import Problem
from seatrial.spec import Resolved
from tests.helpers.capturing import captured
from tests.helpers.megatron_commands import LEAST

RUNNER = "deepspeed {options} pretrain_gpt.py " + LEAST
TWO = "# nodes\nn1 slots=4\n\nn2  slots=4 max_slots=8\n"


def read(folder: Path, command: str, *overrides: str, hostfile: str | None = None) -> Resolved:
    folder.joinpath("run.sh").write_text(command + "\n")
    if hostfile is not None:
        folder.joinpath("hosts").write_text(hostfile)
    given = ConfigArguments(config=folder / "run.sh", overrides=overrides)
    return read_checked(given, action="check", engine=None)


def machines(resolved: Resolved) -> tuple[int, int]:
    assert resolved.spec is not None, resolved.problems
    return resolved.spec.topology.num_nodes, resolved.spec.topology.devices_per_node


def found(resolved: Resolved, code: str) -> Problem:
    return next(problem for problem in resolved.problems if problem.code == code)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- DeepSpeed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", (2, 4)), ("--num_nodes 1", (1, 4)), ("--num_nodes=2 --num_gpus=2", (2, 2)), ("--num_gpus 8", (2, 8)),
        ("--include n2", (1, 4)), ("-i n1:0@n2:3", (2, 1)), ("--exclude n1", (1, 4)), ("-e n1:0,1@n2:2,3", (2, 2)),
        ("--include n1:1,1@n1:0", (1, 2)), ("--launcher pdsh --no_ssh_check", (2, 4)),
    ],
)  # fmt: skip
def test_a_hostfile_says_where_deepspeed_starts_the_program(
    options: str, expected: tuple[int, int], here: Path
) -> None:
    for name in ("--hostfile hosts", "-H hosts", "--hostfile=hosts"):
        assert machines(read(here, RUNNER.format(options=f"{name} {options}"), hostfile=TWO)) == expected


@pytest.mark.parametrize(
    ("options", "hostfile", "code", "why"),
    [
        ("", "n1 slots=4\nn1 slots=2\n", "bad-hostfile", "line 2 names n1 for the second time"),
        ("", "n1 slots=4\nn2\n", "bad-hostfile", "line 2 is not"),
        ("", "# none\n", "bad-hostfile", "no host is in it"),
        ("-i n3", TWO, "bad-hostfile", "n3 is no host"),
        ("-e n1:4", TWO, "bad-hostfile", "n1 has no slot 4"),
        ("-i n1 -e n2", TWO, "bad-hostfile", "cannot both be given"),
        ("-i n1 --num_gpus 2", TWO, "bad-hostfile", "do not go with"),
        ("-e n1@n2", TWO, "bad-hostfile", "no host is left"),
        ("--num_nodes two", TWO, "bad-hostfile", "--num_nodes two is not a whole number"),
        ("-e n1:0", TWO, "uneven-nodes", "of n1 3 slots are used, of n2 4"),
    ],
)
def test_what_deepspeed_refuses_or_we_cannot_do_is_an_error_at_the_option(
    options: str, hostfile: str, code: str, why: str, here: Path
) -> None:
    resolved = read(here, RUNNER.format(options=f"--hostfile hosts {options}"), hostfile=hostfile)
    assert resolved.spec is None
    problem = found(resolved, code)
    assert problem.severity == "error"
    assert why in problem.why
    assert str(problem.mark).endswith("run.sh:1:22")


def test_an_option_of_deepspeed_without_its_value_is_an_error_there(here: Path) -> None:
    resolved = read(here, RUNNER.format(options="--hostfile --num_nodes 2"), hostfile=TWO)
    assert resolved.spec is None
    problem = found(resolved, "missing-value")
    assert (problem.severity, problem.path) == ("error", "--hostfile")
    assert str(problem.mark).endswith("run.sh:1:11")


def test_without_its_hostfile_that_is_said(here: Path) -> None:
    resolved = read(here, RUNNER.format(options=""))
    assert machines(resolved) == (1, 8)
    warning = found(resolved, "devices-not-stated")
    assert warning.severity == "warning"
    assert "no hostfile /job/hostfile here" in warning.why
    large = RUNNER.format(options="--hostfile nodes.txt") + " --tensor-model-parallel-size 16"
    error = found(read(here, large), "devices-not-stated")
    assert error.severity == "error"
    assert "no hostfile nodes.txt here" in error.why
    assert "nnodes=2 nproc_per_node=8" in error.fix
    said = read(here, large, "nnodes=2", "nproc_per_node=8")
    assert machines(said) == (2, 8)
    assert all(problem.code != "devices-not-stated" for problem in said.problems)


def test_options_say_enough_without_a_hostfile(here: Path) -> None:
    assert machines(read(here, RUNNER.format(options="--num_gpus 2"))) == (1, 2)
    resolved = read(here, RUNNER.format(options="--num_nodes 3 --num_gpus 4"))
    assert machines(resolved) == (3, 4)
    assert "does not start" in found(resolved, "no-hostfile").why


@pytest.mark.parametrize(
    ("before", "options", "expected", "is_stated"),
    [
        ("", "--include localhost:0,1,2,3", (1, 4), True),
        ("", "-i localhost:4", (1, 1), True),
        ("", "--exclude localhost:7", (1, 7), False),
        ("", "--include localhost", (1, 8), False),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 ", "", (1, 4), True),
        ("CUDA_VISIBLE_DEVICES=0,1 ", "--num_gpus 4", (1, 4), True),
        ("CUDA_VISIBLE_DEVICES=GPU-1a2b ", "", (1, 8), False),
    ],
)
def test_without_a_hostfile_the_runner_selects_devices_of_its_own_node(
    before: str, options: str, expected: tuple[int, int], is_stated: bool, here: Path
) -> None:
    resolved = read(here, before + RUNNER.format(options=options))
    assert machines(resolved) == expected
    assert ("devices-not-stated" not in {p.code for p in resolved.problems}) == is_stated


@pytest.mark.parametrize(
    ("before", "options", "expected"),
    [
        ("PET_NNODES=2 PET_NPROC_PER_NODE=8 ", "", (2, 8)),
        ("PET_NNODES=2 PET_NPROC_PER_NODE=8 ", "--nproc_per_node 4", (2, 4)),
        ("", "-t 3 -r 3 --nnode=2 --nproc-per 4", (2, 4)),
    ],
)
def test_torchrun_is_told_by_variables_short_options_and_beginnings(
    before: str, options: str, expected: tuple[int, int], here: Path
) -> None:
    assert machines(read(here, f"{before}torchrun {options} pretrain_gpt.py {LEAST}")) == expected


def test_a_hostfile_that_the_script_writes_is_read(here: Path) -> None:
    script = (
        "for i in 1 2 3; do echo worker-$i slots=2; done > hf\n" + RUNNER.format(options="--hostfile hf") + "\nrm hf"
    )
    run = captured(here, script)
    (training,) = trainings(run)
    here.joinpath("run.json").write_text(json.dumps(document(run, training)))
    resolved = read_checked(ConfigArguments(config=here / "run.json"), action="check", engine=None)
    assert machines(resolved) == (3, 2)


def by_devices(text: str, by: Selection) -> dict[str, tuple[int, ...]] | None:
    """The devices that DeepSpeed's documentation says are used, one by one; None where it refuses."""
    pool: list[tuple[str, int]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if not line.startswith("#"):
            host, slots = line.split()[:2]
            pool += [(host, number) for number in range(int(slots.removeprefix("slots=")))]
    hosts = [line.split()[0] for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    if not hosts or (by.include and by.exclude) or ((by.include or by.exclude) and max(by.num_nodes, by.num_gpus) >= 0):
        return None
    named: list[tuple[str, int | None]] = []
    for part in filter(None, (by.include or by.exclude).split("@")):
        host, _, numbers = part.partition(":")
        named += [(host, int(number)) for number in numbers.split(",")] if numbers else [(host, None)]
    if any(host not in hosts for host, _ in named):
        return None
    if by.exclude and any(number is not None and (host, number) not in pool for host, number in named):
        return None
    listed = {host: [n for h, n in named if h == host and n is not None] for host, _ in named}
    used: dict[str, list[int]] = {}
    for host in hosts:
        all_of_it = [n for h, n in pool if h == host]
        if by.include:
            used[host] = (sorted(set(listed[host])) or all_of_it) if host in listed else []
        elif host in listed:
            used[host] = [n for n in all_of_it if listed[host] and n not in listed[host]]
        else:
            used[host] = all_of_it
    if named:
        used = {host: numbers for host, numbers in used.items() if numbers}
    if by.num_nodes > 0:
        used = {host: used[host] for host in list(used)[: by.num_nodes]}
    if by.num_gpus > 0:
        used = {host: list(range(by.num_gpus)) for host in used}
    return {host: tuple(numbers) for host, numbers in used.items()} or None


def test_hosts_are_chosen_as_deepspeed_chooses_them() -> None:
    chance = random.Random(18)
    outcomes = {True: 0, False: 0}
    for _ in range(5000):
        lines = [f"w{number}{chance.choice((' ', '  '))}slots={chance.randint(0, 4)}" for number in range(3)]
        text = "\n".join(chance.sample([*lines, "", "# w9 slots=1"], k=chance.randint(1, 5)))

        def some() -> str:
            parts = [f"w{chance.randint(0, 3)}{chance.choice(('', ':0', ':1,2', ':3,0'))}" for _ in range(2)]
            return "@".join(parts[: chance.randint(1, 2)])

        by = Selection(
            include=some() if chance.random() < 0.3 else "", exclude=some() if chance.random() < 0.3 else "",
            num_nodes=chance.choice((-1, -1, 1, 2)), num_gpus=chance.choice((-1, -1, 1, 8)),
        )  # fmt: skip
        try:
            ours = selected(slots_of(text), by)
        except ValueError:
            ours = None
        assert ours == by_devices(text, by), (text, by)
        outcomes[ours is None] += 1
    assert min(outcomes.values()) > 1000


# --- accelerate -------------------------------------------------------------------------------------------------------

ACCELERATE = "accelerate launch {options} pretrain_gpt.py " + LEAST
FILE = """compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
machine_rank: 0
main_process_ip: 10.0.0.7
main_process_port: 29501
num_machines: 2
num_processes: 16
same_network: true
"""


@pytest.mark.parametrize(
    ("options", "file", "expected"),
    [
        ("--multi_gpu --num_processes 16 --num_machines 2 --machine_rank 0", None, (2, 8)),
        ("--num-processes=16 --num-machines=4", None, (4, 4)),
        ("--num_processes 4 --mixed_precision bf16", None, (1, 4)),
        ("--config_file hosts", FILE, (2, 8)),
        ("--config_file hosts", '{"num_machines": 4, "num_processes": 16, "distributed_type": "MULTI_GPU"}', (4, 4)),
        ("--config_file hosts --num_processes 8", FILE, (2, 4)),
        ("--config-file hosts --num_machines 1", FILE, (1, 16)),
        ("--config_file=hosts --num_processes 8", "num_machines: 1\nnum_processes: -1\n", (1, 8)),
        ("--config_file nowhere --num_processes 16 --num_machines 2", None, (2, 8)),
    ],
)
def test_accelerate_says_how_many_processes_its_machines_share(
    options: str, file: str | None, expected: tuple[int, int], here: Path
) -> None:
    for before in ("", "srun -N 2 "):
        resolved = read(here, before + ACCELERATE.format(options=options), hostfile=file)
        assert machines(resolved) == expected
        assert not [p for p in resolved.problems if p.code == "devices-not-stated"]
    module = ACCELERATE.format(options=options).replace("accelerate launch", "python -m accelerate.commands.launch")
    assert machines(read(here, module, hostfile=file)) == expected


@pytest.mark.parametrize(
    ("options", "expected", "why"),
    [
        ("", (1, 8), "a process for each device of its node"),
        ("--num_machines 2", (2, 8), "a process for each device of its node"),
        ("--config_file nowhere", (1, 8), "no nowhere here"),
        ("--config_file nowhere --num_processes 16", (1, 16), "no nowhere here"),
    ],
)
def test_what_accelerate_does_not_say_is_asked_for(
    options: str, expected: tuple[int, int], why: str, here: Path
) -> None:
    resolved = read(here, ACCELERATE.format(options=options))
    assert machines(resolved) == expected
    assert why in found(resolved, "devices-not-stated").why


def test_where_accelerate_s_first_machine_is_stands_in_its_options_or_its_file(here: Path) -> None:
    options = "--config_file hosts --main_process_ip n0"
    spec = read(here, ACCELERATE.format(options=options), hostfile=FILE).spec
    assert spec is not None
    assert (spec.distributed.coordinator_host, spec.distributed.coordinator_port) == ("n0", 29501)


@pytest.mark.parametrize(
    ("options", "file", "code", "at"),
    [
        ("--num_processes $N", None, "bad-value", "run.sh:1:35"),
        ("--num_processes --multi_gpu", None, "missing-value", "run.sh:1:19"),
        ("--config_file hosts", "num_machines: two\n", "bad-value", "hosts:1:15"),
        ("--config_file hosts", "num_machines: [2\n", "bad-yaml", "hosts:1:15"),
    ],
)
def test_what_is_wrong_before_or_in_accelerate_s_file_is_an_error_there(
    options: str, file: str | None, code: str, at: str, here: Path
) -> None:
    resolved = read(here, ACCELERATE.format(options=options), hostfile=file)
    assert resolved.spec is None
    assert (found(resolved, code).severity, str(found(resolved, code).mark)[-len(at) :]) == ("error", at)


def test_a_file_of_accelerate_s_that_the_script_writes_is_read(here: Path) -> None:
    written = "printf 'num_machines: %s\\nnum_processes: %s\\n' 2 $((2 * 4)) > acc.yaml"
    run = captured(here, f"{written}\n{ACCELERATE.format(options='--config_file acc.yaml')}\nrm acc.yaml")
    (training,) = trainings(run)
    here.joinpath("run.json").write_text(json.dumps(document(run, training)))
    resolved = read_checked(ConfigArguments(config=here / "run.json"), action="check", engine=None)
    assert machines(resolved) == (2, 4)


# --- mpirun -----------------------------------------------------------------------------------------------------------


def test_mpirun_fills_the_hosts_of_its_file(here: Path) -> None:
    command = f"mpirun -np 6 --hostfile hosts -x A=1 python pretrain_gpt.py {LEAST}"
    assert machines(read(here, command, hostfile="a slots=2\nb slots=2 max_slots=4\nc:2\nd slots=2")) == (3, 2)
    assert machines(read(here, command, hostfile="a slots=4\nb slots=4")) == (1, 6)  # 4 and 2: all it says is 6
    assert machines(read(here, command)) == (1, 6)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-np 16 -H node1:8,node2:8", (2, 8)),
        ("-np 16 --host a:8,b:8", (2, 8)),
        ("--host a,a,b,b -np 4", (2, 2)),
        ("-np 16 --map-by ppr:8:node", (2, 8)),
        ("-np 16 --map-by=ppr:4:node:PE=7", (4, 4)),
        ("-n 16 --ppn 8", (2, 8)),
        ("-np 16 -npernode 8 -H a:16", (2, 8)),
        ("-np 8 --map-by slot", (1, 8)),
    ],
)
def test_mpirun_says_in_several_ways_how_many_are_on_a_node(
    options: str, expected: tuple[int, int], here: Path
) -> None:
    resolved = read(here, f"mpirun --allow-run-as-root {options} -x A=1 python pretrain_gpt.py {LEAST}")
    assert machines(resolved) == expected
    assert not [p for p in resolved.problems if p.code == "devices-not-stated"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-np 16 -H a:8,b:8", (2, 8)),
        ("--num-proc 8 --hosts a:4,b:4", (2, 4)),
        ("-np 4", (1, 4)),
        ("-np 4 -hostfile hosts", (2, 2)),
    ],
)
def test_horovodrun_says_it_as_mpirun_does(options: str, expected: tuple[int, int], here: Path) -> None:
    command = f"horovodrun {options} python pretrain_gpt.py {LEAST}"
    assert machines(read(here, command, hostfile="a slots=2\nb slots=2\n")) == expected


@pytest.mark.parametrize("options", ["-np 16 --hostfile nowhere", "-np 16 -H a:4,b:16", "-np 16 -H a,b"])
def test_mpirun_that_leaves_open_how_many_are_on_a_node_is_asked(options: str, here: Path) -> None:
    resolved = read(here, f"mpirun {options} python pretrain_gpt.py {LEAST}")
    assert machines(resolved) == (1, 16)
    assert "all are assumed on one node" in found(resolved, "devices-not-stated").why


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("a\na\nb", {"a": 0, "b": 0}),
        ("a slots = 3 # x\n#b slots=2\na slots=1", {"a": 4}),
        ("10.0.0.1:8", {"10.0.0.1": 8}),
    ],
)
def test_lines_of_mpiruns_file(text: str, slots: Mapping[str, int]) -> None:
    assert mpi_slots(text) == slots


@pytest.mark.parametrize(
    ("slots", "processes", "expected"),
    [
        ((8, 8, 8), 16, (2, 8)),
        ((8, 8), 4, (1, 4)),
        ((8, 8), 12, None),
        ((4,), 8, None),
        ((0, 0), 2, None),
        ((), 1, None),
    ],
)
def test_hosts_are_filled_one_after_the_other(
    slots: tuple[int, ...], processes: int, expected: tuple[int, int] | None
) -> None:
    assert filled({str(number): count for number, count in enumerate(slots)}, processes) == expected


# --- nothing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "expected"),
    [("WORLD_SIZE=4", (1, 4)), ("WORLD_SIZE=16", (2, 8)), ("WORLD_SIZE=8 LOCAL_WORLD_SIZE=4", (2, 4)), ("", (1, 1))],
)
def test_a_program_that_nothing_starts_takes_world_size(variables: str, expected: tuple[int, int], here: Path) -> None:
    assert machines(read(here, f"{variables} RANK=0 python pretrain_gpt.py {LEAST}")) == expected
    assert machines(read(here, f"WORLD_SIZE=4 torchrun --nproc_per_node 2 pretrain_gpt.py {LEAST}")) == (1, 2)


def test_a_number_of_devices_that_nobody_states_is_asked_for(here: Path) -> None:
    for before in ("python", "srun -N 2 python"):
        command = f"{before} pretrain_gpt.py {LEAST} --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4"
        error = found(read(here, command), "devices-not-stated")
        assert "nothing says how many devices a node has" in error.why
        assert "nnodes=2 nproc_per_node=8" in error.fix
        assert machines(read(here, command, "nnodes=2", "nproc_per_node=8")) == (2, 8)
    stated = f"torchrun --nproc_per_node 2 pretrain_gpt.py {LEAST} --tensor-model-parallel-size 4"
    assert "2 devices are not divisible" in found(read(here, stated), "refused-by-megatron").why


# --- spellings of forks -----------------------------------------------------------------------------------------------

FORK = (
    "--num_layers 8 --hidden_size 512 --num_attention_heads 8 --seq_length 128 --max_position_embeddings 256 "
    "--micro_batch_size 2 --train_iters 100 --lr 1e-3 --tokenizer_type NullTokenizer --vocab_size 999"
)


def test_arguments_that_all_have_underscores_are_read(here: Path) -> None:
    resolved = read(here, f"torchrun --nproc_per_node 2 pretrain_gpt.py {FORK} --bf16")
    assert resolved.spec is not None
    assert resolved.spec == read(here, f"torchrun --nproc_per_node 2 pretrain_gpt.py {LEAST} --bf16").spec
    assert found(resolved, "underscores").severity == "warning"
    mixed = read(here, f"torchrun pretrain_gpt.py {FORK} --clip-grad 1.0")
    assert mixed.spec is None
    assert found(mixed, "unknown-argument").path == "--num_layers"


def test_a_value_of_a_fork_goes_to_its_program_and_is_refused_by_ours(here: Path) -> None:
    command = f"torchrun pretrain_gpt.py {LEAST} --position-embedding-type alibi"
    error = found(read(here, command), "bad-value")
    assert "run it with --engine megatron" in error.fix
    resolved = read_checked(ConfigArguments(config=here / "run.sh"), action="plan", engine="megatron")
    assert resolved.spec is not None
    assert found(resolved, "only-of-engine").severity == "warning"
    assert resolved.spec.execution.engine_keys["--position-embedding-type"] == "alibi"
    words = [argument for argument in megatron_command(resolved.spec)[2] if argument[0] == "--position-embedding-type"]
    assert words == [["--position-embedding-type", "alibi"]]
    wrong = read(here, f"torchrun pretrain_gpt.py {LEAST} --position-embedding-type ropes")
    assert "--engine" not in found(wrong, "bad-value").fix


def test_a_value_that_differs_in_capitals_is_read_with_a_warning(here: Path) -> None:
    resolved = read(here, f"torchrun pretrain_gpt.py {LEAST} --normalization rmsnorm --save-interval 0")
    assert resolved.spec is not None
    assert resolved.spec.model.norm == "rmsnorm"
    assert "spells it RMSNorm" in found(resolved, "spelling").why
    assert resolved.spec.execution.engine_keys["--normalization"] == "rmsnorm"
