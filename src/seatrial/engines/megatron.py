"""Megatron-LM as commands: ROCm's train_llama2.sh or train_llama3.sh with its variables, or torchrun pretrain_gpt.py.

torchrun starts a process a device, so this is one command a node as well. The script is taken for AMD's devices where
its variables can say the run; its log is then a copy of what the agent reads, in a folder that is the node's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath

from seatrial.check.network import INTERFACES
from seatrial.command import Command, Secret, guarded, is_secret
from seatrial.dialects import megatron as dialect
from seatrial.dialects.megatron.script import SCRIPTS
from seatrial.dialects.megatron.write import EXAMPLES, command, script_variables
from seatrial.dialects.table import engine_keys
from seatrial.engines import Commands, Ground, Placement, fit, folders, nics
from seatrial.errors import InputError
from seatrial.estimate import hardware
from seatrial.spec import RunSpec

TITLE = "Megatron-LM"
STEP_PATTERN = r"\biteration +(\d+)/ *\d+ *\|"
FIRST_STEP = 1
FAMILY = "megatron"
ON_CPU = False
FIXED = ()
NEEDS_JAX_HERE = False

PROGRAM = "pretrain_gpt.py"
ROOT = "MEGATRON_ROOT"  # a variable of ours: where Megatron-LM is, if at none of ROOTS
# First the folder in which the process is started; then AMD's image, NVIDIA's PyTorch and NeMo images.
ROOTS = (".", "/workspace/Megatron-LM", "/workspace/megatron-lm", "/opt/megatron-lm", "/opt/Megatron-LM")
# "$0" is sh, then: the file that must be there, how many folders follow, these, and the words of the command.
START = """\
wanted=$1 left=$2 found=
shift 2
while [ "$left" -gt 0 ]; do
  if [ -z "$found" ] && [ -f "$1/$wanted" ]; then found=$1; fi
  left=$((left - 1))
  shift
done
if [ -z "$found" ]; then
  echo "seatrial: $wanted is in none of the folders where Megatron-LM is looked for; set MEGATRON_ROOT" >&2
  exit 127
fi
CDPATH= cd -- "$found" || exit 127
exec "$@"
"""

# What holds unless the configuration says otherwise; the scripts export it themselves (ROCm/Megatron-LM 32d5d428).
AMD = {
    "HSA_NO_SCRATCH_RECLAIM": "1", "GPU_MAX_HW_QUEUES": "2", "TORCH_NCCL_HIGH_PRIORITY": "1", "NCCL_PROTO": "Simple",
    "NCCL_CHECKS_DISABLE": "1", "RCCL_MSCCL_ENABLE": "0", "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip
SEVERAL_NODES = {"NCCL_CROSS_NIC": "0"}
USUAL = {"PP": "1", "FSDP": "0", "RECOMPUTE": "0"}  # said even so, as CVS does: a script's defaults change with its age
_INERT = re.compile(r"[\w./@%+=:,-]*")  # the script puts its variables into a text and has the shell evaluate that
INTERFACE = "ens51np0"  # which the scripts take over several nodes, where nobody names one

# What the script need not know for the run to be the same.
_NOT_THE_SCRIPTS = (
    "log_dir", "logging", "data.index_dir", "data.tokenizer", "execution.xla_flags", "execution.compile_cache",
    "execution.scan_layers", "execution.profile_steps", "model.max_positions",
)  # fmt: skip
_NOT_TORCHS = ("execution.xla_flags", "execution.compile_cache", "execution.scan_layers", "log_dir", "data.index_dir")


def commands(spec: RunSpec, ground: Ground) -> Commands:
    """The same words for every node but for its rank, and the variables of the node."""
    spec = _placed(spec, ground)
    device = hardware.find(spec.topology.device)
    is_amd = device is None or device.vendor == "amd"
    idle = () if spec.checkpoint.enabled else ("checkpoint",)
    auto = ("execution.attention",) if spec.execution.attention == "auto" else ()
    unsaid = _unsaid_by_script(spec, (*_NOT_THE_SCRIPTS, *idle, *auto))
    odd = _odd(_variables(spec, ground, 0)[1])
    arguments = [name for name in spec.execution.engine_keys if engine_keys.is_argument(name)]
    left_out = fit.dropped(spec, "megatron")
    if is_amd and not unsaid and not odd and not arguments:
        make, notes = _script, list[str]()
    else:
        left = fit.left(dialect.write(spec, "arguments").notes, besides=(*_NOT_TORCHS, *idle))
        make, notes = _torchrun, fit.notes_on(left, title=TITLE, name="megatron")
        if is_amd:
            unsaid_names = [*dict.fromkeys(unsaid), *arguments]
            paths = ", ".join(unsaid_names[:4]) + (" …" if len(unsaid_names) > 4 else "")
            why = (
                f"whose variables cannot say {paths}"
                if unsaid_names
                else f"whose shell would take {odd} for more than a value"
            )
            notes.append(f"{PROGRAM} is started without ROCm's script, {why}")
    of_hosts = (*nics.notes(spec, contained=ground.contained), *ground.token_note(spec))
    each = [make(spec, ground, rank, placement) for rank, placement in enumerate(ground.placements)]
    if make is _torchrun:
        left_out += [name for name in spec.execution.engine_keys if engine_keys.is_variable(name)]
    notes += [*_notes(spec, ground, is_script=make is _script), *of_hosts]
    return Commands(each=each, notes=notes, dropped=left_out)


def _unsaid_by_script(spec: RunSpec, besides: tuple[str, ...]) -> list[str]:
    """The paths of values that the script's variables cannot say; of a run that it would refuse, the run itself."""
    try:
        return [note.path for note in fit.left(dialect.write(spec, "environment").notes, besides=besides)]
    except InputError:
        return ["the run as it is"]


def _placed(spec: RunSpec, ground: Ground) -> RunSpec:
    """The spec with its checkpoints in the run directory, unless it says where: else they go where Megatron-LM is."""
    if not spec.checkpoint.enabled or spec.checkpoint.directory is not None:
        return spec
    return replace(spec, checkpoint=replace(spec.checkpoint, directory=str(ground.run_dir / "checkpoints")))


def _script(spec: RunSpec, ground: Ground, rank: int, placement: Placement) -> Command:
    """ROCm's script, by its variables."""
    given, own, path = _variables(spec, ground, rank)
    # With this variable, set even to nothing, no version since 2026 trains on mock data.
    without = () if "DATA_PATH" in own else ("env", "-u", "DATA_PATH")
    argv = _argv(spec, path, (*without, "bash", path))
    return Command(argv=argv, environment=_environment(spec, ground, placement, given, own))


def _variables(spec: RunSpec, ground: Ground, rank: int) -> tuple[dict[str, str], dict[str, str], str]:
    """(variables of the processes, those of the script, the script)."""
    given, variables, name = script_variables(spec)
    host, port = ground.rendezvous(spec)
    host = host.strip("[]")  # torchrun takes an IPv6 address as it is
    is_real = "DATA_PATH" in variables
    inside = spec.container.environment.get("TOKENIZER_MODEL") if spec.container else None
    own = {
        **USUAL,
        "TOKENIZER_MODEL": inside or str(SCRIPTS[name].defaults["TOKENIZER_MODEL"]),
        **variables,
        **({"DATA_CACHE_PATH": spec.data.index_dir} if spec.data.index_dir else {}),
        "MOCK_DATA": str(int(not is_real)),  # read by versions before 2026, in which it is 1 unless it is said
        "NNODES": str(len(ground.placements)), "NODE_RANK": str(rank), "MASTER_ADDR": host, "MASTER_PORT": port,
        "LOG_DIR": str(_own_folder(ground, rank)), "TEE_OUTPUT": "1",
    }  # fmt: skip
    return given, own, f"{EXAMPLES}/{name}"


def _odd(own: Mapping[str, str]) -> str:
    """The first of the script's variables that a shell could take for more than a value; DATA_PATH is several words."""
    words = ((name, word) for name, text in own.items() for word in (text.split() if name == "DATA_PATH" else [text]))
    return next((f"{name}={word!r}" for name, word in words if not _INERT.fullmatch(word)), "")


def _torchrun(spec: RunSpec, ground: Ground, rank: int, placement: Placement) -> Command:
    """torchrun with the arguments of pretrain_gpt.py."""
    given, _, arguments = command(spec)
    host, port = ground.rendezvous(spec)
    host = host.strip("[]")  # torchrun takes an IPv6 address as it is
    launcher = (
        "torchrun", f"--nproc_per_node={spec.topology.devices_per_node}", f"--nnodes={len(ground.placements)}",
        f"--node_rank={rank}", f"--master_addr={host}", f"--master_port={port}", PROGRAM,
    )  # fmt: skip
    words = [word for argument in arguments for word in argument]
    argv = _argv(spec, PROGRAM, (*launcher, *words, *(() if "--log-throughput" in words else ("--log-throughput",))))
    return Command(argv=argv, environment=_environment(spec, ground, placement, given, {}))


def _argv(spec: RunSpec, wanted: str, words: tuple[str, ...]) -> tuple[str, ...]:
    roots = folders(spec, ROOT, ROOTS)
    return ("sh", "-c", START, "sh", wanted, str(len(roots)), *roots, *words)


def _environment(
    spec: RunSpec, ground: Ground, placement: Placement, given: Mapping[str, str], own: Mapping[str, str]
) -> dict[str, str | Secret]:
    """Defaults, what the configuration says, what makes the run the one that was planned."""
    device = hardware.find(spec.topology.device)
    secrets = {name: value for name, value in spec.execution.environment.items() if is_secret(name)}
    return {
        **(AMD if device and device.vendor == "amd" and not own else {}),  # the script sets them itself
        **(SEVERAL_NODES if len(ground.placements) > 1 else {}),
        **nics.environment(spec),
        **guarded({**given, **secrets}),
        **ground.secrets,
        "PYTHONUNBUFFERED": "1",
        **own,
        **placement.environment,
    }


def _own_folder(ground: Ground, rank: int) -> PurePath:
    return ground.run_dir / "nodes" / ground.hosts[rank] / "megatron"


def _notes(spec: RunSpec, ground: Ground, *, is_script: bool) -> Iterator[str]:
    several = len(ground.placements) > 1
    if several and spec.checkpoint.enabled:
        yield f"checkpoints go to {spec.checkpoint.directory}, which all nodes must share"
    if not is_script:
        return
    yield f"LOG_DIR is {_own_folder(ground, 0)} and so on, of each node its own: the script copies its log into it"
    tokenizer = _variables(spec, ground, 0)[1]["TOKENIZER_MODEL"]
    if not tokenizer.startswith("/"):
        yield (
            f"every node fetches the tokenizer {tokenizer} from Hugging Face, the scripts before 2026 by wget with "
            "HF_TOKEN among its arguments; the container's variable TOKENIZER_MODEL can name a folder that is there"
        )
    if spec.log_dir:
        yield f"nothing is written to {spec.log_dir}, which the configuration names: logs are in the run directory"
    if spec.dialect == "cvs-megatron":
        yield "the script sets its TRAIN_LOG itself; CVS edits the script, and has two programs write that file"
    if several and not {*INTERFACES} <= spec.execution.environment.keys():
        yield (
            f"the script takes the network interface {INTERFACE}, a name of its authors' cluster, unless "
            "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME are given, and not both are"
        )
    if several and not ground.contained:
        yield "at its end the script writes tmp.txt where Megatron-LM is: nodes that share the folder share that file"
