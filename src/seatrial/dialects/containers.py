"""The container that a command is started in, by the words before it: docker, podman, apptainer, enroot, and pyxis.

What those words say becomes the run's own container, where a run's container has it; what it has not, is reported.
Sources: `docker run --help` (28), `podman run --help` (5), `apptainer exec --help` (1.3), `enroot start --help` (3.5),
NVIDIA's pyxis (0.20). Variables (-e, --env) are no matter of this: they are read with the shell text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seatrial.dialects.table.entries import Entry
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.errors import Mark, Problem, Severity
from seatrial.source import Node
from seatrial.spec import Container, Origin, gather_part

_LISTS = ("devices", "volumes", "cap_add", "security_opt", "group_add")
_PULLS = ("never", "missing", "always")
_IMAGE_FILES: Mapping[str, tuple[Severity, str]] = {  # suffix → what can be started from such a file, and what not
    ".sif": ("warning", "only apptainer starts from such a file; docker, podman and pyxis do not"),
    ".sqsh": ("info", "pyxis starts from such a file (--container pyxis); docker and podman do not"),
}


@dataclass(frozen=True, kw_only=True)
class _Option:
    """The outcome of an option: a field of the run's container, nothing because of `quiet`, or a finding."""

    takes_value: bool = True
    field: str = ""
    read: Callable[[str], Any] = str  # the value of a field, or the several ones of a list. Raises ValueError
    quiet: tuple[str, ...] = ()  # values with which it changes nothing; "*": whatever its value is
    severity: Severity = "warning"
    why: str = "the run's own container is started without it"
    fix: str = "omit it"


@dataclass(frozen=True, kw_only=True)
class Around:
    """The container around a command, and where each part of it was said; `behind` is the first word inside of it."""

    container: Container | None = None
    origins: Mapping[str, Origin] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    behind: int = 0


# --- values -----------------------------------------------------------------------------------------------------------


def _volume(text: str) -> list[tuple[str, str]]:
    """`here:there[:options]`; a path alone would be a volume without a name."""
    here, _, there = text.partition(":")
    if not (here and there):
        raise ValueError("it names no path of the host")
    return [(here, there)]


def _binds(text: str) -> list[tuple[str, str]]:
    """`here[:there[:options]]`, several of them between commas."""
    parts = (part.partition(":") for part in text.split(",") if part)
    return [(here, there or here) for here, _, there in parts]


def _mount(text: str) -> list[tuple[str, str]]:
    """`type=bind,source=/here,target=/there,readonly`."""
    said = {key.strip(): value for key, _, value in (part.partition("=") for part in text.split(","))}
    here, there = (next((said[n] for n in names if said.get(n)), "") for names in (_HERE, _THERE))
    if said.get("type", "bind") not in ("bind", "volume") or not (here and there):
        raise ValueError("it mounts nothing of the host")
    is_read_only = next((said[name] in ("", "true", "1") for name in ("readonly", "ro") if name in said), False)
    return [(here, f"{there}:ro" if is_read_only else there)]


_HERE, _THERE = ("source", "src"), ("target", "destination", "dst")


def _switch(text: str) -> bool:
    return text.lower() not in ("false", "0", "f")


def _pull(text: str) -> str:
    if text not in _PULLS:
        raise ValueError(f"there is {', '.join(_PULLS)}")
    return text


def _one(text: str) -> list[str]:
    return [text]


def _several(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def image_of(text: str) -> str:
    """An image as docker names it: without `docker://`, and without enroot's `USER@` and `REGISTRY#`."""
    name = text.removeprefix("docker://")
    registry, sign, rest = name.partition("#")
    return f"{registry.rpartition('@')[2]}/{rest}" if sign else name


# --- options ----------------------------------------------------------------------------------------------------------

_DEVICES = {
    "why": "the run's own container is given the devices that container.devices lists; pyxis gives its containers all",
    "fix": "convert the file to native, and list them there: nvidia.com/gpu=all (CDI), or /dev/kfd and /dev/dri",
}
_FOLDER = "Seatrial's processes do not begin in that folder, so that relative paths may mean something else"
_FILE = "the file is not read, so that its variables are not known here"


def _named(names: str, **what: Any) -> dict[str, _Option]:
    return dict.fromkeys(names.split(), _Option(**what))


_DOCKER: Mapping[str, _Option] = {
    **_named("-v --volume", field="volumes", read=_volume),
    **_named("--mount", field="volumes", read=_mount),
    **_named("--device", field="devices", read=_one),
    **_named("--shm-size", field="shm_size"),
    **_named("--privileged", field="privileged", read=_switch, takes_value=False),
    **_named("--cap-add", field="cap_add", read=_one),
    **_named("--security-opt", field="security_opt", read=_one),
    **_named("--group-add", field="group_add", read=_one),
    **_named("--pull", field="pull", read=_pull),
    **_named("--name", field="name"),
    **_named("-e --env", quiet=("*",)),
    # What every container of a run is started with anyway, or has no effect on a run.
    **_named("--rm --init -i --interactive -t --tty -d --detach -q --quiet --sig-proxy --replace", quiet=("*",),
             takes_value=False),
    **_named("--network --net --ipc", quiet=("host",),
             why="the run's own container shares network and IPC with its host"),
    **_named("--ulimit", quiet=("memlock=-1", "memlock=-1:-1", "memlock=unlimited", "host")),
    **_named("--entrypoint", quiet=("",)),
    **_named("--gpus", **_DEVICES),
    **_named("-w --workdir", why=_FOLDER),
    **_named("--env-file", why=_FILE),
    **_named("-a -h -l -p --add-host --annotation --attach --cidfile --detach-keys --dns --dns-option --dns-search"
             " --expose --health-cmd --health-interval --health-retries --health-start-period --health-timeout"
             " --hostname --label --label-file --log-driver --log-opt --publish --restart --stop-signal --stop-timeout",
             severity="info"),
    **_named("-P --no-healthcheck --publish-all --tls-verify", severity="info", takes_value=False),
    **_named("--disable-content-trust --env-host --http-proxy --no-hostname --no-hosts --oom-kill-disable --read-only"
             " --rootfs", takes_value=False),
    **_named("-c -m -u --arch --authfile --blkio-weight --cap-drop --cgroup-parent --cgroupns --cgroups"
             " --conmon-pidfile --cpu-period --cpu-quota --cpu-rt-period --cpu-rt-runtime --cpu-shares --cpus"
             " --cpuset-cpus --cpuset-mems --device-cgroup-rule --device-read-bps --device-write-bps --domainname"
             " --gidmap --hooks-dir --ip --ip6 --isolation --kernel-memory --link --link-local-ip --mac-address"
             " --memory --memory-reservation --memory-swap --memory-swappiness --network-alias --oom-score-adj --os"
             " --passwd-entry --personality --pid --pids-limit --platform --pod --pod-id-file --rdt-class --requires"
             " --runtime --sdnotify --secret --shm-size-systemd --storage-opt --subgidname --subuidname --sysctl"
             " --systemd --timeout --tmpfs --tz --uidmap --umask --user --userns --uts --variant --volume-driver"
             " --volumes-from"),
}  # fmt: skip

_APPTAINER: Mapping[str, _Option] = {
    **_named("-B --bind", field="volumes", read=_binds),
    **_named("--mount", field="volumes", read=_mount),
    **_named("--add-caps", field="cap_add", read=_several),
    **_named("--env", quiet=("*",)),
    **_named("-e --cleanenv -c --contain -C --containall --compat --no-home --writable-tmpfs --no-init --disable-cache"
             " --no-eval --no-umask -s --silent -q --quiet", quiet=("*",), takes_value=False),
    **_named("--nv --nvccli --rocm", **_DEVICES, takes_value=False),
    **_named("--pwd --cwd", why=_FOLDER),
    **_named("--env-file", why=_FILE),
    **_named("-f --fakeroot -i --ipc -p --pid -n --net -u --userns --uts -w --writable --keep-privs --no-privs"
             " --allow-setuid --unsquash --no-https --nohttps --underlay --sharens -d --debug -v --verbose --nocolor",
             takes_value=False),
    **_named("-H --home -o --overlay -S --scratch -W --workdir --app --apply-cgroups --authfile --blkio-weight --cpus"
             " --cpuset-cpus --dns --drop-caps --fusemount --hostname --memory --memory-swap --network --network-args"
             " --no-mount --oom-kill-disable --pem-path --pids-limit --security --config"),
}  # fmt: skip

_ENROOT: Mapping[str, _Option] = {
    **_named("-m --mount", field="volumes", read=_binds),
    **_named("-e --env", quiet=("*",)),
    **_named("-w --rw", quiet=("*",), takes_value=False),
    **_named("-r --root", takes_value=False),
    **_named("-c --rc"),
}

_PYXIS: Mapping[str, _Option] = {
    "--container-image": _Option(field="image", read=image_of),
    "--container-mounts": _Option(field="volumes", read=_binds),
    **_named("--container-env", quiet=("*",)),
    **_named("--container-writable --no-container-mount-home --no-container-entrypoint", quiet=("*",),
             takes_value=False),
    **_named("--container-workdir", why=_FOLDER),
    **_named("--container-name --container-save"),
    **_named("--container-mount-home --container-remap-root --no-container-remap-root --container-entrypoint"
             " --container-readonly", takes_value=False),
    **_named("--container-entrypoint-log", severity="info", takes_value=False),
}  # fmt: skip

# Program → its options, the verbs that start from an image, and those that go into a container that is there already.
_PROGRAMS: Mapping[str, tuple[Mapping[str, _Option], tuple[str, ...], tuple[str, ...]]] = {
    **dict.fromkeys(("docker", "podman", "nerdctl"), (_DOCKER, ("run", "create"), ("exec",))),
    **dict.fromkeys(("apptainer", "singularity"), (_APPTAINER, ("exec", "run", "shell"), ())),
    "enroot": (_ENROOT, ("start",), ("exec",)),
    "kubectl": ({}, (), ("exec",)),
}
_SAY = "start it with docker run IMAGE here, or name container.image in a native configuration"
_USE = "give --container docker, podman or pyxis, with --on ssh or --on slurm"
_JOBS = ("srun", "sbatch", "salloc")


# --- words ------------------------------------------------------------------------------------------------------------


def around(words: Sequence[Node]) -> Around:
    """The container that a command's words put it in."""
    return _Reading(words).around()


class _Reading:
    """Goes through the words once, up to the image; those of srun stand among words that only Slurm knows."""

    def __init__(self, words: Sequence[Node]) -> None:
        self._words = words
        self._texts = [str(word.value) for word in words]
        self._values: dict[str, Any] = {}
        self._origins: dict[str, Origin] = {}
        self._problems: dict[tuple[str, str], Problem] = {}
        self._behind = 0

    def around(self) -> Around:
        """Takes all words, and returns what they say."""
        self._take_all()
        values = {f"container.{name}": tuple(v) if name in _LISTS else v for name, v in self._values.items()}
        container = gather_part(Container, "container", values) if "image" in self._values else None
        return Around(
            container=container, origins=self._origins if container else {}, problems=tuple(self._problems.values()),
            behind=self._behind,
        )  # fmt: skip

    def _take_all(self) -> None:
        is_job, place = False, 0
        while place < len(self._texts):
            text = self._texts[place]
            name = text.rpartition("/")[2]
            is_job = is_job or name in _JOBS
            verb = self._verb(place, name) if name in _PROGRAMS else None
            if verb is not None:
                self._program(name, place, verb)
                return
            if is_job and "container" in text.partition("=")[0] and text.startswith("--"):
                place = self._option(_PYXIS, place, "srun", knows_all=False)
            else:
                place += 1

    def _verb(self, place: int, name: str) -> int | None:
        """The index of a program's verb, if that starts a container or something in one; else None."""
        _, starting, entering = _PROGRAMS[name]
        for at in range(place + 1, min(place + 8, len(self._texts))):  # docker --context far container run
            if self._texts[at] in (*starting, *entering):
                return at
        return None

    def _program(self, name: str, place: int, verb: int) -> None:
        options, starting, _ = _PROGRAMS[name]
        before = range(place + 1, verb)
        for at in (at for at in before if self._texts[at].startswith("-")):
            why = f"it is for {name} itself, and a run's containers are started without it"
            self._say(at, self._texts[at].partition("=")[0], "warning", "no-effect", why)
        if self._texts[verb] not in starting or "compose" in (self._texts[at] for at in before):
            called = " ".join((name, *(self._texts[at] for at in before if self._texts[at] == "compose")))
            why = "this container's image and mounts are defined elsewhere"
            self._say(verb, f"{called} {self._texts[verb]}", "info", "container-not-known", why, _SAY)
            return
        place = verb + 1
        while place < len(self._texts) and self._texts[place].startswith("-"):
            if self._texts[place] == "--":
                place += 1
                break
            place = self._option(options, place, name)
        if place < len(self._texts):
            self._image(name, place)
            self._behind = place + 1

    def _image(self, name: str, place: int) -> None:
        text = self._texts[place]
        if (name == "enroot" and not text.endswith(tuple(_IMAGE_FILES))) or text.startswith("instance://"):
            why = "this container already exists, and its image is not known here"
            self._say(place, text, "warning", "container-not-known", why, _SAY)
            return
        self._put("image", image_of(text), place, f"{name} IMAGE")

    def _option(self, options: Mapping[str, _Option], place: int, program: str, *, knows_all: bool = True) -> int:
        """Takes one option with its value; the place behind it."""
        text = self._texts[place]
        for name, joined in _parts(text, options):
            option = options.get(name)
            if option is None:
                known = tuple(each for each in options if each.startswith("--"))
                more = "" if joined is not None or not knows_all else "; it is read as one without a value"
                why = f"{program} has no such option{more}"
                self._say(place, name, "warning", "unknown-option", why, did_you_mean(name, known))
                continue
            at, value = place, joined
            if option.takes_value and value is None:
                if place + 1 == len(self._texts):
                    self._say(place, name, "error", "missing-value", "its value is missing", "write it behind it")
                    continue
                place += 1
                at, value = place, self._texts[place]
            self._take(option, name, value, at)
        return place + 1

    def _take(self, option: _Option, name: str, value: str | None, at: int) -> None:
        if option.field:
            try:
                read = option.read("true" if value is None else value)
            except ValueError as error:
                why = f"{error}; the run's own container is started without it"
                self._say(at, name, "warning", "no-effect", why, "write it in another way, or omit it")
                return
            if option.field == "volumes" and any(not here for here, _ in read):
                why = "a mount names no path of the host: a variable is not set; it is left out"
                self._say(at, name, "warning", "empty-mount", why, "set the variable, or remove the mount")
                read = [(here, there) for here, there in read if here]
            self._put(option.field, read, at, name)
        elif "*" not in option.quiet and value not in option.quiet:
            self._say(at, name, option.severity, "no-effect", f"it has no effect: {option.why}", option.fix)

    def _put(self, name: str, value: Any, at: int, key: str) -> None:
        if name == "image" and any(character in value for character in "$`"):
            why = "the image is not known here, so the run has no container"
            self._say(at, key, "warning", "container-not-known", why, "write the image's name, or assign the variable")
            return
        if name == "image" and self._values.get("image", value) != value:
            why = f"a second image: that of {self._origins['container.image'].key} is not used"
            self._say(at, key, "warning", "contradiction", why, "name one image")
        self._values[name] = [*self._values.get(name, ()), *value] if name in _LISTS else value
        text = value if isinstance(value, str) else "" if name == "privileged" else self._texts[at]
        said = Entry(key=key, value=value, text=text, mark=self._mark(at)).origin()
        path = f"container.{name}"
        self._origins[path] = said if name not in _LISTS else self._origins.get(path, said)
        if name == "image":
            self._origins["container"] = Origin(kind="default", key=key, note="no option says otherwise")
            self._say(at, key, "info", "container", "it is the run's container, used where --container is given", _USE)
            for severity, why in (said for suffix, said in _IMAGE_FILES.items() if value.endswith(suffix)):
                self._say(at, key, severity, "image-file", why, "name the image in a registry")

    def _mark(self, at: int) -> Mark:
        return self._words[at].mark

    def _say(self, at: int, path: str, severity: Severity, code: str, why: str, fix: str = "omit it") -> None:
        """Keeps a finding, once an option; its value may be a secret, and is not shown."""
        found = Problem(severity=severity, code=code, path=path, why=why, fix=fix, mark=self._mark(at))
        self._problems.setdefault((path, code), found)


def _parts(text: str, options: Mapping[str, _Option]) -> Iterator[tuple[str, str | None]]:
    """(option, the value that is joined to it) of a word: `--name=value`, `-v/a:/b`, `-itv`."""
    if text.startswith("--"):
        name, equals, value = text.partition("=")
        yield name, value if equals else None
        return
    for place, letter in enumerate(text[1:], start=1):
        option = options.get(f"-{letter}")
        rest = text[place + 1 :]
        if option is None or option.takes_value:
            yield f"-{letter}", rest.removeprefix("=") if rest else None
            return
        yield f"-{letter}", None
