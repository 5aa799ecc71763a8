"""The JSON Schemas: real files keep to them, damaged ones do not, and what they let through our own readers read."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import seatrial
from seatrial import contracts, dialects, events, logs, metrics, verdict
from seatrial import spec as specs_of_runs
from seatrial.contracts import NAMES
from seatrial.errors import InputError
from seatrial.plan import without_secrets
from seatrial.spec import RunSpec
from tests.helpers.command_line import seatrial as command_line
from tests.helpers.seeds import COMPLETE, SINGLE_MI300X
from tests.helpers.specs import specs
from tests.helpers.tiny_runs import TINY, TWO_PROCESSES, write_config

ROOT = Path(__file__).parents[2]
GOLDENS = sorted((ROOT / "tests" / "logs").glob("*/*/expected.json"))
RECIPE = ROOT / "configs" / "native" / "recipe-llama2-70b-h100.yaml"
Json = dict[str, Any]


@cache
def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(contracts.schema(name))


def faults(name: str, document: Any) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in validator(name).iter_errors(document)]


def plain(data: Any) -> Any:
    """As it comes back from a file."""
    return json.loads(json.dumps(data, allow_nan=False))


# --- the schemas themselves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_one_with_name_and_version(name: str) -> None:
    made = contracts.schema(name)
    Draft202012Validator.check_schema(made)
    assert made["$id"] == f"urn:seatrial:{name}:v1"
    assert made["title"].endswith("(Seatrial, version 1)")


@pytest.mark.parametrize("name", NAMES)
def test_the_command_prints_it(name: str, tmp_path: Path) -> None:
    assert json.loads(command_line("schema", name, cwd=tmp_path).stdout) == contracts.schema(name)


def test_without_a_name_it_is_that_of_native_configurations(tmp_path: Path) -> None:
    assert json.loads(command_line("schema", cwd=tmp_path).stdout) == contracts.schema("native")
    wrong = command_line("schema", "verdicts", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "'verdict'" in wrong.stderr
    with pytest.raises(InputError, match="there is no 'verdicts'"):
        contracts.schema("verdicts")


def _objects(node: Any, path: str = "$") -> Iterator[tuple[str, Json]]:
    """Every object with fields in a schema, and its place."""
    if isinstance(node, dict):
        if isinstance(node.get("properties"), dict):
            yield path, node
        for key, value in node.items():
            yield from _objects(value, f"{path}.{key}")
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _objects(value, f"{path}.{number}")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "native"])
def test_everything_in_it_is_described(name: str) -> None:
    lacks = []
    for path, found in _objects(contracts.schema(name)):
        lacks += [f"{path}.{field}" for field, value in found["properties"].items() if not value.get("description")]
    lacks = [place for place in lacks if not place.startswith(("$.$defs.Native", "$.$defs.CVS"))]  # by the keys' table
    assert lacks == []


# --- files that are right ---------------------------------------------------------------------------------------------


def _golden(path: Path) -> list[events.Event]:
    """The events of a golden file, which leaves out what every event has; those of faults are read from their log."""
    if path.parent.parent.name == "faults":
        return list(logs.read([path.with_name("log.txt")]))
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [events.loads(json.dumps({"v": 1, "monotonic_time": 0.0, **row})) for row in rows]


@pytest.mark.parametrize("family", sorted({path.parent.parent.name for path in GOLDENS}))
def test_every_golden_of_a_log_keeps_to_it(family: str) -> None:
    """Its events, and the metrics and the verdict that they amount to."""
    found = []
    for path in (path for path in GOLDENS if path.parent.parent.name == family):
        record = _golden(path)
        measured = metrics.measure(record, None)
        judged = verdict.judge(measured, None, rehearsal="")
        found += [(path, fault) for event in record for fault in faults("event", json.loads(events.dumps(event)))]
        found += [(path, fault) for fault in faults("metrics", plain(metrics.to_dict(measured)))]
        found += [(path, fault) for fault in faults("verdict", plain(verdict.to_dict(judged)))]
    assert found == []


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of two processes by the real trainer."""
    folder = tmp_path_factory.mktemp("ran")
    secret = TINY["execution"] | {"environment": {"HF_TOKEN": "a-secret"}}
    config = write_config(folder, steps=20, execution=secret, **TWO_PROCESSES)
    return seatrial.run(config, out=folder / "run").directory


def _of_directory(run_dir: Path) -> dict[str, list[Json]]:
    """The documents of a run directory by their contract."""
    found: dict[str, list[Json]] = {
        name: [json.loads((run_dir / f"{name}.json").read_text())]
        for name in ("plan", "metrics", "verdict")
        if (run_dir / f"{name}.json").exists()
    }
    lines = [line for path in run_dir.rglob("events-*.jsonl") for line in path.read_text().splitlines()]
    return found | {"event": [json.loads(line) for line in lines]}


def test_the_files_of_a_real_run_keep_to_it(ran: Path) -> None:
    documents = _of_directory(ran)
    assert {name: bool(found) for name, found in documents.items()} == dict.fromkeys(
        ("plan", "metrics", "verdict", "event"), True
    )
    assert {event["kind"] for event in documents["event"]} >= {"run_started", "step", "run_ended"}
    assert [fault for name, found in documents.items() for each in found for fault in faults(name, each)] == []
    assert faults("native", json.loads((ran / "config.json").read_text())) == []


def test_the_files_of_judged_logs_keep_to_it(tmp_path: Path) -> None:
    for number, log in enumerate(sorted((ROOT / "tests" / "logs").glob("me*/*/log.txt"))[:12]):
        seatrial.judge(log, RECIPE if number % 2 else None, out=tmp_path / str(number))
        documents = _of_directory(tmp_path / str(number))
        assert documents["event"]
        assert [fault for name, found in documents.items() for each in found for fault in faults(name, each)] == []


CLUSTER = "hosts: ['node[01-08]']\nuser: me\n"
PLANS: list[tuple[str, ...]] = [
    (str(SINGLE_MI300X), *COMPLETE[SINGLE_MI300X], "--rehearse"),
    (str(SINGLE_MI300X), *COMPLETE[SINGLE_MI300X], "--on", "ssh", "--cluster", "cluster.yaml"),
    (str(SINGLE_MI300X), *COMPLETE[SINGLE_MI300X], "--on", "ssh", "--cluster", "cluster.yaml", "--container", "podman"),
    (str(RECIPE), "--on", "slurm", "--slurm", "partition=x"),
    (str(RECIPE), "--on", "slurm", "--engine", "maxtext"),
    (str(RECIPE), "--on", "slurm", "--engine", "megatron"),
    (str(ROOT / "configs" / "native" / "eight-devices.yaml"),),
    ("tiny.json", "topology.devices_per_node=1", "parallelism.within_node.data=1", "--collapse"),
]


@pytest.mark.parametrize("arguments", PLANS, ids=lambda arguments: " ".join(arguments[-3:]))
def test_plans_keep_to_it(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    write_config(tmp_path, steps=20)
    done = command_line("plan", *arguments, "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["plan"]
    assert plan, done.stdout
    assert faults("plan", plan) == []


@settings(max_examples=60)
@given(spec=specs())
def test_any_spec_keeps_to_that_of_a_plan(spec: RunSpec) -> None:
    schema = contracts.schema("plan")
    of_spec = Draft202012Validator({"$ref": "#/$defs/RunSpec", "$defs": schema["$defs"]})
    assert [error.message for error in of_spec.iter_errors(plain(without_secrets(spec)))] == []


# --- files that are wrong ---------------------------------------------------------------------------------------------

# What may be anything: no type is wrong there.
FREE = re.compile(r"\.(original|rehearsed)$|\.(facts|engine_keys)\.[^.]+")
# Mappings whose keys are not fields, so that one less is still right.
OPEN = ("facts", "reported", "estimates", "unavailable", "environment", "engine_keys", "files", "totals", "xla_flags")
READ: dict[str, Callable[[Json], object]] = {
    "event": lambda data: events.loads(json.dumps(data)),
    "metrics": metrics.from_dict,
    "verdict": verdict.from_dict,
    "plan": lambda data: specs_of_runs.from_dict(data["spec"]),
}


def _places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    return [place for key in keys for place in ((*path, key), *_places(node[key], (*path, key)))]


def _dotted(place: tuple[Any, ...]) -> str:
    return "." + ".".join(map(str, place))


def _at(document: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        document = document[key]
    return document


@cache
def _documents(name: str) -> list[Json]:
    """Some right documents, of logs in which much happens."""
    found: list[Json] = []
    for path in GOLDENS[::9]:
        record = _golden(path)
        measured = metrics.measure(record, None)
        if name == "event":
            found += [json.loads(events.dumps(event)) for event in record[:1] + record[-2:]]
        elif name == "metrics":
            found.append(plain(metrics.to_dict(measured)))
        else:
            found.append(plain(verdict.to_dict(verdict.judge(measured, None, rehearsal=""))))
    return found


@pytest.fixture(scope="module")
def right(ran: Path) -> dict[str, list[Json]]:
    return {
        name: [*_documents(name), *_of_directory(ran)[name][:40]] if name != "plan" else _of_directory(ran)[name]
        for name in READ
    }


@pytest.mark.parametrize("name", READ)
def test_a_document_without_one_of_its_fields_is_refused(name: str, right: dict[str, list[Json]]) -> None:
    """Every field of every object, once each."""
    seen, let_through = set[str](), []
    for document in right[name]:
        for place in _places(document):
            dotted = re.sub(r"\.\d+\b", ".*", _dotted(place))
            if isinstance(place[-1], int) or set(OPEN) & set(map(str, place[:-1])) or dotted in seen:
                continue
            if name == "event" and document["kind"] and place[-1] not in _always(document["kind"]):
                continue
            seen.add(dotted)
            damaged = copy.deepcopy(document)
            del _at(damaged, place[:-1])[place[-1]]
            if not faults(name, damaged):
                let_through.append(dotted)
    assert len(seen) > 10
    assert let_through == []


def _always(kind: str) -> set[str]:
    """The fields that every event of a kind has: those that cannot be None."""
    types = {
        field: str(value)
        for each in events.KINDS[kind].__mro__
        for field, value in vars(each).get("__annotations__", {}).items()
    }
    return {"v", "kind", *(field for field, value in types.items() if "None" not in value and "ClassVar" not in value)}


def _wrong_for(value: Any) -> list[Any]:
    """Values of other types; a number may be a text where one that is not finite may be, but not any text."""
    others: list[Any] = [True, "x", 1.5, [1], {"y": 1}]
    if isinstance(value, bool):
        return [other for other in others if other is not True]
    if isinstance(value, (int, float)):
        return ["x", [1], {"y": 1}]
    if isinstance(value, str):
        return [[1], {"y": 1}]
    return ["x", 1.5, [1] if isinstance(value, dict) else {"y": 1}]


# Texts or numbers, as what was measured is.
BOTH = re.compile(r"\.(measured|bound)$")


@pytest.mark.parametrize("name", READ)
def test_a_value_of_the_wrong_type_is_refused(name: str, right: dict[str, list[Json]]) -> None:
    seen, let_through = set[str](), []
    for document in right[name]:
        for place in _places(document):
            dotted = re.sub(r"\.\d+\b", ".*", _dotted(place))
            value = _at(document, place)
            if value is None or dotted in seen or FREE.search(dotted):
                continue
            seen.add(dotted)
            for wrong in _wrong_for(value):
                if BOTH.search(dotted) and isinstance(wrong, (str, float)):
                    continue
                damaged = copy.deepcopy(document)
                _at(damaged, place[:-1])[place[-1]] = wrong
                if not faults(name, damaged):
                    let_through.append((dotted, wrong))
    assert len(seen) > 10
    assert let_through == []


_VALUES = st.sampled_from((
    None, True, False, -1, 0, 1, 3, 0.5, -2.5, "", "x", "nan", "-inf", "NaN", "1", "pass", "fail", "completion", [],
    [1], ["a"], [[1, 2]], [[1]], {}, {"a": 1}, {"a": "b"}, {"value": 1, "low": 1, "high": 1, "origin": ""},
))  # fmt: skip


@settings(max_examples=400)
@given(data=st.data(), name=st.sampled_from([name for name in READ if name != "plan"]))
def test_what_a_schema_lets_through_our_reader_reads(data: st.DataObject, name: str) -> None:
    document = copy.deepcopy(data.draw(st.sampled_from(_documents(name))))
    for _ in range(data.draw(st.integers(1, 3))):
        if not (places := _places(document)):
            break
        place = data.draw(st.sampled_from(places))
        parent = _at(document, place[:-1])
        match data.draw(st.sampled_from(("change", "remove", "add"))):
            case "change":
                parent[place[-1]] = copy.deepcopy(data.draw(_VALUES))
            case "remove":
                del parent[place[-1]]
            case _ if isinstance(parent, dict):
                parent["added_later"] = copy.deepcopy(data.draw(_VALUES))
    if validator(name).is_valid(document):
        READ[name](document)


@pytest.mark.parametrize("name", READ)
def test_what_is_added_later_is_no_error(name: str, right: dict[str, list[Json]]) -> None:
    """Neither to a validator nor to our reader of today, which ignores it in an event."""
    document = copy.deepcopy(right[name][0])
    document["added_later"] = {"x": 1}
    assert faults(name, document) == []
    assert "additionalProperties': False" not in str(contracts.schema(name))


@pytest.mark.parametrize("name", READ)
def test_another_version_is_refused(name: str, right: dict[str, list[Json]]) -> None:
    for version in (0, 2, "1", None):
        assert faults(name, right[name][0] | {"v": version}) != []


# --- cluster files ----------------------------------------------------------------------------------------------------

_NAME = st.from_regex(r"[a-z][a-z0-9]{0,6}(-[0-9]{1,2})?", fullmatch=True)
_RANGE = st.sampled_from(("node[01-03,07]", "rack[1-2]n[01-04]", "x[0-6/2]", "gpu[9]"))


def _host(name: str) -> st.SearchStrategy[Any]:
    port, devices = st.integers(1, 65_535), st.integers(1, 16)
    return st.just(name) | st.fixed_dictionaries(
        {"name": st.just(name)}, optional={"address": st.just(f"{name}.lan"), "port": port, "devices": devices}
    )


_LISTED = st.lists(_NAME, min_size=1, max_size=4, unique=True).flatmap(
    lambda names: st.tuples(*map(_host, names)).map(list)
)
_NATIVE = st.fixed_dictionaries(
    {"hosts": _LISTED | _RANGE.map(lambda name: [name]) | _RANGE | _NAME},
    optional={
        "user": _NAME,
        "key_file": st.sampled_from(("~/.ssh/id", "/etc/key", "key")),
        "devices": st.integers(1, 8),
        "transport": st.sampled_from(("ssh", "slurm", "local")),
        "_note": st.text(max_size=5),
    },
)
_CVS = st.lists(_NAME, min_size=1, max_size=4, unique=True).flatmap(
    lambda names: st.fixed_dictionaries(
        {
            "node_dict": st.fixed_dictionaries(
                {
                    name: st.fixed_dictionaries({"vpc_ip": st.just(f"{name}.lan")}, optional={"bmc_ip": st.just("NA")})
                    for name in names
                }
            )
        },
        optional={
            "username": _NAME,
            "priv_key_file": st.just("/home/x/key"),
            "head_node_dict": st.just({"mgmt_ip": names[0]}),
            "racks": st.just([]),
        },
    )
)
_CLUSTER_VALUES = st.sampled_from(
    (
        None,
        True,
        -1,
        0,
        1,
        70_000,
        1.5,
        "",
        "a b",
        "-x",
        "x",
        "slurm",
        [],
        ["a b"],
        [1.5, {}],
        {},
        {"name": "q"},
        {"vpc_ip": 1},
    )
)


def _reader_accepts(folder: Path, document: Any) -> bool:
    path = folder / "cluster.json"
    path.write_text(json.dumps(document))
    problems = dialects.cluster_of(path)[1]
    beyond = ("repeated-host", "repeated-address")  # what a schema cannot say
    return not [problem for problem in problems if problem.severity == "error" and problem.code not in beyond]


@settings(max_examples=150)
@given(document=_NATIVE | _CVS)
def test_cluster_files_keep_to_it(document: Json, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert faults("cluster", document) == []
    assert _reader_accepts(tmp_path_factory.getbasetemp(), document)


@settings(max_examples=400)
@given(document=_NATIVE | _CVS, data=st.data())
def test_a_cluster_file_that_a_schema_lets_through_our_reader_reads(
    document: Json, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    document = copy.deepcopy(document)
    place = data.draw(st.sampled_from([place for place in _places(document) if place[0] != "_note"]))
    parent = _at(document, place[:-1])
    match data.draw(st.sampled_from(("change", "remove", "rename"))):
        case "change":
            parent[place[-1]] = copy.deepcopy(data.draw(_CLUSTER_VALUES))
        case "rename" if isinstance(parent, dict) and place[-1] not in document.get("node_dict", ()):
            parent[f"{place[-1]}s"] = parent.pop(place[-1])
        case _:
            del parent[place[-1]]
    if validator("cluster").is_valid(document):
        assert _reader_accepts(tmp_path_factory.getbasetemp(), document), document


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"hosts": []}, {"hosts": 5}, {"hosts": ["a b"]}, {"hosts": [{}]}, {"hosts": [{"address": "x"}]},
        {"hosts": ["a"], "port": 3}, {"hosts": [{"name": "a", "port": 0}]}, {"hosts": ["a"], "transport": "telnet"},
        {"hosts": ["a"], "user": "a b"}, {"hosts": ["a"], "devices": 0}, {"transport": "ssh"}, {"node_dict": {}},
        {"node_dict": {"a": "b"}}, {"username": "me"}, {"node_dict": {"a": {"vpcip": "b"}}},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_cluster_file_is_refused_by_both(wrong: Json, tmp_path: Path) -> None:
    assert faults("cluster", wrong) != []
    assert not _reader_accepts(tmp_path, wrong)


def test_the_cluster_files_of_the_documentation_keep_to_it() -> None:
    from seatrial import source

    found = 0
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for kind, text in re.findall(r"^```(yaml|json)\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S):
            if re.search(r'^"?(\{?"?hosts|\{?"?node_dict|transport)\b', text, re.M) and "model" not in text:
                document = source.parse(text, file="x", is_json=kind == "json").root.plain()
                assert faults("cluster", document) == [], path
                found += 1
    assert found >= 1
