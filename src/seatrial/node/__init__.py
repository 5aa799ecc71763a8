"""The files that travel to nodes."""

from __future__ import annotations

from pathlib import Path

# By module; each imports only those before it.
AGENT = ("sensors", "observer", "processes", "agent")
PROBE = ("sensors", "facts", "inventory", "probe")
_MODULES = """import sys, types
for name, text in {texts!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(text, vars(module))
main = module.main
"""


def of_the_agent() -> dict[str, str]:
    """What has to lie in a run directory for an agent to start there: the texts of its files, by where they go."""
    return {f"launch/{name}.py": text_of(name) for name in AGENT}


def of_the_probe() -> str:
    """What is sent to ask a node: one text that makes all its modules, and has what the last one begins with."""
    return _MODULES.format(texts={name: text_of(name) for name in PROBE})


def text_of(name: str) -> str:
    """The source of a module that stands beside this one."""
    return Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
