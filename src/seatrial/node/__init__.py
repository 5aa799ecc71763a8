"""Programs that run on a host: standard library only, Python 3.8 or newer, never installed.

A group of modules travels together, without this package; each imports only those before it:

    AGENT       lies in the run directory as launch/*.py: supervises a host's processes, and watches the host
    PROBE       is sent as one text with each question of preflight
    relay       is sent as one text with each call: starts the agent, sends its files, passes orders on
    UNDER_SLURM lies beside the agent: fills in the host's job and becomes the agent
    IN_A_POD    lies in a ConfigMap: starts the agent, and keeps the pod until its files are copied
"""

from __future__ import annotations

from pathlib import Path

AGENT = ("sensors", "processes", "observer", "agent")
PROBE = ("sensors", "facts", "inventory", "probe")
UNDER_SLURM = ("job_secrets", "slurm_node")
IN_A_POD = ("job_secrets", "relay", "pod")
_MODULES = """import sys, types
for name, text in {texts!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(text, vars(module))
main = module.main
"""


def of_the_agent() -> dict[str, str]:
    """The agent's files in a run directory: path → text."""
    return {f"launch/{name}.py": text_of(name) for name in AGENT}


def of_the_probe() -> str:
    """The probe as one text, which makes all its modules and has the `main` of the last one."""
    return _MODULES.format(texts={name: text_of(name) for name in PROBE})


def text_of(name: str) -> str:
    """The source of a module that stands beside this one."""
    return Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
