"""Commands as data: argv, environment, files. Quoting lives here and nowhere else.

Nothing in this module runs anything. A `Secret` is a value that may travel, but never be shown: it prints as `***`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from seatrial.spec import Container

_SECRET_NAME = re.compile(r"TOKEN(?!I)|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_?KEY", re.IGNORECASE)


class Secret:
    """A value that shows itself only to whoever asks with `reveal`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"


def is_secret(name: str) -> bool:
    """Whether a variable's name says that its value is nobody's business."""
    return _SECRET_NAME.search(name) is not None


def guarded(variables: Mapping[str, str]) -> dict[str, str | Secret]:
    """The variables with those made secret whose names say that they are."""
    return {name: Secret(value) if is_secret(name) else value for name, value in variables.items()}


@dataclass(frozen=True, kw_only=True)
class Command:
    """What one process is started with: argument vector, the variables added to its environment, and text files.

    `files` maps a path, relative to the run directory, to the content that must stand there first; `stdin` is what the
    process reads; `after` are commands that clear away what it leaves behind, whichever way it ended, `wake` those that
    let it go on where somebody has paused it, so that it can be told to end: they fail where nobody has.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str | Secret] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    stdin: Secret | None = None
    after: tuple[tuple[str, ...], ...] = ()
    wake: tuple[tuple[str, ...], ...] = ()

    def shell(self) -> str:
        """The command as one line that can be pasted into a POSIX shell; secrets stay masked."""
        assignments = [f"{name}={shlex.quote(str(value))}" for name, value in self.environment.items()]
        prefix = ["env", *assignments] if assignments else []
        return " ".join([*prefix, shlex.join(self.argv)])


LABEL = "seatrial"  # every container of ours carries it, with the run's name; nothing else is ever removed
RUNTIMES = ("docker", "podman")
# RDMA pins what it sends. docker's daemon may allow it all; podman no more than it is allowed itself, which the agent
# has raised as far as it could.
_PINNING = {"docker": ("--ulimit", "memlock=-1"), "podman": ("--ulimit", "host")}
_WITH_SECRETS = 'eval "$(cat)"; exec "$@" </dev/null'


def in_container(
    command: Command, container: Container, *, runtime: str, name: str, run: str, mounts: Sequence[str]
) -> Command:
    """The command, started in a container of its own that is gone when it has ended.

    `name` is the container's, `run` what its label says, `mounts` are paths that are the same inside. Variables go by
    `--env`; secrets by the standard input, so that neither a process list nor `inspect` shows them, and with them
    values whose carriage returns podman would take away.
    """
    variables = {**guarded(container.environment), **command.environment}
    apart = {key: value for key, value in variables.items() if isinstance(value, Secret) or "\r" in value}
    lists = {"--cap-add": container.cap_add, "--security-opt": container.security_opt,
             "--group-add": container.group_add}  # fmt: skip
    argv = [
        *(runtime, "run", "--rm", "--name", name, "--label", f"{LABEL}={run}", "--init"),
        *("--network", "host", "--ipc", "host"),
        *(("--pull", container.pull) if container.pull else ()),
        *(("--privileged",) if container.privileged else ()),
        *(word for flag, values in lists.items() for value in values for word in (flag, value)),
        *(_PINNING[runtime] if container.devices or container.privileged else ()),
        *(("--shm-size", container.shm_size) if container.shm_size and runtime != "podman" else ()),
        *(word for device in container.devices for word in ("--device", device)),
        *(word for path in mounts for word in ("--volume", f"{path}:{path}")),
        *(word for here, there in container.volumes for word in ("--volume", f"{here}:{there}")),
        *(word for key, value in variables.items() if key not in apart for word in ("--env", f"{key}={value}")),
        *(("--interactive",) if apart else ()),
        *("--entrypoint", "", container.image),
        *(("sh", "-c", _WITH_SECRETS, "sh") if apart else ()),
        *command.argv,
    ]
    shown = {key: value.reveal() if isinstance(value, Secret) else value for key, value in apart.items()}
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in shown.items())
    return replace(
        command,
        argv=tuple(argv),
        environment={},
        stdin=Secret(exports) if apart else None,
        wake=((runtime, "unpause", name),),
        after=((runtime, "rm", "--force", *(("--ignore",) if runtime == "podman" else ()), name),),
    )
