"""Keys that a system has in some versions only, and those that only it knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seatrial.commands.check import ConfigArguments
from seatrial.commands.check import read as read_checked
from seatrial.dialects import load
from seatrial.dialects.explain import table
from seatrial.dialects.megatron.settings import ALL
from seatrial.dialects.table.versions import contradiction, in_order, versions
from seatrial.errors import Problem
from seatrial.spec import RunSpec
from tests.helpers.megatron_commands import LEAST

MAXTEXT = "python3 -m maxtext.trainers.pre_train.train base.yml model_name=llama2-7b steps=5 topology.device=h100"


def read(tmp_path: Path, command: str, engine: str = "") -> tuple[RunSpec | None, dict[str, Problem]]:
    path = tmp_path / "launch.sh"
    path.write_text(f"{command}\n", encoding="utf-8")
    resolved = load(path, [], action="plan", engine=engine)
    return resolved.spec, {f"{problem.code} {problem.path}": problem for problem in resolved.problems}


def megatron(tmp_path: Path, more: str, engine: str = "") -> tuple[RunSpec | None, dict[str, Problem]]:
    return read(tmp_path, f"torchrun pretrain_gpt.py {LEAST} {more}", engine)


def test_an_argument_that_only_megatron_has_is_a_warning_and_goes_to_it(tmp_path: Path) -> None:
    spec, found = megatron(tmp_path, "--add-skipping --async-strategy nvrx --tp-comm-overlap-cfg x.yaml")
    assert spec is not None
    assert found["not-known-here --add-skipping"].severity == "warning"
    assert "since core 0.18" in found["not-known-here --add-skipping"].why
    assert "--engine megatron" in found["not-known-here --add-skipping"].fix
    assert spec.execution.engine_keys.items() >= {"--add-skipping": "", "--async-strategy": "nvrx"}.items()


def test_with_its_own_engine_it_is_a_note(tmp_path: Path) -> None:
    spec, found = megatron(tmp_path, "--add-skipping --num-experts 8 --qk-layernorm", "megatron")
    assert spec is not None
    assert {p.severity for p in found.values() if p.code == "only-of-engine"} == {"info"}
    assert spec.execution.engine_keys == {"--add-skipping": "", "--num-experts": "8", "--qk-layernorm": ""}


def test_without_it_what_is_not_supported_is_refused_with_the_way_out(tmp_path: Path) -> None:
    spec, found = megatron(tmp_path, "--num-experts 8")
    assert spec is None
    assert found["not-supported --num-experts"].fix == "remove --num-experts, or run it with --engine megatron"


def test_an_argument_that_is_gone_and_one_that_came_later(tmp_path: Path) -> None:
    _, found = megatron(tmp_path, "--delay-param-gather")
    assert "gone since core 0.9" in found["removed-key --delay-param-gather"].why
    _, found = megatron(tmp_path, "--delay-param-gather --add-skipping")
    why = found["versions --delay-param-gather"].why
    assert "--add-skipping: not before core 0.18" in why
    assert "--delay-param-gather: gone since core 0.9" in why


def test_an_argument_of_a_fork_goes_to_it_and_one_that_is_misspelt_does_not(tmp_path: Path) -> None:
    spec, found = megatron(tmp_path, "--zigzag-quux a b --use-mpi", "megatron")
    assert spec is not None
    assert found["unknown-argument --zigzag-quux"].severity == "warning"
    assert spec.execution.engine_keys == {"--zigzag-quux": "a b", "--use-mpi": ""}
    spec, found = megatron(tmp_path, "--num-layerss 3", "megatron")
    assert spec is None
    assert found["unknown-argument --num-layerss"].severity == "error"


@pytest.mark.parametrize(
    "word",
    ["--wandb-name", "--wandb-id", "--lr-decay-tokens", "--train-tokens", "--rope-theta", "--use-mpi", "--hf-save"],
)
def test_a_name_of_other_tools_goes_to_a_fork_though_it_looks_like_a_known_one(word: str, tmp_path: Path) -> None:
    spec, found = megatron(tmp_path, f"{word} x", "megatron")
    assert spec is not None
    assert found[f"unknown-argument {word}"].severity == "warning"
    assert spec.execution.engine_keys[word] == "x"
    spec, found = megatron(tmp_path, f"{word} x")
    assert spec is None
    assert "--engine megatron" in found[f"unknown-argument {word}"].fix


@pytest.mark.parametrize(
    "word",
    ["--num_layers", "--seq-lenght", "--wandb-projekt", "--tensor-model-parallel-sizes", "--Seed", "--save-intervall"],
)
def test_a_mistake_or_two_are_a_typing_error_whatever_trains(word: str, tmp_path: Path) -> None:
    for engine in ("", "megatron"):
        _, found = megatron(tmp_path, f"{word} 3", engine)
        assert found[f"unknown-argument {word}"].severity == "error"


def test_an_argument_of_the_megatron_that_forks_come_from_is_known(tmp_path: Path) -> None:
    spec, found = megatron(tmp_path, "--no-query-key-layer-scaling", "megatron")
    assert spec is not None
    assert "gone since core 0.4" in found["removed-key --no-query-key-layer-scaling"].why


@pytest.mark.parametrize(
    ("options", "nodes", "each"), [("-np 16 --npernode 8 -x A=1", 2, 8), ("-n 4 -bind-to none", 1, 4), ("-x A", 1, 1)]
)
def test_mpirun_says_how_many_devices_there_are(options: str, nodes: int, each: int, tmp_path: Path) -> None:
    spec, _ = read(tmp_path, f"mpirun {options} python pretrain_gpt.py {LEAST}")
    assert spec is not None
    assert (spec.topology.num_nodes, spec.topology.devices_per_node) == (nodes, each)


def test_a_word_that_is_left_over_is_told_with_the_argument_before_it(tmp_path: Path) -> None:
    _, found = megatron(tmp_path, "--step-batch-size-schedule 0:16 2B:32 --bf16 yes")
    assert "--step-batch-size-schedule before it takes one value" in found["stray-word 2B:32"].why
    assert '"${ARGS[@]}"' in found["stray-word 2B:32"].fix
    assert "--bf16 before it takes none" in found["stray-word yes"].why


def test_what_seatrials_own_trainer_lacks_is_no_matter_to_another(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    given = "--fp16 --cp-comm-type a2a --lr-decay-style inverse-square-root"
    path.write_text(f"torchrun pretrain_gpt.py {LEAST} {given}\n")
    ours = {"not-supported-yet", "nearest-strategy", "schedule-differs"}
    for engine, expected in ((None, ours), ("native", ours), ("megatron", set())):
        problems = read_checked(ConfigArguments(config=path), action="plan", engine=engine).problems
        assert ours & {problem.code for problem in problems} == expected


def test_a_name_that_no_version_has_stays_an_error(tmp_path: Path) -> None:
    spec, found = megatron(tmp_path, "--add-skiping")
    assert spec is None
    assert found["unknown-argument --add-skiping"].severity == "error"


def _unknown_here() -> Iterator[tuple[str, str]]:
    for name, each in versions("megatron").items():
        if name not in ALL:
            yield name, {"": "", "=": " 3", "*": " 3 4", "?": " 3"}[each.values]


def test_every_argument_of_every_version_is_read_with_its_values(tmp_path: Path) -> None:
    given = dict(_unknown_here())
    assert len(given) > 300
    spec, found = megatron(tmp_path, " ".join(f"--{name}{values}" for name, values in given.items()))
    assert spec is not None, [(p.path, p.why) for p in found.values() if p.severity == "error"]
    assert spec.execution.engine_keys == {f"--{name}": values.strip() for name, values in given.items()}


@pytest.mark.parametrize("engine", ["", "maxtext"])
def test_a_key_that_only_maxtext_has(tmp_path: Path, engine: str) -> None:
    spec, found = read(tmp_path, f"{MAXTEXT} algo=grpo steps_of=1", engine)
    assert found["unknown-key steps_of"].severity == "error"
    spec, found = read(tmp_path, f"{MAXTEXT} algo=ppo", engine)
    assert spec is not None
    assert spec.execution.engine_keys == {"algo": "ppo"}
    assert ("only-of-engine algo" if engine else "not-known-here algo") in found


def test_versions_sort_by_number_and_days_come_after_releases() -> None:
    assert sorted(["0.11", "2026-08-22", "0.9", "0.8"], key=in_order) == ["0.8", "0.9", "0.11", "2026-08-22"]


def test_keys_that_some_version_has_together_do_not_contradict() -> None:
    known = versions("megatron")
    assert contradiction(known, {"add-skipping": "--add-skipping"}, "") == ""
    assert contradiction(known, {"delay-param-gather": "--delay-param-gather"}, "") == ""


@pytest.mark.parametrize("dialect", ["maxtext", "megatron"])
def test_a_table_is_of_all_the_years(dialect: str) -> None:
    found = versions(dialect)
    assert len(found) > 900
    assert sum(not each.since and not each.gone for each in found.values()) > 50
    assert all(in_order(e.since) < in_order(e.gone) for e in found.values() if e.since and e.gone)


def test_keys_of_a_base_file_that_is_a_forks_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = "use_kd: False\nkd_alpha: 0.5\nsteps: 9\nlearning_rate: 1.e-3\n"
    (tmp_path / "base.yml").write_text(base, encoding="utf-8")
    command = f"{MAXTEXT} use_kd=True"
    spec, found = read(tmp_path, command)
    assert spec is not None
    assert (spec.steps, spec.optimizer.learning_rate) == (5, 1e-3)
    assert (found["key-of-fork use_kd"].severity, found["not-known-here use_kd"].severity) == ("info", "warning")
    assert "kd_alpha" in found["key-of-fork use_kd"].why
    assert "use_kd" in spec.execution.engine_keys
    assert "kd_alpha" not in spec.execution.engine_keys
    _, found = read(tmp_path, f"{command} use_kdd=3", "maxtext")
    assert "only-of-engine use_kd" in found
    assert found["unknown-key use_kdd"].severity == "error"


@pytest.mark.parametrize(("tokenizer", "size"), [
    ("--vocab-file /v/gpt2.json --merge-file /v/merges.txt", 50_257),
    ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model someone/tokenizer", 128_256),
])  # fmt: skip
def test_the_vocabulary_of_a_tokenizer_that_only_megatron_can_read(tmp_path: Path, tokenizer: str, size: int) -> None:
    path = tmp_path / "launch.sh"
    given = LEAST.replace("--tokenizer-type NullTokenizer --vocab-size 999", tokenizer)
    path.write_text(f"torchrun pretrain_gpt.py {given}\n", encoding="utf-8")
    resolved = load(path, [], action="plan", engine="megatron")
    assert resolved.spec is not None, resolved.problems
    assert resolved.spec.model.vocab_size == size
    unsure = [problem.severity for problem in resolved.problems if problem.code == "unknown-vocabulary"]
    assert unsure == ([] if size == 50_257 else ["warning"])


def test_keys_that_nxdt_has_no_more_and_versions_that_none_has_together(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "configs/nxdt/llama3-8b-dpo.yaml").read_text(encoding="utf-8")
    older = text.replace(" max_prompt_length:", " max_dpo_prompt_length:")
    path = tmp_path / "run.yaml"
    newer = ["distributed_strategy.context_parallel_size=1"]
    for given, words, codes in ((text, newer, set()), (older, [], {"removed-key"}), (older, newer, {"versions"})):
        path.write_text(given, encoding="utf-8")
        found = {problem.code: problem for problem in load(path, words, action="plan").problems}
        assert codes <= found.keys()
        assert codes or not {"removed-key", "versions"} & found.keys()
    assert "context_parallel_size: not before 1.3.0" in found["versions"].why
    assert "max_dpo_prompt_length: gone since 1.3.0" in found["versions"].why


@pytest.mark.parametrize(("dialect", "modules"), [("nxdt", ("nxdt",)), ("cvs", ("cvs.jax", "cvs.megatron"))])
def test_a_table_has_only_keys_that_are_known_here(dialect: str, modules: tuple[str, ...]) -> None:
    known = {name for module in modules for name in table(module)}
    assert 100 < len(versions(dialect)) <= len(known)
    assert versions(dialect).keys() <= known
