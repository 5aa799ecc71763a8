"""MaxText as commands: a YAML file that changes its base.yml, and its train.py on every node.

A process a node, as its `hardware: gpu` has it: it takes rank and coordinator from NODE_RANK, NNODES and
JAX_COORDINATOR_IP and _PORT (MaxText/max_utils.py). Where train.py is depends on the image and its age, so it is looked
for on the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from seatrial.command import Command, Secret, guarded, is_secret
from seatrial.dialects import maxtext as dialect
from seatrial.dialects.maxtext import writer
from seatrial.dialects.maxtext.keys import DEFAULTS
from seatrial.dialects.maxtext.values import SEGMENTS
from seatrial.dialects.table.versions import versions
from seatrial.dialects.yaml_writer import dump
from seatrial.engines import Commands, Ground, Placement, fit, folders, nics
from seatrial.estimate import hardware
from seatrial.spec import AXES, RunSpec
from seatrial.xla_flags import PLAIN_CPU_FLAGS, THREADS_PER_DEVICE, as_text, flags_of

TITLE = "MaxText"
STEP_PATTERN = r"completed (?:profiler activation/deactivation )?step: (\d+)"
FIRST_STEP = 0
FAMILY = "maxtext"
ON_CPU = True
FIXED = (("model", "rope_scaling"),)  # rope_type: llama3.1 has its numbers in the program
NEEDS_JAX_HERE = False

CONFIG_FILE = "launch/maxtext.yml"
ROOT = "MAXTEXT_ROOT"  # a variable of ours: where MaxText is, if at none of ROOTS
# AMD's image, NVIDIA's, Google's; first the folder in which the process is started.
ROOTS = (".", "/workspace/maxtext", "/opt/maxtext", "/deps")
SCRIPTS = ("src/maxtext/trainers/pre_train/train.py", "src/MaxText/train.py", "MaxText/train.py")  # newest first
# "$0" is sh, then: the Python, PROBE, the configuration, and (folder, script in it) as often as there are candidates.
START = """\
python=$1 probe=$2 config=$3
shift 3
if [ -n "${XLA_FLAGS-}" ] && known=$("$python" -c "$probe"); then
  XLA_FLAGS=$known
  export XLA_FLAGS
fi
while [ "$#" -ge 2 ]; do
  if [ -f "$1/$2" ]; then
    CDPATH= cd -- "$1" || exit 127
    case $2 in
      src/*) PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH} ;;
      *) PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} ;;
    esac
    export PYTHONPATH
    exec "$python" "$2" "$config"
  fi
  shift 2
done
exec "$python" -m maxtext.trainers.pre_train.train "$config"
"""

# Prints XLA_FLAGS without those that the jaxlib there does not know: for one of them it would end the process. The
# first look finds them all. Where there is no jaxlib that could say, they are as they were.
PROBE = """\
import os, re, subprocess, sys
flags = os.environ["XLA_FLAGS"].split()
program = "from jaxlib import xla_client; xla_client.make_cpu_client()"
told = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, universal_newlines=True).stderr
lines = re.findall(r"Unknown flags? in XLA_FLAGS: (.*)", told)
unknown = {word.lstrip("-").partition("=")[0] for line in lines for word in line.split()}
left = [flag for flag in flags if flag.lstrip("-").partition("=")[0] in unknown]
if left:
    print("seatrial: left out of XLA_FLAGS, which this jaxlib does not know:", *left, file=sys.stderr, flush=True)
print(*(flag for flag in flags if flag not in left))
"""

# What CVS exports to every process beside what its configurations say (lib/jax_training_lib.py).
AMD = {"HSA_FORCE_FINE_GRAIN_PCIE": "1", "HIP_FORCE_DEV_KERNARG": "1", "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "1"}
SEVERAL_NODES = {"NCCL_CROSS_NIC": "0"}
ONE_NODE = {"NCCL_IB_DISABLE": "1", "NCCL_SHM_DISABLE": "0", "NCCL_P2P_DISABLE": "0"}
# Which it exports otherwise.
DIFFERENCES = (
    "JAX_COORDINATOR_ADDRESS is host:port, as JAX reads it; CVS exports the host alone",
    "LD_LIBRARY_PATH is left to the image; CVS puts the host's into it",
    "the log is what the agent reads from the process; CVS leaves the lines with external/xla/xla/ out of its own",
)

# Said even where they are as MaxText has them, as are those that every version since 2024 has. All others are said only
# where they are stated or differ from its defaults: a version that does not know a key ends at it.
_ALWAYS = {
    "run_name", "hardware", "model_name", "normalization_layer_epsilon", "steps", "per_device_batch_size",
    "max_target_length", "dtype", "weight_dtype", "dataset_type", "attention", "remat_policy", "scan_layers",
    "enable_checkpointing", "gradient_accumulation_steps", "learning_rate", "packing", "base_output_directory",
    *(f"{part}_{axis}_parallelism" for part in ("ici", "dcn") for axis in ("data", "fsdp", "pipeline", "tensor")),
}  # fmt: skip
# These say that there is nothing.
_NOTHING: Mapping[str, Any] = {
    "learning_rate_schedule_steps": -1, "eval_interval": -1, "eval_steps": -1, "target_eval_loss": 0.0,
    "quantization": "",
}  # fmt: skip
_OF_CHECKPOINTS = ("async_checkpointing", "checkpoint_period", "max_num_checkpoints_to_keep")
# Keys of the engine's that a run decides, whatever is stated.
_OF_THE_RUN = {
    "base_config": "it is the image's base.yml", "hf_access_token": "a token goes by HF_TOKEN",
    "hardware": "the devices that are there decide", "skip_jax_distributed_system": "the number of processes decides",
    "compile_topology": "the program runs on the devices that are there",
    "compile_topology_num_slices": "the program runs on the devices that are there",
    "enable_goodput_recording": "it is a service of Google Cloud's",
    "monitor_goodput": "it is a service of Google Cloud's",
}  # fmt: skip


def commands(spec: RunSpec, ground: Ground) -> Commands:
    """The same file for every node, and the node's own variables."""
    variables, stated = writer.stated(spec)
    on_cpu = any(placement.cpu_devices for placement in ground.placements)
    notes = fit.notes_on(fit.left(dialect.write(spec).notes, besides=_besides(spec)), title=TITLE, name="maxtext")
    one_slice = _is_one_slice(spec, ground, on_cpu=on_cpu)
    config = dump(dict(_config(spec, stated, ground, on_cpu=on_cpu, one_slice=one_slice)))
    files = {CONFIG_FILE: config}
    given = {name: str(value) for name, value in spec.execution.environment.items() if is_secret(name)}
    places = [word for root in folders(spec, ROOT, ROOTS) for script in SCRIPTS for word in (root, script)]
    python = ground.python or "python3"
    argv = ("sh", "-c", START, "sh", python, PROBE, str(ground.run_dir / CONFIG_FILE), *places)
    variables.pop("XLA_FLAGS", None)
    each = [
        Command(
            argv=argv,
            environment={
                **_defaults(spec, on_cpu=on_cpu), **guarded(variables), **guarded(given), **ground.secrets,
                **_of_process(spec, ground, rank, placement), **placement.environment,
            },
            files=files,
        )
        for rank, placement in enumerate(ground.placements)
    ]  # fmt: skip
    about = (*nics.notes(spec, contained=ground.contained), *ground.token_note(spec))
    notes += [*_notes(spec, ground, on_cpu=on_cpu, one_slice=one_slice), *about]
    return Commands(each=each, notes=notes, dropped=fit.dropped(spec, "maxtext"))


def _besides(spec: RunSpec) -> tuple[str, ...]:
    """The fields that need no note: the file has them although the command would not, or they have no effect here."""
    idle = () if spec.checkpoint.enabled else ("checkpoint",)
    return ("log_dir", "data.index_dir", "parallelism.sequence_parallel", *idle)


def _is_one_slice(spec: RunSpec, ground: Ground, *, on_cpu: bool) -> bool:
    """True if MaxText treats all nodes as one slice, and rejects axes across slices (configs/types.py).

    A device says which slice it is in: CPUs say nothing, GPUs number the machines (XLA tells those by their boot id),
    and nodes that meet at a loopback address are one machine.
    """
    host, _ = ground.rendezvous(spec)
    return len(ground.placements) > 1 and (on_cpu or host == "localhost" or host.startswith("127."))


def _in_one_slice(stated: Mapping[str, Any]) -> dict[str, int]:
    """The axes' keys with the sizes across nodes multiplied into those of the slice."""
    across = {key: size for key, size in stated.items() if re.fullmatch(r"dcn_\w+_parallelism", key)}
    within = {key: key.replace("dcn", "ici", 1) for key in across}
    return dict.fromkeys(across, 1) | {within[key]: stated[within[key]] * size for key, size in across.items()}


def _other_crossing(spec: RunSpec) -> Iterator[str]:
    """A note where a slice of all nodes has other devices side by side than the run asks for.

    MaxText numbers a slice's devices node by node, the last axis fastest (its order of the axes is ours): that is the
    mesh asked for only where each axis before the last one across nodes has no part within a node.
    """
    slow = spec.parallelism.across_nodes.resolve(spec.topology.num_nodes).sizes
    fast = spec.parallelism.within_node.resolve(spec.topology.devices_per_node).sizes
    crossing = [axis for axis in AXES if slow[axis] > 1]
    before = AXES[: AXES.index(crossing[-1])] if crossing else ()
    if any(fast[axis] > 1 for axis in before):
        mesh = " × ".join(f"{axis} {slow[axis] * fast[axis]}" for axis in AXES if slow[axis] * fast[axis] > 1)
        yield (
            f"here MaxText treats all nodes as one slice: the mesh is {mesh}, as asked for, but laid over the nodes in "
            f"this order, so that other axes cross the nodes than {' and '.join(crossing)}"
        )


def _config(
    spec: RunSpec, stated: Mapping[str, Any], ground: Ground, *, on_cpu: bool, one_slice: bool
) -> Iterator[tuple[str, Any]]:
    """The keys of the file, in order."""
    yield "base_config", "base.yml"
    values = {name: value for name, value in stated.items() if name not in _OF_THE_RUN or name == "hardware"}
    values |= {"packing": spec.data.packing}
    if one_slice:
        values |= _in_one_slice(stated)
    values.setdefault("base_output_directory", str(ground.run_dir / "maxtext"))
    if on_cpu:
        values = dict(_on_cpu(values, spec, one_process=len(ground.placements) == 1))
    of_all_times = {name for name, each in versions("maxtext").items() if not each.since and not each.gone}
    always = _ALWAYS | of_all_times | {*spec.execution.engine_keys}
    nested: dict[str, Any] = {}
    for key, value in values.items():
        default = _NOTHING.get(key, DEFAULTS.get(key, _NOTHING))
        if key == "mu_dtype":  # by default as weight_dtype
            default = values["weight_dtype"]
        idle = key in _OF_CHECKPOINTS and not spec.checkpoint.enabled
        if key not in always and (value == default or idle or (key == "adamw_mask" and not value)):
            continue
        if "." in key:
            group, _, name = key.partition(".")
            nested.setdefault(group, {})[name] = value
        else:
            yield key, value
    yield from nested.items()
    if spec.data.packing and not on_cpu and "max_segments_per_seq" not in values:
        yield "max_segments_per_seq", SEGMENTS
    yield "enable_goodput_recording", False  # services of Google Cloud's, which old versions have on
    yield "monitor_goodput", False


def _on_cpu(values: Mapping[str, Any], spec: RunSpec, *, one_process: bool) -> Iterator[tuple[str, Any]]:
    """The keys as CPUs can run them, whose one attention is of all keys together and needs no limit of segments.

    MaxText before 2025-11 has no such limit either.
    """
    own = {"hardware": "cpu", "attention": "dot_product"}
    of_attention = {"context_parallel_strategy", "max_segments_per_seq"} - spec.execution.engine_keys.keys()
    for name, value in values.items():
        if name not in of_attention:
            yield name, own.get(name, value)
    yield from ((name, value) for name, value in own.items() if name not in values)
    if one_process:  # which needs no coordinator
        yield "skip_jax_distributed_system", True


def _defaults(spec: RunSpec, *, on_cpu: bool) -> dict[str, str | Secret]:
    """Variables that hold unless the configuration says otherwise.

    Where nothing says which devices a process has, JAX gives it a single one under Slurm (MaxText's issues 865, 3433);
    HIP reads CUDA's variable as well.
    """
    device = hardware.find(spec.topology.device)
    devices = ",".join(map(str, range(spec.topology.devices_per_node)))
    return {
        **({} if on_cpu else {"CUDA_VISIBLE_DEVICES": devices}),
        **(AMD if device and device.vendor == "amd" else {}),
        **({"NVTE_FUSED_ATTN": "1"} if spec.execution.attention == "cudnn_flash_te" else {}),
        **(SEVERAL_NODES if spec.topology.num_nodes > 1 else ONE_NODE),
        **nics.environment(spec),
    }


def _of_process(spec: RunSpec, ground: Ground, rank: int, placement: Placement) -> dict[str, str]:
    """The rank and coordinator of a process in every spelling that programs read, and its flags."""
    nodes = str(len(ground.placements))
    host, port = ground.rendezvous(spec)
    plain = PLAIN_CPU_FLAGS if placement.cpu_devices else {}
    flags = {**plain, **flags_of((ground.shell or {}).get("XLA_FLAGS", "")), **spec.execution.xla_flags}
    if placement.cpu_devices:
        flags["xla_force_host_platform_device_count"] = str(placement.cpu_devices)
    variables = {
        "PYTHONUNBUFFERED": "1",
        "NNODES": nodes, "NODE_RANK": str(rank), "JAX_COORDINATOR_IP": host, "JAX_COORDINATOR_PORT": port,  # MaxText
        "JAX_COORDINATOR_ADDRESS": f"{host}:{port}", "JAX_NUM_PROCESSES": nodes, "JAX_PROCESS_ID": str(rank),  # JAX
        "JAX_PROCESS_COUNT": nodes, "JAX_PROCESS_INDEX": str(rank),  # CVS since 2026
    }  # fmt: skip
    if flags:  # without any, the image's own hold
        variables["XLA_FLAGS"] = as_text(flags)
    if placement.cpu_devices:  # what MaxText's `hardware: cpu` reads: its port is fixed, and the address has none
        variables |= {
            "JAX_PLATFORMS": "cpu", "DECOUPLE_GCLOUD": "TRUE", "JAX_COORDINATOR_ADDRESS": host,
            "PJRT_NPROC": str(THREADS_PER_DEVICE * placement.cpu_devices),
            "JOB_INDEX": "0", "JOB_COMPLETION_INDEX": str(rank), "PROCESSES_IN_JOB": nodes,
        }  # fmt: skip
    return variables


def _notes(spec: RunSpec, ground: Ground, *, on_cpu: bool, one_slice: bool) -> Iterator[str]:
    if on_cpu and spec.mesh["context"] > 1 and spec.parallelism.context_strategy == "ring":
        yield "on CPUs MaxText has no ring: each device gathers all keys and values"
    if one_slice:
        yield from _other_crossing(spec)
    for name, why in _OF_THE_RUN.items():
        if spec.execution.engine_keys.get(name, "false") not in ("false", "gpu"):
            yield f"MaxText does not get {name} as it stands: {why}"
    if spec.dialect.startswith("cvs"):
        yield from DIFFERENCES
        if not spec.data.packing:
            yield "packing is false: CVS says true, which MaxText since 0.2.0 refuses with cudnn_flash_te"
    own = {"NNODES", "NODE_RANK", "JAX_COORDINATOR_IP", "JAX_COORDINATOR_PORT"}
    for name, value in spec.container.environment.items() if spec.container and ground.contained else ():
        actual = _of_process(spec, ground, 0, ground.placements[0]).get(name)
        if name in own and actual != value:
            yield f"the container's {name}={value} is not what runs: every process gets its own ({actual} on rank 0)"
    if spec.execution.xla_flags:
        yield "each node removes from XLA_FLAGS what its jaxlib does not know, and says so in its log"
    if spec.checkpoint.enabled and len(ground.placements) > 1 and spec.log_dir is None:
        yield f"checkpoints go to {ground.run_dir / 'maxtext'}, which all nodes must share: give base_output_directory"
