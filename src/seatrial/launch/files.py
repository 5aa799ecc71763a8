"""Files that others read while they are written, and files that travel to nodes.

The former are replaced in one step, so that nobody sees half of one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# What travels to nodes, by module; each imports only those before it.
AGENT = ("sensors", "observer", "processes", "agent")
PROBE = ("sensors", "inventory", "probe")
_MODULES = """import sys, types
for name, text in {texts!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(text, vars(module))
main = module.main
"""


def write_text(path: Path, text: str) -> None:
    """Puts a text in the place of a file, which may not be there yet; nor may its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def write_json(path: Path, data: Any) -> None:
    """Plain data as JSON, in the same way."""
    write_text(path, json.dumps(data, indent=1) + "\n")


def of_the_agent() -> dict[str, str]:
    """What has to lie in a run directory for an agent to start there: the texts of its files, by where they go."""
    return {f"launch/{name}.py": text_of(name) for name in AGENT}


def of_the_probe() -> str:
    """What is sent to ask a node: one text that makes all its modules, and has what the last one begins with."""
    return _MODULES.format(texts={name: text_of(name) for name in PROBE})


def text_of(name: str) -> str:
    """The source of a module that stands beside this one."""
    return Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
