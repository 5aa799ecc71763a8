"""The script of a Slurm job, and its options as a closed table. Pure.

Nothing of a configuration is in the script. It names the run directory, the image and its mounts, and options, each of
which must look as its row says; so none of them can end a line, a word or a quotation.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from seatrial import __version__
from seatrial.errors import InputError
from seatrial.launch.scheduler_options import Option, read_words
from seatrial.node.slurm_node import FAILED
from seatrial.spec import Container, RunSpec

NONCE = "launch/slurm/nonce"
OUTPUT = "launch/slurm/output-{}.log"
LAST_SECONDS = 1800  # that tasks may go on after the first has ended
IMAGE = "--container-image="  # pyxis' option
NOT_SHARED = 69  # the script's exit code where a node does not see the run directory
_NAME = r"[\w.@+][\w.@+-]*"
_HOSTS = r"\w[\w.,\[\]-]*"

OPTIONS: Mapping[str, Option] = {
    "account": Option(_NAME, "a name"),
    "partition": Option(rf"{_NAME}(,{_NAME})*", "names of partitions"),
    "qos": Option(_NAME, "a name"),
    "time": Option(
        r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}|UNLIMITED", "minutes, hours:minutes:seconds or days-hours"
    ),
    "gpus-per-node": Option(r"(\w[\w.-]*:)?\d+", "a number, or TYPE:NUMBER"),
    "gres": Option(r"\w[\w.:,-]*", "NAME:TYPE:NUMBER"),
    "cpus-per-task": Option(r"\d+", "a number"),
    "mem": Option(r"\d+[KMGT]?", "a size: 0 (all), 512G"),
    "nodelist": Option(_HOSTS, "hosts: node[01-03],node07"),
    "exclude": Option(_HOSTS, "hosts: node[01-03],node07"),
    "reservation": Option(_NAME, "a name"),
    "constraint": Option(r"[\w(\[][\w.()\[\]&|*,!+-]*", "features: h100&ib"),
    "dependency": Option(r"[a-z][a-z:\d,?]*", "singleton, afterok:1234"),
    "signal": Option(
        r"(TERM|INT|USR1|USR2)@\d{1,5}", "SIGNAL@SECONDS before the time limit, to stop the run: TERM@120"
    ),
    "requeue": Option(r"yes|no", "yes or no"),
    "exclusive": Option(r"yes|no", "yes or no"),
    "nodes": Option(r"[1-9]\d{0,4}", "the number of nodes for a rehearsal"),
    "results": Option(r"[^\x00-\x1f]+", "a folder"),
}
_SAID_OTHERWISE = ("signal", "requeue", "exclusive", "nodes", "results")  # all others are sbatch's by the same name
_DEVICES = ("gres", "gpus-per-node")
_OF_DEVICES = ("SBATCH_GPUS", "SBATCH_GRES")  # how variables begin that ask for devices in some way
_OF_JOBS = ("SLURM_", "SRUN_")  # how variables begin that describe a job, and are options to an srun in another
_OF_THE_SITE = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")  # by these Slurm is found
_USUAL = {"requeue": "no", "exclusive": "yes", "mem": "0"}


def options(given: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE words as a table. Raises InputError for an unknown key or a wrong value."""
    return dict(read_words(given, OPTIONS, "slurm"))


def requested(spec: RunSpec, *, rehearsing: bool) -> tuple[str, ...]:
    """The options that a configuration requests, as KEY=VALUE words, without those that OPTIONS does not allow.

    A rehearsal computes on CPUs, and requests no devices.
    """
    given = {k: v for k, v in spec.distributed.slurm.items() if not (rehearsing and k in _DEVICES)}
    return tuple(f"{k}={v}" for k, v in given.items() if k in OPTIONS and OPTIONS[k].fits(v))


@dataclass(frozen=True, kw_only=True)
class Script:
    """The parameters of a job's script. With a `container`, pyxis starts the agents in it; else they start on the host.

    `secrets` are names of variables in sbatch's environment.
    """

    name: str
    root: PurePath
    nonce: str
    nodes: int
    options: Mapping[str, str] = field(default_factory=dict)
    container: Container | None = None
    secrets: tuple[str, ...] = ()


# A fixed text. $0 is its own name, $1 the run directory, $2 the nonce.
_ON_EACH = (
    f'[ "$(cat "$1/{NONCE}" 2>/dev/null)" = "$2" ] || '
    f'{{ echo "seatrial: $(hostname) does not see $1" >&2; exit {NOT_SHARED}; }}; '
    'exec python3 -I "$1/launch/slurm_node.py" "$1"'
)


def flags_of(script: Script) -> list[str]:
    """The options of a script for sbatch, a word each."""
    given = {**_USUAL, **script.options}
    root = str(plain(script.root, "the run directory"))
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", script.name).strip("-.")[:60] or "run"
    flags = {
        "job-name": f"seatrial-{name}",
        "nodes": str(script.nodes),
        "ntasks-per-node": "1",
        "output": f"{root}/{OUTPUT.format('%j')}",
        "open-mode": "append",
        "chdir": root,
        **{key: given[key] for key in OPTIONS if key in given and key not in _SAID_OTHERWISE},
    }
    words = [f"--{flag}={value}" for flag, value in flags.items()]
    # To the script alone, which asks the agents to stop: Slurm's signals reach agent and processes alike, and a second
    # one makes the trainer stop at once.
    words += [f"--signal=B:{given['signal']}"] if "signal" in given else []
    words += ["--exclusive"] if given["exclusive"] == "yes" else []
    return [*words, "--requeue" if given["requeue"] == "yes" else "--no-requeue"]


def render(script: Script) -> str:
    """The script, for sbatch and for people."""
    root = str(plain(script.root, "the run directory"))
    lines = [f"#SBATCH {flag}" for flag in flags_of(script)]
    step = ["--ntasks-per-node=1", "--kill-on-bad-exit=1", f"--wait={LAST_SECONDS}", "--unbuffered", "--label"]
    step += ["--cpu-bind=none", "--mpi=none"]
    step += _pyxis(script) if script.container else []
    words = [*step, 'sh -c "$on_each" seatrial "$root" "$nonce"']
    return "\n".join(
        [
            "#!/bin/bash",
            "# One agent on each node; what it runs stands beside this file, in job-N.json.",
            *lines,
            "",
            f"root={shlex.quote(root)}",
            f"nonce={shlex.quote(script.nonce)}",
            f"on_each={shlex.quote(_ON_EACH)}",
            "",
            f'rm -f "$root/{FAILED}"',
            "trap 'touch \"$root\"/nodes/*/stop' TERM INT USR1 USR2",
            "srun \\",
            *(f"  {word} \\" for word in words[:-1]),
            f"  {words[-1]} &",
            'wait "$!"; code=$?',
            'while kill -0 "$!" 2>/dev/null; do wait "$!"; code=$?; done  # a signal had ended the waiting',
            f'[ "$code" -ne 0 ] || [ ! -e "$root/{FAILED}" ] || code=1',
            'exit "$code"',
            "",
        ]
    )


def _pyxis(script: Script) -> list[str]:
    container = script.container
    assert container is not None
    root = str(script.root)
    mounts = [(root, root), *((device, device) for device in container.devices), *container.volumes]
    mounted = ",".join(_mount(here, there) for here, there in mounts)
    # The image's own variables would win over those of the same name that come from outside.
    names = ("SLURM_NODEID", "SLURM_JOB_NODELIST", "SLURM_RESTART_COUNT", *script.secrets)
    return [
        f"{IMAGE}{shlex.quote(enroot_image(container.image))}",
        f"--container-mounts={shlex.quote(mounted)}",
        f"--container-env={','.join(names)}",
        "--no-container-mount-home",
        "--container-writable",
    ]


def _mount(here: str, there: str) -> str:
    """A mount as pyxis writes it; of docker's options it knows read-only."""
    place, _, options = there.partition(":")
    read_only = ":ro" if "ro" in options.split(",") else ""
    return f"{plain(here, 'a volume')}:{plain(place, 'a volume')}{read_only}"


def enroot_image(image: str) -> str:
    """An image as enroot names it: `ghcr.io#nvidia/jax:tag`; a file by a path that begins with / or ./.

    Raises InputError for what is neither.
    """
    if re.search(r"\s|[\x00-\x1f]", image) or image.startswith("-"):
        raise InputError.single(
            "container-image", "container.image", f"{image!r} is not an image name", "name an image"
        )
    if image.endswith(".sqsh"):
        return image if image.startswith(("/", "./", "../")) else f"./{image}"
    image = image.removeprefix("docker://")
    registry, slash, rest = image.partition("/")
    is_registry = slash and "#" not in image and ("." in registry or ":" in registry or registry == "localhost")
    return f"{registry}#{rest}" if is_registry else image


def plain(path: str | PurePath, what: str) -> str | PurePath:
    """A path that neither sbatch nor a list of mounts reads as more than a path. Raises InputError."""
    if not re.fullmatch(r"/[\w./@+=-]*", str(path)):
        why = f"{what} is {str(path)!r}, and some of these characters have a meaning for Slurm"
        raise InputError.single("slurm-path", "--out", why, "use an absolute path of letters, digits and . _ - @ + =")
    return path


def submission(path: Path, script: Script) -> list[str]:
    """sbatch's command line; the secrets go by their names.

    The script's options stand here once more: sbatch's variables win over those in a script, and these over both.
    """
    exported = ",".join(("ALL", *script.secrets))
    return ["sbatch", "--parsable", f"--export={exported}", *flags_of(script), str(path)]


def outside(variables: Mapping[str, str], script: Script) -> dict[str, str]:
    """The variables of the submitting shell that a job may have.

    Of a shell that is in a job itself, it gets none that describe that job: srun takes them for options. And where the
    script asks for devices, nothing else does.
    """
    dropped = (*_OF_JOBS, *(_OF_DEVICES if set(_DEVICES) & set(script.options) else ()))
    return {n: value for n, value in variables.items() if n in _OF_THE_SITE or not n.startswith(dropped)}


_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def recipe_log(spec: RunSpec, engine: str, number: int) -> PurePath:
    """The path of a run's log in NVIDIA's recipe: VERSION/DTYPE/MODEL/GPUS/log-ENGINE-GPUS_MODEL_JOB.out."""
    dtype = spec.precision.quantization or _DTYPES.get(spec.precision.compute_dtype, spec.precision.compute_dtype)
    model = re.sub(r"[^A-Za-z0-9_.-]+", "-", spec.model.name).strip(".") or "model"
    gpus = spec.topology.num_devices
    return PurePath(__version__, dtype, model, str(gpus), f"log-{engine}-{gpus}_{model}_{number}.out")
