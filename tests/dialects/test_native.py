"""Native configurations: RunSpec's fields by their names, and everything that can be wrong with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from seatrial import dialects, source
from seatrial.check import lint
from seatrial.dialects import native, yaml_writer
from seatrial.errors import InputError
from seatrial.records.paths import find_files
from seatrial.report.problems import render_text
from seatrial.spec import Batch, ModelSpec, Resolved, RunSpec, to_dict
from seatrial.spec.presets import MODELS
from tests.helpers.seeds import COMPLETE, ROOT, SEEDS
from tests.helpers.specs import assert_round_trip, specs

NATIVE = ROOT / "configs" / "native"
TINY = NATIVE / "tiny-text.json"
SMALL = {
    "model": "llama3.2-1b",
    "batch": {"sequence_length": 128, "global_batch_size": 4, "micro_batch_size": 4},
    "steps": 10,
}


def load(path: Path, *overrides: str, **flags: str) -> Resolved:
    return dialects.load(path, overrides, **({"action": "run", "model": None, "gpu": None} | flags))


def write(folder: Path, data: Any, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(data) if name.endswith("json") else yaml.safe_dump(data))
    return path


def spec_of(resolved: Resolved) -> RunSpec:
    assert resolved.problems == ()
    assert resolved.spec is not None
    return resolved.spec


@pytest.mark.parametrize("path", sorted(NATIVE.iterdir()), ids=lambda path: path.name)
def test_every_shipped_example_is_clean(path: Path) -> None:
    resolved = lint(load(path), action="run")
    assert spec_of(resolved).name == path.stem


@pytest.mark.parametrize("ending", ["json", "yaml"])
@pytest.mark.parametrize("path", [*SEEDS, *sorted(NATIVE.iterdir())], ids=lambda path: path.stem)
def test_any_spec_can_be_written_as_a_native_configuration(path: Path, ending: str, tmp_path: Path) -> None:
    spec = dialects.load(path, COMPLETE.get(path, ()), action="run").spec
    assert spec is not None
    data = json.loads(json.dumps(to_dict(spec)))
    del data["dialect"]
    again = spec_of(load(write(tmp_path, data, f"config.{ending}")))
    assert again == replace(spec, dialect="native")


def test_what_has_a_default_may_be_left_out(tmp_path: Path) -> None:
    spec = spec_of(load(write(tmp_path, SMALL, "my run.json")))
    assert spec.model == MODELS["llama3.2-1b"]
    assert spec.name == "my-run"
    assert spec.optimizer == RunSpec(name="", dialect="", model=spec.model, batch=spec.batch, steps=1).optimizer


def test_a_model_may_start_from_a_preset_or_from_nothing(tmp_path: Path) -> None:
    data = SMALL | {"model": {"preset": "llama3.1-8b", "num_layers": 2, "rope_scaling": None}}
    model = spec_of(load(write(tmp_path, data))).model
    changed = replace(MODELS["llama3.1-8b"], name="llama3.1-8b-changed", num_layers=2, rope_scaling=None)
    assert model == changed
    fields = {"vocab_size": 256, "hidden_dim": 64, "num_layers": 1, "num_heads": 4, "num_kv_heads": 4, "head_dim": 16}
    data = SMALL | {"model": fields | {"ffn_dim": 128, "rope_scaling": {"factor": 4.0}}}
    model = spec_of(load(write(tmp_path, data))).model
    assert (model.name, model.rope_scaling.factor if model.rope_scaling else None) == ("custom", 4.0)


def test_origins_are_the_user_s_keys_and_places() -> None:
    resolved = load(TINY, "steps=5", "data.paths=README.md")
    lines = TINY.read_text(encoding="utf-8").splitlines()
    for path, origin in resolved.origins.items():
        if origin.kind == "file" and origin.text:
            assert origin.mark is not None
            assert origin.text in lines[origin.mark.line - 1][origin.mark.column - 1 :]
            assert origin.key == path
    assert (resolved.origin("steps").kind, resolved.origin("steps").text) == ("override", "5")
    assert resolved.origin("optimizer.beta1").kind == "default"


# --- overrides --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("steps=7", "steps", 7),
        ("learning_rate=1e-3", "optimizer.learning_rate", 1e-3),
        ("optimizer.weight_decay=0", "optimizer.weight_decay", 0.0),
        ("clip_norm=null", "optimizer.clip_norm", None),
        ("zero1=true", "parallelism.zero1", True),
        ("within_node.fsdp=2", "parallelism.within_node.fsdp", 2),
        ("compute_dtype=bfloat16", "precision.compute_dtype", "bfloat16"),
        ("name=run-7", "name", "run-7"),
        ("name=7", "name", "7"),
        ("paths=a.txt", "data.paths", ("a.txt",)),
        ("execution.remat_kept=query, key", "execution.remat_kept", ("query", "key")),
        ("paths=a,b.txt", "data.paths", ("a,b.txt",)),
        ('paths=["a.txt", "b.txt"]', "data.paths", ("a.txt", "b.txt")),
        ("model=llama3.1-8b", "model", MODELS["llama3.1-8b"]),
        ("hidden_dim=256", "model.hidden_dim", 256),
        ("device=MI300X", "topology.device", "mi300x"),
        ("execution.environment.A.B=x", "execution.environment", {"A.B": "x"}),
        ("xla_flags.xla_gpu_autotune_level=4", "execution.xla_flags", {"xla_gpu_autotune_level": "4"}),
        ("container.image=x/y:1", "container.image", "x/y:1"),
        ('expectations=[{"metric": "mfu", "value": 0.4}]', "expectations.0.value", 0.4),
    ],
)
def test_an_override_reaches_the_spec(override: str, path: str, value: Any) -> None:
    got: Any = spec_of(load(TINY, override, action="plan"))
    for part in path.split("."):
        got = got[int(part)] if part.isdigit() else getattr(got, part)
    assert got == value


def test_an_override_with_words_of_a_list_has_no_others() -> None:
    resolved = load(TINY, "execution.remat_kept=qurey,key", action="plan")
    (finding,) = [problem for problem in resolved.problems if problem.severity == "error"]
    assert (finding.code, finding.path, finding.fix) == ("bad-value", "execution.remat_kept.0", "did you mean query?")


def test_a_model_given_by_name_can_be_changed_by_overrides_and_flags(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL)
    assert spec_of(load(path, "model.num_layers=2")).model.num_layers == 2
    spec = spec_of(load(path, "num_layers=3", model="llama3.1-8b", gpu="h100"))
    assert (spec.model.hidden_dim, spec.model.num_layers, spec.topology.device) == (4096, 3, "h100-sxm")


# --- what can be wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "path", "code", "said"),
    [
        ({"stepz": 3}, "stepz", "unknown-key", "did you mean steps?"),
        ({"optimizer": {"lr": 1}}, "optimizer.lr", "unknown-key", ""),
        ({"optimizer": {"learningrate": 1}}, "optimizer.learningrate", "unknown-key", "optimizer.learning_rate"),
        ({"steps": "10"}, "steps", "bad-value", "is text, not a whole number"),
        ({"steps": 1.5}, "steps", "bad-value", "not a whole number"),
        ({"steps": 0}, "steps", "bad-value", "less than 1"),
        ({"steps": True}, "steps", "bad-value", "not a whole number"),
        ({"steps": {}}, "steps", "bad-value", "a mapping is not"),
        ({"name": 7}, "name", "bad-value", "put it in quotes"),
        ({"name": "../x"}, "name", "bad-value", "is not a name"),
        ({"seed": -1}, "seed", "bad-value", "less than 0 give a whole number from 0 to 2147483647"),
        ({"batch": 3}, "batch", "bad-value", "is not a mapping"),
        ({"batch": {}}, "batch.sequence_length", "missing-key", "required"),
        ({"model": "llama9"}, "model", "unknown-model", "is no preset"),
        ({"model": 3}, "model", "unknown-model", "is no preset"),
        ({"model": None}, "model", "unknown-model", "is no preset"),
        ({"model": {"preset": "llama3.1-80b"}}, "model.preset", "unknown-model", "did you mean llama3.1-8b"),
        ({"model": {"hidden_dim": 64}}, "model.vocab_size", "missing-key", "required"),
        ({"optimizer": {"learning_rate": "3e-4"}}, "optimizer.learning_rate", "bad-value", "is text, not a number"),
        ({"optimizer": {"learning_rate": 0}}, "optimizer.learning_rate", "bad-value", "not above 0"),
        (
            {"optimizer": {"beta1": 2}},
            "optimizer.beta1",
            "bad-value",
            "not less than 1 give a number from 0 to less than 1",
        ),
        ({"precision": {"compute_dtype": "fp8"}}, "precision.compute_dtype", "bad-value", "float32, bfloat16"),
        ({"parallelism": {"within_node": {"fsdp": 0}}}, "parallelism.within_node.fsdp", "bad-value", "nor -1"),
        ({"parallelism": {"zero1": "true"}}, "parallelism.zero1", "bad-value", "is text, not true or false"),
        ({"parallelism": {"zero1": 1}}, "parallelism.zero1", "bad-value", "neither true nor false"),
        ({"execution": {"remat": "some"}}, "execution.remat", "bad-value", "one of none, full"),
        ({"execution": {"environment": ["A"]}}, "execution.environment", "bad-value", "is not a mapping"),
        ({"execution": {"environment": {"A": []}}}, "execution.environment.A", "bad-value", "is not text"),
        ({"data": {"paths": "x"}}, "data.paths", "bad-value", "is not a list"),
        ({"dropout": {"hidden": 1}}, "dropout.hidden", "bad-value", "not less than 1"),
        ({"evaluation": {"initial_batches": -2}}, "evaluation.initial_batches", "bad-value", "nor -1"),
        ({"data": {"weights": [1, "2"]}}, "data.weights.1", "bad-value", "is text, not a number"),
        ({"data": {"weights": [-1]}}, "data.weights.0", "bad-value", "less than 0"),
        ({"data": {"kind": "csv"}}, "data.kind", "bad-value", "one of synthetic, text"),
        ({"data": {"paths": [1]}}, "data.paths.0", "bad-value", "put it in quotes"),
        ({"container": {"image": "x", "volumes": [["a"]]}}, "container.volumes.0", "bad-value", "not a pair"),
        ({"expectations": [{"metric": "speed", "value": 1}]}, "expectations.0.metric", "bad-value", "one of tflops"),
        (
            {"expectations": [{"metric": "mfu", "value": 1, "tolerance": 1}]},
            "expectations.0.tolerance",
            "bad-value",
            "not less than 1 give a number from 0 to less than 1, or null",
        ),
        (
            {"expectations": [{"metric": "mfu", "value": 1, "tolerance": -0.1}]},
            "expectations.0.tolerance",
            "bad-value",
            "less than 0",
        ),
        ({"seed": 2**31}, "seed", "bad-value", "give a whole number from 0"),
        ({"steps": -3}, "steps", "bad-value", "give a whole number from 1 on"),
        ({"expectations": [3]}, "expectations.0", "bad-value", "is not a mapping"),
        ({"topology": {"device": "x9000"}}, "topology.device", "bad-value", "no known device"),
        ({"dialect": "x"}, "dialect", "unknown-key", ""),
    ],
)
def test_what_is_wrong_is_said_at_its_place(
    change: dict[str, Any], path: str, code: str, said: str, tmp_path: Path
) -> None:
    file = write(tmp_path, SMALL | change)
    resolved = load(file)
    assert resolved.spec is None
    finding = next(problem for problem in resolved.problems if problem.path == path)
    assert (finding.severity, finding.code) == ("error", code)
    assert said in f"{finding.why} {finding.fix}"
    assert finding.mark is not None
    rest = file.read_text()[finding.mark.column - 1 :]
    key = path.rpartition(".")[2]
    value: Any = SMALL | change
    for part in path.split(".")[: -1 if code == "missing-key" else None]:
        value = value[int(part)] if part.isdigit() else value[part]
    assert rest.startswith(json.dumps(key if code == "unknown-key" else value))


@pytest.mark.parametrize(
    ("pattern", "is_there"),
    [
        ("stdlib:this.py", True),
        ("stdlib:json/*.py", True),
        ("stdlib:no_such_module.py", False),
        ("~/corpus.txt", True),
        ("~nobody-of-this-name/corpus.txt", False),
        ("HERE/corpus.txt", True),
        ("HERE/**/*.txt", True),
        ("HERE/*.md", False),
        ("HERE", False),  # a folder
        ("/nonexistent/*", False),
        ("a\0b", False),
        ("", False),
    ],
)
def test_files_to_learn_from_must_be_there_as_the_trainer_looks_for_them(
    pattern: str, is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "corpus.txt").write_text("text")
    pattern = pattern.replace("HERE", str(tmp_path))
    file = write(tmp_path, SMALL | {"data": {"kind": "text", "paths": ["stdlib:os.py", pattern]}})
    findings = load(file).problems
    assert [(finding.code, finding.path) for finding in findings] == (
        [] if is_there else [("no-such-file", "data.paths.1")]
    )
    for finding in findings:
        assert finding.mark is not None
        assert file.read_text()[finding.mark.column - 1 :].startswith(json.dumps(pattern))
    assert dialects.load(file, (), action="plan").problems == ()
    if is_there:
        assert find_files([pattern])
    else:
        with pytest.raises((ValueError, RuntimeError)):
            find_files([pattern])


@pytest.mark.parametrize(
    ("data", "missing"),
    [
        ({"kind": "megatron", "paths": ["HERE/a", "HERE/a.bin", "HERE/b"]}, ["data.paths.2"]),
        ({"kind": "arrow", "paths": ["HERE", "HERE/no"]}, ["data.paths.1"]),
        ({"kind": "records", "paths": ["HERE/a.*"], "tokenizer": "HERE"}, []),
        ({"kind": "records", "paths": ["HERE/a.*"], "tokenizer": "meta-llama/Llama-2-7b-hf"}, ["data.tokenizer"]),
        ({"kind": "huggingface", "dataset": "HERE"}, []),
        ({"kind": "huggingface", "dataset": "allenai/c4"}, ["data.dataset"]),
        ({"kind": "huggingface", "dataset": "allenai/c4", "paths": ["HERE/a.bin"]}, []),
        ({"kind": "synthetic", "tokenizer": "nowhere"}, []),
    ],
)
def test_what_a_run_learns_with_is_looked_for_before_it_starts(
    data: dict[str, Any], missing: list[str], tmp_path: Path
) -> None:
    for name in ("a.bin", "a.idx", "b.bin", "tokenizer.json"):
        (tmp_path / name).write_text("")
    text = json.dumps(SMALL | {"data": data}).replace("HERE", str(tmp_path))
    (tmp_path / "run.json").write_text(text)
    for action in ("run", "train", "check", "rehearse", "plan"):
        found = [p.path for p in dialects.load(tmp_path / "run.json", (), action=action).problems]
        assert found == (missing if action in ("run", "train") else [])


def test_everything_wrong_is_told_in_one_go(tmp_path: Path) -> None:
    data = {"model": {"preset": "x", "num_layers": 0}, "batch": {"sequence_length": "a"}, "x": 1}
    paths = {problem.path for problem in load(write(tmp_path, data)).problems}
    assert paths == {
        "model.preset", "model.num_layers", "batch.sequence_length", "batch.global_batch_size",
        "batch.micro_batch_size", "x", "steps",
    }  # fmt: skip


@settings(max_examples=200)
@given(data=st.data())
def test_no_native_configuration_ends_in_a_traceback(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tree = json.loads(TINY.read_text(encoding="utf-8"))
    parts = [(tree, key) for key in tree] + [
        (below, key) for below in tree.values() if isinstance(below, dict) for key in below
    ]
    for parent, key in data.draw(st.lists(st.sampled_from(parts), max_size=4)):
        scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
        parent[key] = data.draw(
            scalars | st.sampled_from([[], {}, [[]], {"preset": []}, "llama3.1-8b", [None], {"": {}}])
        )
    path = write(tmp_path_factory.getbasetemp(), tree, "mutated.json")
    override = data.draw(st.text(max_size=6)) + "=" + data.draw(st.text(max_size=6))
    try:
        problems = lint(load(path, override), action="run").problems
    except InputError as error:
        problems = error.problems
    assert render_text(problems)


def test_a_model_of_nobody_keeps_its_numbers(tmp_path: Path) -> None:
    data = SMALL | {"model": {"name": "llama3.1-8b", "preset": "llama3.1-8b", "ffn_dim": 1024}}
    resolved = lint(load(write(tmp_path, data)), action="run")
    (finding,) = resolved.problems
    assert (finding.severity, finding.code, finding.path) == (
        "warning", "architecture-contradicts-name", "model.ffn_dim",
    )  # fmt: skip
    assert resolved.spec is not None
    assert isinstance(resolved.spec.model, ModelSpec)
    assert resolved.spec.model.ffn_dim == 1024


# --- writing ----------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(spec=specs())
def test_what_is_written_reads_back_the_same(spec: RunSpec) -> None:
    written = assert_round_trip(native.write, native.read, spec)
    assert written.notes == ()


@pytest.mark.parametrize("path", sorted(NATIVE.iterdir()), ids=lambda path: path.name)
def test_an_example_is_written_as_it_would_be_by_hand(path: Path) -> None:
    """Nothing that has a default is in the text, and a preset is called by its name."""
    spec = spec_of(load(path, action="plan"))
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    written = yaml.safe_load(native.write(spec).text)
    assert written["model"] == given["model"]
    assert written.keys() <= given.keys() | {"name"}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_written_as_its_preset_with_what_is_changed(name: str) -> None:
    def written(model: ModelSpec) -> Any:
        batch = Batch(sequence_length=8, global_batch_size=1, micro_batch_size=1)
        spec = RunSpec(name="x", dialect="", model=model, batch=batch, steps=1)
        return yaml.safe_load(native.write(spec).text)["model"]

    preset = MODELS[name]
    assert written(preset) == name
    changed = replace(preset, name="mine", num_layers=3)
    assert written(changed) == {"preset": written(changed)["preset"], "name": "mine", "num_layers": 3}


@settings(max_examples=300)
@given(
    data=st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(), below, max_size=4),
            max_leaves=12,
        ),
        max_size=4,
    )
)
def test_yaml_reads_back_as_the_data_that_was_written(data: dict[str, Any]) -> None:
    text = yaml_writer.dump(data)
    assert source.parse(text, file="x.yaml", is_json=False).root.plain() == data
    assert yaml.safe_load(text) == data  # YAML 1.1 sees the same
