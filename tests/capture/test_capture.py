"""Scripts that only running can tell: what they start, where each word is from, and why nothing is started."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from seatrial import capture as sandboxed
from seatrial import source
from seatrial.capture import placeholders, training
from seatrial.commands import capture as capture_command
from seatrial.errors import InputError
from tests.helpers.capturing import captured, repository, sandboxed_or_skip, trainings

TRAIN = "torchrun --nproc_per_node 8 pretrain_gpt.py"

# script → the command that it starts, behind its wrappers
STARTED = {
    "a loop builds the words": (
        "A=()\nfor i in 1 2; do A+=(--x$i); done\n" + TRAIN + ' "${A[@]}"',
        f"{TRAIN} --x1 --x2",
    ),
    "a condition": (
        "M=${1:-7}\nif [[ $M == 7 ]]; then L=32; else L=80; fi\npython train.py --l $L",
        "python train.py --l 32",
    ),
    "case, function": (
        "f() { case $1 in a) echo 4;; *) echo 5;; esac; }\npython train.py --l $(f b)",
        "python train.py --l 5",
    ),
    "arithmetic": ("N=$((8 * 4))\npython3 -u train.py --g $N", "python3 -u train.py --g 32"),
    "Python computes": ("N=$(python -c 'print(2**5)')\npython train.py $N", "python train.py 32"),
    "Python in a here-document": (
        "N=$(python3 - <<EOF\nprint(6 * 7)\nEOF\n)\npython train.py $N",
        "python train.py 42",
    ),
    "torch counts": (
        "N=$(python -c 'import torch; print(torch.cuda.device_count())')\npython train.py $N",
        "python train.py 8",
    ),
    "nvidia-smi counts": ("python train.py $(nvidia-smi -L | wc -l)", "python train.py 8"),
    "queried": ("python train.py $(nvidia-smi --query-gpu=count --format=csv,noheader | head -1)", "python train.py 8"),
    "not here": ("/opt/venv/bin/python3 -m maxtext.train base.yml", "/opt/venv/bin/python3 -m maxtext.train base.yml"),
    "folder not here": ("set -e\ncd /workspace/megatron\npython train.py", "python train.py"),
    "file not here": ("set -e\nsource /opt/conda/bin/activate\nconda activate x\npython train.py", "python train.py"),
    "log folder not here": ("set -e\npython train.py > /data/logs/run.log 2>&1", "python train.py"),
    "piped": ("set -euo pipefail\npython train.py 2>&1 | tee -a run.log", "python train.py"),
    "background": ("python train.py & wait", "python train.py"),
    "exec": ("exec python train.py", "python train.py"),
    "eval": ('C="python train.py"\neval $C', "python train.py"),
    "generated": ("cat > run.sh <<EOF\npython train.py --a 1\nEOF\nbash run.sh", "python train.py --a 1"),
    "prepared": (
        "set -e\npip install x\napt-get update\nwget http://x/y.bin\nmkdir -p /data/x\ngit clone http://h/r.git\n"
        "cd r\npython train.py",
        "python train.py",
    ),
    "unknown commands": ("set -e\nmodule load cuda\nfrobnicate --all\npython train.py", "python train.py"),
    "srun": (
        "srun -N 2 --ntasks-per-node=8 --mpi=none python train.py",
        "srun -N 2 --ntasks-per-node=8 --mpi=none python train.py",
    ),
    "docker": (
        'docker run --rm -v $PWD:/w --name python --network host img:1 bash -c "cd /w && python train.py"',
        "docker run --rm -v PWD:/w --name python --network host img:1 python train.py",
    ),
    "entrypoint": (
        "docker run --entrypoint bash img:1 -c 'python train.py'",
        "docker run --entrypoint bash img:1 python train.py",
    ),
    "ssh": ("for h in a b; do ssh -p 22 $h 'cd /x; python train.py'; done", "ssh -p 22 a python train.py"),
    "mpirun": ("mpirun -np 8 -x A=1 python train.py", "mpirun -np 8 -x A=1 python train.py"),
    "apptainer": ("singularity exec --nv i.sif python train.py", "singularity exec --nv i.sif python train.py"),
    "numactl": (
        "numactl --cpunodebind=0 nsys profile -o x python train.py",
        "numactl --cpunodebind=0 nsys profile -o x python train.py",
    ),
    "timeout": ("timeout 1h env A=1 nohup python train.py", "python train.py"),
    "xpk": (
        "xpk workload create --cluster c --command 'A=1; python train.py'",
        "xpk workload create --cluster c python train.py",
    ),
    "sbatch from standard input": (
        "sbatch -N 2 <<EOF\n#!/bin/bash\n#SBATCH --qos=high\nsrun python train.py \\$SLURM_NNODES\nEOF",
        "sbatch --qos=high -N 2 srun python train.py 2",
    ),
    "a folder that pyxis mounts, with functions": (
        "mkdir cfg; echo 'go() { python train.py; }' > cfg/f.sh\n"
        "srun --container-image i --container-mounts /out,$PWD/cfg:/cfg bash -c 'source /cfg/f.sh && go'",
        "srun --container-image i --container-mounts /out,PWD/cfg:/cfg python train.py",
    ),
    "sbatch --wrap": ("sbatch -N 3 --wrap='python train.py $SLURM_NNODES'", "sbatch -N 3 python train.py 3"),
    "a job": (
        "#!/bin/bash\n#SBATCH -N 4\n#SBATCH --gpus-per-node=8\nH=$(scontrol show hostnames | head -n 1)\n"
        "srun python train.py $SLURM_NNODES $H $SLURM_GPUS_PER_NODE",
        "sbatch -N 4 --gpus-per-node=8 srun python train.py 4 node1 8",
    ),
    "address": ("python train.py --m $(hostname -I | awk '{print $1}')", "python train.py --m 10.0.0.1"),
    "an unknown program that binds": (
        "bind-cores 0 python -u train.py --a 1",
        "bind-cores 0 python -u train.py --a 1",
    ),
    "sh": ("sh -c 'python train.py'", "python train.py"),
    "settings of the kernel": ("set -e\necho 4096 > /proc/sys/net/core/somaxconn\npython train.py", "python train.py"),
    "nohup": (
        "nohup /opt/py/bin/python train.py > log 2>&1 < /dev/null",
        "/opt/py/bin/python train.py",
    ),
    "not waited for": ("bash -c 'sleep 0.3; python train.py > log 2>&1 &'", "python train.py"),
    "on each host of a TPU": (
        "python multihost_runner.py --TPU_PREFIX=t --COMMAND='python train.py'",
        "python multihost_runner.py --TPU_PREFIX=t python train.py",
    ),
    "modules that do not train": (
        "python -m maxtext.inference.decode base.yml\npython -m maxtext.checkpoint_conversion.to_maxtext base.yml\n"
        "python -m maxtext.trainers.pre_train.train base.yml",
        "python -m maxtext.trainers.pre_train.train base.yml",
    ),
}


@pytest.mark.parametrize("name", STARTED)
def test_the_training_that_a_script_starts(name: str, tmp_path: Path) -> None:
    script, command = STARTED[name]
    found = trainings(tmp_path, f"#!/bin/bash\n{script}\n" if not script.startswith("#!") else script)
    assert [" ".join(each.argv).replace(str(tmp_path), "PWD") for each in found[:1]] == [command]


def test_the_environment_is_the_scripts_own_and_what_wrappers_pass_on(tmp_path: Path) -> None:
    script = "export A=1\nB=2\nC=3 docker run -e D=4 -e A img:1 env E=5 python train.py"
    (found,) = trainings(tmp_path, script)
    assert found.environment == {"A": "1", "D": "4", "E": "5"}
    (found,) = trainings(tmp_path, "#SBATCH -N 2\nexport A=1\nB=2\nsrun --export=ALL,C=3 python train.py")
    assert found.environment == {"A": "1", "C": "3"}


def test_every_word_and_variable_has_its_line(tmp_path: Path) -> None:
    script = 'export A=1\nARGS=(\n  --layers 3\n  --heads 4\n)\nif true; then\n  python train.py "${ARGS[@]}"\nfi\n'
    (found,) = trainings(tmp_path, script)
    at = [place.rpartition(":")[2] for place in found.at]
    assert (at, found.variables_at["A"]) == (["7", "7", "3", "3", "4", "4"], f"{tmp_path / 'launch.sh'}:1")


def test_a_loop_over_hosts_is_one_training_and_a_sweep_is_several(tmp_path: Path) -> None:
    same = "for r in 0 1; do NODE_RANK=$r torchrun --node_rank $r pretrain_gpt.py & done; wait"
    assert len(trainings(tmp_path, same)) == 1
    sweep = "for tp in 1 2 4; do python train.py --tp $tp; done"
    assert [each.name for each in trainings(tmp_path, sweep)] == ["--tp 1", "--tp 2", "--tp 4"]


def test_arguments_variables_and_paths_reach_the_script(tmp_path: Path) -> None:
    script = 'set -u\n[ -d /data/c4 ] && [ -f /i.sqsh ] || exit 3\npython train.py $MODEL "$1" "$2"'
    (found,) = trainings(tmp_path, script, "a b", "K=v", variables={"MODEL": "7b"}, existing=["/data/c4/", "/i.sqsh"])
    assert found.argv == ["python", "train.py", "7b", "a b", "K=v"]


def test_placeholders_are_filled_by_variables(tmp_path: Path) -> None:
    script = """DATA_PATH=<path and file prefix>_text
export OUT=<folder> # of checkpoints
IN=<folder> (e.g., /in)
python train.py \\
  $DATA_PATH $OUT $IN
"""
    values = {"DATA_PATH": "/data/a b", "OUT": "/out", "IN": "/in"}
    (found,) = trainings(tmp_path, script, variables=values)
    assert found.argv == ["python", "train.py", "/data/a", "b", "/out", "/in"]
    assert trainings(tmp_path, script, variables={"OUT": "/out"}) == []
    assert [(name, line) for name, line, _ in placeholders.left(script, {"OUT": "/out"})] == [
        ("DATA_PATH", 1),
        ("IN", 3),
    ]


def test_what_a_script_asks_for_is_said(tmp_path: Path) -> None:
    sandboxed_or_skip()
    asks = {
        "A=<path>\npython train.py": "placeholder",
        'if [ -z "$BUCKET" ]; then echo "[ERROR] BUCKET is not set"; exit 1; fi': "missing-variable",
        'echo "Please set WORK_DIR for your checkpoints"; exit 1': "missing-variable",
        "echo this fails; exit 1": "script-failed",
    }
    path = tmp_path / "launch.sh"
    for script, code in asks.items():
        path.write_text(script)
        with pytest.raises(InputError) as caught:
            capture_command.capture(capture_command.CaptureRequest(script=path, yes=True))
        assert [problem.code for problem in caught.value.problems] == [code]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("set -e\ntrue\nls /nowhere/x\necho never", "`ls /nowhere/x` at launch.sh:3 failed with exit status 2"),
        ("set -eu\nf() {\n  false\n}\nf", "`false` at launch.sh:3 failed with exit status 1"),
        ("ls /nowhere\necho go on\nexit 7", "exit code 7: `exit 7` at launch.sh:3 ended it"),
        ("trap 'echo bye; true' EXIT\nset -e\ncat /nowhere\n", "`cat /nowhere` at launch.sh:3 failed"),
        ("set -o pipefail -e\n(exit 9) | cat\n", "at launch.sh:2"),
        ("bash -e inner.sh || exit 5", "`exit 5` at launch.sh:1 ended it"),
        ("set -e\nbash -e inner.sh", "`bash -e inner.sh` at launch.sh:2 failed with exit status 4"),
        ("if true; then\n", "exit code 2, and the script said: launch.sh: line 2: syntax error"),
    ],
)
def test_the_command_that_fails_is_named_with_its_place_status_and_output(
    script: str, words: str, tmp_path: Path
) -> None:
    sandboxed_or_skip()
    (tmp_path / "inner.sh").write_text("echo inner\n(exit 4)\n")
    path = tmp_path / "launch.sh"
    path.write_text(script)
    with pytest.raises(InputError) as caught:
        capture_command.capture(capture_command.CaptureRequest(script=path, yes=True))
    (problem,) = caught.value.problems
    assert problem.code == "script-failed"
    assert words in problem.why
    if "nowhere" in script:
        assert "No such file or directory" in problem.why


def test_the_output_is_shown_of_a_script_that_starts_no_training_and_does_not_fail(tmp_path: Path) -> None:
    sandboxed_or_skip()
    path = tmp_path / "launch.sh"
    path.write_text('srun -l sh -c "python train.py --vocab <VOCAB --layers 3"\ntrue\n')
    with pytest.raises(InputError) as caught:
        capture_command.capture(capture_command.CaptureRequest(script=path, yes=True))
    (problem,) = caught.value.problems
    assert problem.code == "no-training"
    assert "it started srun -l" in problem.why
    assert "VOCAB" in problem.why.partition("the script said")[2]


def test_placeholders_in_the_words_of_a_command_are_named_with_their_lines(tmp_path: Path) -> None:
    sandboxed_or_skip()
    path = tmp_path / "launch.sh"
    path.write_text(
        '# <NOT THIS ONE>\nDATA="<PATH TO DATA>"\nOPTIONS="--vocab <PATH TO vocab.json> --data $DATA"\n'
        'srun -l sh -c "python train.py $OPTIONS"\n'
    )
    with pytest.raises(InputError) as caught:
        capture_command.capture(capture_command.CaptureRequest(script=path, yes=True))
    (problem,) = caught.value.problems
    assert problem.code == "placeholder"
    assert problem.why == "<PATH TO DATA> is not filled in (line 2), and neither are those of lines 3"


def test_variables_that_nothing_sets_are_named(tmp_path: Path) -> None:
    script = (
        "A=1\nread -r LINE < /dev/null\nexport PATH=/x:$PATH\necho $SLURM_JOB_ID ${MAYBE:-1} $A $LINE $1\n"
        "python train.py ${MEGATRON_PARAMS} $SIZES\n"
    )
    notes = [text for text in training.assumed(captured(tmp_path, script)) if "not set" in text]
    assert [note.replace(f"{tmp_path}/", "") for note in notes] == [
        "$MEGATRON_PARAMS, $SIZES are not set, and were empty (launch.sh:5): NAME=value sets one"
    ]
    given = captured(tmp_path, script, variables={"MEGATRON_PARAMS": "--x", "SIZES": "1"})
    assert not any("not set" in text for text in training.assumed(given))


def test_a_folder_for_a_file_that_is_written_is_made(tmp_path: Path) -> None:
    script = "set -e\nOUT=dataset/deep\ncat > $OUT/ds.json <<EOF\n{}\nEOF\npython train.py --c $OUT/ds.json"
    (found,) = trainings(tmp_path, script)
    assert found.argv == ["python", "train.py", "--c", "dataset/deep/ds.json"]


@pytest.mark.parametrize("name", ["python3", "git", "curl"])
def test_programs_of_the_system_by_their_path_are_stood_in_for(name: str, tmp_path: Path) -> None:
    real = shutil.which(name, path="/usr/bin:/usr/local/bin")
    if real is None:
        pytest.skip(f"there is no {name} in /usr")
    found = captured(tmp_path, f"set -e\n{real} train.py --a 1\n")
    assert [call.argv[1:] for call in found.calls if call.argv[0].endswith(name)] == [("train.py", "--a", "1")]
    assert found.ended.exit_code == 0


def test_a_script_that_fails_behind_its_training_is_captured_and_the_failure_is_noted(tmp_path: Path) -> None:
    sandboxed_or_skip()
    path = tmp_path / "launch.sh"
    path.write_text("set -e\npython train.py | tee log\necho ${PIPESTATUS[@]}\nls /nowhere\n")
    said = capture_command.capture(capture_command.CaptureRequest(script=path, yes=True, out=tmp_path / "x.json"))
    assert "the script ended with exit code 2: `ls /nowhere` at launch.sh:4 failed with exit status 2" in said


@pytest.mark.parametrize("script", ["for i in 1\r\ndo\r\n  python train.py\r\ndone\r\n", "A=<x>\r\nexit 1\r\n"])
def test_windows_line_ends_are_those_that_bash_reads(script: str, tmp_path: Path) -> None:
    sandboxed_or_skip()
    path = tmp_path / "launch.sh"
    path.write_bytes(script.encode())
    with pytest.raises(InputError) as caught:
        capture_command.capture(capture_command.CaptureRequest(script=path, yes=True))
    (problem,) = caught.value.problems
    assert (problem.code, "Unix line ends" in problem.fix) == ("carriage-return", True)


def test_a_training_behind_windows_line_ends_has_them_and_a_note_says_so(tmp_path: Path) -> None:
    sandboxed_or_skip()
    path = tmp_path / "launch.sh"
    path.write_bytes(b"for i in 1; do\n  python train.py --a 1\r\ndone\n")
    done = sandboxed.capture(sandboxed.Request(script=path))
    (found,) = training.trainings(done)
    assert found.argv == ["python", "train.py", "--a", "1\r"]
    assert any("end as on Windows" in text for text in training.assumed(done))


def test_bytes_that_are_no_text_are_written_as_such(tmp_path: Path) -> None:
    sandboxed_or_skip()
    (tmp_path / "more.sh").write_bytes(b"B='caf\xe9'\n")
    (tmp_path / "launch.sh").write_bytes(b"A='caf\xe9'\n. ./more.sh\nexport A\npython train.py $B\n")
    done = sandboxed.capture(sandboxed.Request(script=tmp_path / "launch.sh"))
    (found,) = training.trainings(done)
    assert (found.argv[-1], found.environment["A"]) == ("caf\ufffd", "caf\ufffd")
    capture_command.capture(capture_command.CaptureRequest(script=tmp_path / "launch.sh", yes=True, out=tmp_path / "x"))
    assert source.read(tmp_path / "x").root.members["argv"].plain() == ["python", "train.py", "caf\ufffd"]


def test_limits_that_a_script_raises_do_not_end_it(tmp_path: Path) -> None:
    (found,) = trainings(tmp_path, "set -e\nulimit -n 1048576 -l unlimited -u 99999\npython train.py $(ulimit -c)")
    assert found.argv == ["python", "train.py", "0"]


def test_a_script_in_a_hidden_folder_is_there(tmp_path: Path) -> None:
    repository(tmp_path)
    (found,) = trainings(tmp_path, "python train.py", name=".github/run.sh")
    assert found.argv == ["python", "train.py"]


def test_the_repository_around_a_script_is_there_but_nothing_hidden(tmp_path: Path) -> None:
    repository(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "model.sh").write_text("L=12\n")
    (tmp_path / ".env").write_text("TOKEN=1\n")
    script = """cd "$(dirname "$0")/.."
source conf/model.sh
[ -e .env ] || python train.py $L $(git rev-parse --show-toplevel)
"""
    (found,) = trainings(tmp_path, script, name="scripts/launch.sh")
    assert found.argv == ["python", "train.py", "12", str(tmp_path)]


def test_a_link_to_a_hidden_file_is_not_there_and_one_to_another_is(tmp_path: Path) -> None:
    repository(tmp_path)
    (tmp_path / ".env").write_text("TOKEN=1\n")
    (tmp_path / "model.sh").write_text("L=12\n")
    (tmp_path / "secrets.sh").symlink_to(".env")
    (tmp_path / "hooks").symlink_to(".git/config")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "model.sh").symlink_to("../model.sh")
    script = "[ -e secrets.sh ] || [ -e hooks ] || . links/model.sh; python train.py $L $(ls)"
    (found,) = trainings(tmp_path, script)
    assert found.argv == ["python", "train.py", "12", "launch.sh", "links", "model.sh"]


def test_a_captured_configuration_is_read_as_the_command_with_the_scripts_lines(tmp_path: Path) -> None:
    done = captured(
        tmp_path, "export A=1 HF_TOKEN=hf_abcdefgh12345\nL=$((1 + 2))\npython pretrain_gpt.py --num-layers $L\n"
    )
    (found,) = training.trainings(done)
    path = tmp_path / "x.json"
    path.write_text(json.dumps(training.document(done, found)))
    root = source.read(path).root
    assert root.plain() == {"environment": {"A": "1"}, "argv": ["python", "pretrain_gpt.py", "--num-layers", "3"]}
    assert isinstance(root.members["argv"].value, list)
    assert str(root.members["argv"].value[2].mark) == f"{tmp_path / 'launch.sh'}:3:1"
    assert "hf_abcdefgh12345" not in path.read_text()


def test_what_was_assumed_is_said(tmp_path: Path) -> None:
    done = captured(tmp_path, "cd /workspace/x\npython train.py $(nvidia-smi -L | wc -l)")
    first, second = training.assumed(done)
    assert first.startswith("`nvidia-smi` was answered for a node of eight H100")
    assert second == "/workspace/x is not here, and was taken for a folder"


@pytest.mark.parametrize("content", ["[]", "{}", "null", '{"argv": 3}', '{"argv": ["a"], "at": 1}', "[" * 5000])
def test_a_record_that_a_script_forges_is_left_out(content: str, tmp_path: Path) -> None:
    records = "/seatrial/records"
    script = f"printf '%s' '{content}' > {records}/0.json\nln -s /etc/passwd {records}/1.json\npython train.py"
    assert [each.argv for each in trainings(tmp_path, script)] == [["python", "train.py"]]


def test_a_script_may_replace_its_record_by_links_and_nothing_is_read_through_them(tmp_path: Path) -> None:
    script = "rm -rf /seatrial/records /seatrial/trace; ln -s /usr /seatrial/records; ln -s /etc/shadow /seatrial/trace"
    done = captured(tmp_path, script)
    assert (list(done.calls), "root:" in str(done.steps)) == ([], False)


def test_nodes_that_slurm_would_say_are_those_of_the_job(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#SBATCH --time=1:00\nsrun python train.py --n $SLURM_JOB_NUM_NODES\n"
    (found,) = trainings(tmp_path, script, variables={"SLURM_JOB_NUM_NODES": "8"})
    assert "--nodes=8" in found.argv
    assert found.argv[-1] == "8"


def test_a_script_that_a_text_sources_and_that_is_not_here_is_an_empty_file(tmp_path: Path) -> None:
    done = captured(tmp_path, "bash -c 'source /elsewhere/env.sh && python train.py'\n")
    assert [(each.path, each.kind) for each in done.missing] == [("/elsewhere/env.sh", "file")]
    assert any(call.argv[-1] == "train.py" for call in done.calls)
