"""No value under the name of a secret is ever shown: in no dialect, of no kind, by no verb, and in no message."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seatrial.source import read
from tests.helpers.command_line import seatrial
from tests.helpers.seeds import ROOT

MARKER, NUMBER = "Zq7Xv9Kd31", 7193355172
SHOWN = re.compile("Zq7Xv|719335|7.193355|7193", re.IGNORECASE)
KINDS: dict[str, Any] = {
    "text": MARKER,
    "number": NUMBER,
    "list": ["a", MARKER],
    "mapping": {"a": MARKER},
    "nested": {"a": [{"b": [MARKER, NUMBER]}]},
    "long": MARKER * 12,
    "lines": f"a\n{MARKER}\n{MARKER}",
    "unfilled": f"<changeme> {MARKER}",
    "placeholder": f"{{{MARKER}}} ${{{MARKER}}} ${{oc.env:{MARKER}}}",
    "bracket": f"[{MARKER}",
}
NAMES = ("HF_TOKEN", "DB_PASSWD", "WANDB_APIKEY")
VERBS = (
    ("check", "--format", "json"),
    ("plan", "--rehearse"),
    ("plan", "--rehearse", "--all"),
    ("plan", "--rehearse", "--format", "json"),
    ("plan", "--explain", "HF_TOKEN"),
    ("plan", "--explain", "environment", "--format", "json"),
    ("convert", "--to", "native"),
    ("convert", "--to", "megatron"),
    ("convert", "--to", "cvs"),
)

# An example of each dialect, and where secrets are put: among its variables first, and where they are unknown.
FILES: dict[str, tuple[tuple[str, ...], ...]] = {
    "cvs/mi300x_singlenode_llama3_1_70b.json": (("config", "container_config", "env_dict"), ("config",), ()),
    "cvs/mi3xx_megatron_llama_single.json": (("config", "container_config", "env_dict"), ("config",), ("x",)),
    "cvs/jaxmaxtext_llama3.1-8b_mi300x.json": (
        ("training", "env_vars"), ("container", "env"), ("container", "runtime", "args", "env"), ("training",),
    ),
    "cvs/megatron_llama3.1-8b_mi325x.json": (("container", "env"), ("container", "runtime", "args", "env"), ("x",)),
    "native/eight-devices.yaml": (("execution", "environment"), ("container", "environment"), ("data",), ()),
    "nxdt/llama2-7b-hf.yaml": (("exp_manager",), ("data",), ()),
    "maxtext/maxtext-llama3-8b.yaml": ((), ("quantization",)),
}  # fmt: skip
SCRIPTS = ("megatron/megatron-tiny.sh", "maxtext/maxtext-quick.sh")


def _put(tree: Any, path: tuple[str, ...], value: Any) -> Any:
    """The tree with a value added, and the mappings on the way to it."""
    if not path:
        return value
    members = tree if isinstance(tree, dict) else {}
    return {**members, path[0]: _put(members.get(path[0]), path[1:], value)}


def _block(tree: Any, indent: int = 0) -> str:
    """YAML as people write it, a line for each value."""
    blank = " " * indent
    if isinstance(tree, dict):
        members = ((f"{blank}{key}:", value) for key, value in tree.items())
    else:
        members = ((f"{blank}-", value) for value in tree)
    return "".join(
        f"{key}\n{_block(value, indent + 2)}" if isinstance(value, (dict, list)) and value
        else f"{key} {json.dumps(value)}\n" if not isinstance(value, str) or "\n" not in value
        else "\n".join([f"{key} |", *(f"{blank}  {line}" for line in value.split("\n"))]) + "\n"
        for key, value in members
    )  # fmt: skip


def _texts(name: str, secrets: dict[str, Any], places: int = 4) -> Iterator[str]:
    """The example with the secrets in each of the first places, in the two ways in which it may be laid out."""
    tree = read(ROOT / "configs" / name).root.plain()
    for place in FILES[name][:places]:
        changed = tree
        for key, value in secrets.items():
            changed = _put(changed, (*place, key), value)
        yield json.dumps(changed, indent=2) if name.endswith(".json") else _block(changed)
        yield json.dumps(changed)


def _said(folder: Path, text: str, suffix: str, verb: tuple[str, ...], *words: str) -> str:
    (folder / f"config{suffix}").write_text(text, encoding="utf-8")
    done = seatrial(verb[0], f"config{suffix}", *words, *verb[1:], cwd=folder)
    return done.stdout + done.stderr


def _assert_hidden(said: str, about: object) -> None:
    found = SHOWN.search(said)
    assert found is None, f"{about}: …{said[max(0, found.start() - 300) : found.end() + 20]}"


@pytest.mark.parametrize("name", FILES)
def test_check_shows_no_secret_of_any_kind(name: str, tmp_path: Path) -> None:
    for kind, value in KINDS.items():
        for text in _texts(name, dict.fromkeys(NAMES, value)):
            _assert_hidden(_said(tmp_path, text, Path(name).suffix, ("check",)), kind)


@pytest.mark.parametrize("name", FILES)
def test_no_verb_shows_a_secret(name: str, tmp_path: Path) -> None:
    fine = {"HF_TOKEN": MARKER, "DB_PASSWD": f"{NUMBER}", "WANDB_APIKEY": MARKER * 12, "X_SECRET": f"a\n{MARKER}"}
    wrong = {f"{kind.upper().replace(' ', '_')}_TOKEN": value for kind, value in KINDS.items()}
    for verb in VERBS:
        for secrets in (fine, {"HF_TOKEN": [MARKER], **wrong}):
            for text in _texts(name, secrets, places=2):
                _assert_hidden(_said(tmp_path, text, Path(name).suffix, verb), verb)


@pytest.mark.parametrize("name", [*FILES, *SCRIPTS])
@pytest.mark.parametrize(
    "word",
    [
        "HF_TOKEN={}", "container_config.env_dict.HF_TOKEN={}", "config.container_config.env_dict.HF_TOKEN={}",
        "execution.environment.HF_TOKEN={}", "container.env.HF_TOKEN={}", "training.env_vars.HF_TOKEN={}",
        "hf_access_token={}", "data.HF_TOKEN={}", "x.HF_TOKEN.y={}", "--hf-token={}", "HF_TOKEN:{}", "M_HF_TOKEN={}",
    ],
)  # fmt: skip
def test_no_override_of_a_secret_is_shown(name: str, word: str, tmp_path: Path) -> None:
    text = (ROOT / "configs" / name).read_text(encoding="utf-8")
    for value in (MARKER, f'{{"a": "{MARKER}"}}'):
        _assert_hidden(_said(tmp_path, text, Path(name).suffix, ("check",), word.format(value)), (word, value))


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize(
    "line",
    [
        "export HF_TOKEN={} DB_PASSWD={} WANDB_APIKEY={}\nCOMMAND", "HF_TOKEN={} COMMAND",
        "export HF_TOKEN='a {}'\nCOMMAND",
        'export HF_TOKEN="a\n{}\n"\nCOMMAND', "COMMAND --hf-token {}", "COMMAND --hf-token={}",
        "COMMAND --wandb-api-key {} x",
        "COMMAND hf_access_token={}", "COMMAND HF_TOKEN={}", "COMMAND hf_access_token=[{}]", "X=(HF_TOKEN={}\nCOMMAND",
        "export HF_TOKEN=$({}\nCOMMAND", 'export HF_TOKEN="{}\nCOMMAND', "export M_HF_ACCESS_TOKEN={}\nCOMMAND",
        "HF_TOKEN={}; COMMAND --x $HF_TOKEN", "HF_TOKEN={}\nCOMMAND --hf-token $HF_TOKEN",
        "COMMAND run_name=a HF_TOKEN={{a:{}}}",
    ],
)  # fmt: skip
def test_no_verb_shows_a_secret_of_a_script(name: str, line: str, tmp_path: Path) -> None:
    whole = (ROOT / "configs" / name).read_text(encoding="utf-8")
    command = " ".join(
        word for row in whole.splitlines() if not row.startswith("#") for word in row.rstrip("\\").split()
    )
    for value in (MARKER,):
        text = f"#!/bin/bash\n{line.replace('COMMAND', command).format(*[value] * 3)}\n"
        for verb in (("check",), VERBS[1], VERBS[5]):
            _assert_hidden(_said(tmp_path, text, ".sh", verb), (verb, line))


def test_secrets_of_a_script_are_treated_alike(tmp_path: Path) -> None:
    text = (ROOT / "configs" / SCRIPTS[0]).read_text(encoding="utf-8")
    exports = "".join(f"export {name}={MARKER}\n" for name in NAMES)
    said = json.loads(_said(tmp_path, f"{exports}{text}", ".sh", ("check", "--format", "json")))
    assert {p["path"]: p["severity"] for p in said["problems"] if p["code"] == "secret"} == dict.fromkeys(NAMES, "info")
    plan = _said(tmp_path, f"{exports}{text}", ".sh", ("plan", "--rehearse", "--format", "json"))
    assert not [name for name in NAMES if name in json.dumps(json.loads(plan)["plan"])]


@pytest.mark.parametrize(
    "text",
    ["model: x\nHF_TOKEN: *{}\n", 'HF_TOKEN: "{}\\q"\n', '{{"HF_TOKEN": {}}}', "HF_TOKEN: [{}\n"],
)
def test_a_text_that_cannot_be_read_shows_none(text: str, tmp_path: Path) -> None:
    suffix = ".json" if text.startswith("{") else ".yaml"
    said = _said(tmp_path, text.format(MARKER), suffix, ("check",))
    assert "error" in said
    _assert_hidden(said, text)
