"""Stands in the sandbox for programs that would start, change or ask something: records the call, then plays its part.

It is started under the program's name. A wrapper (srun, docker, ssh …) goes on to the command inside it, a program that
is asked about machines answers for a node of eight GPUs, and small Python texts are run; everything else only succeeds.
Standard library only: it runs where nothing else is.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path("/seatrial")
ANY = ROOT / "bin" / ".any"
MAX_TEXT = 1_000_000
MAX_HOSTFILE = 200_000
GPUS = range(8)
PYTHONS = re.compile(r"python[\d.]*")
RUNNERS = re.compile(r"([\w.]+\.)?multihost_(runner|job)\w*(\.py)?")  # MaxText's: start --COMMAND on each host of a TPU
SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
REAL = ("env", "timeout", "nohup", "nice", "stdbuf", "time", "taskset", "printenv", "mkdir")
SCRIPTS = (".sh", ".bash", ".py", ".slurm", ".sbatch")
# Start a training; what stands behind their options is not looked at here.
LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "composer", "horovodrun")
# Read a file that says on which machines they start processes; DeepSpeed's one where none is named.
HOSTFILE_READERS = {
    "deepspeed", "deepspeed.launcher.runner", "mpirun", "mpiexec", "orterun", "prterun", "horovodrun", "accelerate",
}  # fmt: skip
HOSTFILES = ("-H", "--hostfile", "-hostfile", "-machinefile", "--machinefile", "--config_file", "--config-file")
JOB_HOSTFILE = "/job/hostfile"
# Start the command inside them: with all of its environment, or with only the variables that they are given.
KEEPING = (
    "srun", "salloc", "mpirun", "mpiexec", "orterun", "prterun", "prun", "aprun", "jsrun", "flux", "nsys", "ncu",
    "rocprof", "rocprofv3", "omniperf", "numactl", "hwloc-bind", "sudo", "gosu", "su", "conda", "mamba", "micromamba",
    "uv", "poetry", "pixi", "ray", "singularity", "apptainer", "script", "screen", "tmux", "unbuffer", "chroot",
    "strace", "gdb", "ionice", "catchsegv", "neuron_parallel_compile",
)  # fmt: skip
CUTTING = (
    "docker", "podman", "podman-hpc", "nerdctl", "enroot", "shifter", "kubectl", "ssh", "pdsh", "clush",
    "parallel-ssh", "xpk", "gcloud",
)  # fmt: skip
KEPT = ("PATH", "HOME", "USER", "LANG", "TERM", "BASH_ENV", "SEATRIAL_AT", "SEATRIAL_PARENT", "HOSTNAME")
# Behind these, a word is their value and no program.
TAKING = (
    "--name", "--job-name", "-J", "--hostname", "-h", "--network", "--net", "--comment", "--container-name", "--user",
    "-n", "--ntasks", "-N", "--nodes", "-p", "--partition", "-w", "--workdir", "-e", "--env", "-v", "--volume",
)  # fmt: skip
# The options by which a wrapper passes variables on, and those that take several in one word: A=1,B=2.
ENVIRONMENT = {
    **dict.fromkeys(("docker", "podman", "nerdctl", "enroot"), ("-e", "--env")),
    **dict.fromkeys(("mpirun", "mpiexec"), ("-x", "-genv")),
    **dict.fromkeys(("srun", "sbatch"), ("--export",)),
    **dict.fromkeys(("singularity", "apptainer"), ("--env",)),
}
IN_ONE_WORD = ("srun", "sbatch", "singularity", "apptainer")
REMOTE = {"ssh": "bcDEeFIiJLlmOopQRSWw", "pdsh": "wxlfR", "clush": "wxgl"}  # options of one letter with a value
JOB_OPTIONS = {
    "N": "nodes", "n": "ntasks", "J": "job-name", "p": "partition", "A": "account", "c": "cpus-per-task", "t": "time",
    "q": "qos", "G": "gpus", "D": "chdir", "w": "nodelist", "a": "array",
}  # fmt: skip
ALONE = (  # options of sbatch without a value
    "--parsable", "--exclusive", "--requeue", "--no-requeue", "--wait", "-W", "--hold", "-H", "--contiguous", "-O",
    "--overcommit", "-s", "--oversubscribe", "-v", "--verbose", "-Q", "--quiet", "--spread-job", "--test-only", "-h",
    "--help", "-V", "--version", "--ignore-pbs", "--use-min-nodes", "--get-user-env",
)  # fmt: skip

Words = list[str]


def main() -> None:
    """Records this call, and goes on."""
    words = [*sys.argv]
    if Path(words[0]).name == ANY.name:
        words = words[1:]
    if words[0].startswith(f"{ROOT}/"):
        words[0] = Path(words[0]).name
    sys.exit(part_of(Path(words[0]).name)(words) or 0)


def part_of(name: str) -> Callable[[Words], int | None]:
    """The part that a program of this name plays."""
    if PYTHONS.fullmatch(name):
        return python
    if name in KEEPING or name in CUTTING:
        return wrapper
    return PARTS.get(name, other if name in NAMES else unknown)


# --- recording --------------------------------------------------------------------------------------------------------


def record(words: Words, kind: str, before: Sequence[str] = (), text: str = "") -> str:
    """Writes a call down, and returns its number: of a wrapper its own words, and the text on its standard input."""
    own = before or words
    number = f"{time.time_ns():020d}-{os.getpid()}"
    folder = ""
    with suppress(OSError):
        folder = str(Path.cwd())
    call = {
        "argv": words, "kind": kind, "before": before, "text": text, "folder": folder, "files": hostfiles(own),
        "at": os.environ.get("SEATRIAL_AT", ""), "parent": os.environ.get("SEATRIAL_PARENT", ""),
        "environment": {name: value for name, value in os.environ.items() if not name.startswith("SEATRIAL_")},
    }  # fmt: skip
    part = ROOT / "records" / f"{number}.part"
    part.write_text(json.dumps(call), encoding="utf-8", errors="surrogateescape")
    part.rename(part.with_suffix(".json"))
    return number


def hostfiles(words: Sequence[str]) -> dict[str, str]:
    """The text of the file that tells deepspeed, mpirun or accelerate its machines, by its path as it is written."""
    named = {word.rpartition("/")[2] for word in words}
    if not named & HOSTFILE_READERS:
        return {}
    pairs = [*(word.partition("=")[::2] for word in words if "=" in word), *itertools.pairwise(words)]
    paths = [value for option, value in pairs if option in HOSTFILES] or [JOB_HOSTFILE]
    found = {}
    for path in paths[-1:]:
        with suppress(OSError), Path(path).open(encoding="utf-8", errors="replace") as file:
            found[path] = file.read(MAX_HOSTFILE)
    return found


def text_on_input() -> str:
    """The text of a here-document or a pipe; nothing of a terminal or /dev/null."""
    if os.isatty(0) or os.path.realpath("/proc/self/fd/0") == "/dev/null" or not select.select([0], [], [], 0.5)[0]:
        return ""
    return sys.stdin.buffer.read(MAX_TEXT).decode("utf-8", "replace")


def other(words: Words) -> None:
    """Anything else succeeds."""
    starts = Path(words[0]).name in LAUNCHERS
    record(words, "start" if starts else "other", text="" if starts else text_on_input())


def unknown(words: Words) -> None:
    """A program that nobody here knows may start what stands behind it, bound to cores: `bind-cores 0 python …`."""
    (wrapper if inside(words)[1] else other)(words)


# --- Python -----------------------------------------------------------------------------------------------------------


def python(words: Words) -> int | None:
    """A file or module is a start; a text (-c, -, a here-document) is run, with a torch that can only count."""
    place = 1
    while place < len(words) and words[place].startswith("-") and words[place] not in ("-", "-c", "-m"):
        if words[place] in ("--version", "-V"):
            print("Python 3.12.3")
            return 0
        place += 2 if words[place] in ("-W", "-X") else 1
    first = words[place] if place < len(words) else "-"
    if RUNNERS.fullmatch(Path(first if first != "-m" else words[min(place + 1, len(words) - 1)]).name):
        wrapper(words)
        return 0
    if first not in ("-", "-c"):
        record(words, "start")
        return 0
    text = text_on_input() if first == "-" else ""
    record(words, "text", text=text or " ".join(words[place + 1 : place + 2]))
    command = [sys.executable, "-S", first, *words[place + 1 :]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "modules"), "BASH_ENV": ""}
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            command, input=text.encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=3, env=environment
        )
        sys.stdout.buffer.write(done.stdout)
    return 0


# --- wrappers ---------------------------------------------------------------------------------------------------------


def wrapper(words: Words) -> None:
    """Goes on to the command inside; a wrapper without one is a start of its own."""
    name = Path(words[0]).name
    place, command = inside(words)
    record_number = record(words, "wrapper" if command else "start", before=words[:place] if command else ())
    if not command:
        return
    environment = {**os.environ}
    if name in CUTTING:
        environment = {key: value for key, value in environment.items() if key in KEPT}
    if name in CUTTING or any(word.startswith("--container-mounts") for word in words[:place]):
        mount(words[:place])
    environment |= passed(words[:place])
    if name in ("srun", "salloc"):
        environment |= job(job_options(words[1:place], {}))
    if name in ("mpirun", "mpiexec", "orterun", "prterun"):
        environment |= {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMI_RANK": "0"}
    environment["SEATRIAL_PARENT"] = record_number
    start(command, environment)


def nohup(words: Words) -> None:
    """Goes on to its command, which it does not change."""
    if words[1:]:
        start(words[1:], {**os.environ})


def start(command: Words, environment: dict[str, str]) -> None:
    """Becomes a command; of one that is not here, what it is called is recorded all the same."""
    try:
        os.execvpe(command[0], command, environment)
    except OSError:
        os.execve(ANY, [str(ANY), *command], environment)


def inside(words: Words) -> tuple[int, Words]:
    """The end of a wrapper's own words, and the command inside, as words or as a text for bash; [] for none."""
    name = Path(words[0]).name
    for place, word in enumerate(words[1:], start=1):
        option, equals, value = word.partition("=")
        following = words[place + 1 : place + 2]
        if option.lower() in ("--command", "--wrap") and name != "kubectl":
            return place, ["bash", "-c", value if equals else " ".join(following)]
        if name == "su" and word == "-c":
            return place, ["bash", "-c", *following]
        if option == "--entrypoint" and (value or following):
            image = next((at for at in range(place + 1, len(words)) if words[at] == "-c"), len(words)) - 1
            return image + 1, [value or following[0], *words[image + 1 :]]
        if word == "--":
            return place + 1, words[place + 1 :]
    if name in REMOTE:
        return remote(words)
    if PYTHONS.fullmatch(name):
        return len(words), []
    for place, word in enumerate(words[1:], start=1):
        if not word.startswith("-") and words[place - 1] not in TAKING and ":" not in word and is_known(word):
            return place, words[place:]
    return len(words), []


def is_known(word: str) -> bool:
    """True if a word names a program that a wrapper may start."""
    name = Path(word).name
    named = name in SHELLS or name in REAL or name.endswith(SCRIPTS) or bool(PYTHONS.fullmatch(name))
    return named or (name != "" and (ROOT / "bin" / name).exists())


def remote(words: Words) -> tuple[int, Words]:
    """The words behind a host are a text for its shell."""
    name, place = Path(words[0]).name, 1
    while place < len(words) and words[place].startswith("-"):
        place += 2 if words[place][-1] in REMOTE[name] and len(words[place]) == 2 else 1
    place += 1 if name == "ssh" else 0
    return place, ["bash", "-c", " ".join(words[place:])] if place < len(words) else []


def passed(words: Words) -> dict[str, str]:
    """The variables that a wrapper passes on by its options: `-e A=b`, `-eA`, `--env=A=b`, `--export=ALL,A=b`."""
    name, values = Path(words[0]).name, []
    for flag in ENVIRONMENT.get(name, ()):
        joined = f"{flag}=" if flag.startswith("--") else flag
        values += [words[at + 1] for at, word in enumerate(words[:-1]) if word == flag]
        values += [word[len(joined) :].lstrip("=") for word in words if word.startswith(joined) and word != flag]
    if name in IN_ONE_WORD:
        values = [part for value in values for part in value.split(",")]
    pairs = [value.partition("=") for value in values if "=" in value or value in os.environ]
    return {key: value if equals else os.environ[key] for key, equals, value in pairs if key}


def mount(words: Words) -> None:
    """Makes a container's paths (-v here:there) lead to those here, where there is nothing yet."""
    for here, there in re.findall(r"(/[^:,\s]+):(/[^:,\s]+)", " ".join(words)):
        with suppress(OSError):
            if Path(here).exists() and not Path(there).exists():
                Path(there).parent.mkdir(parents=True, exist_ok=True)
                Path(there).symlink_to(here)


# --- Slurm ------------------------------------------------------------------------------------------------------------


def job_options(words: Words, options: dict[str, str]) -> dict[str, str]:
    """`options` and those in the words of sbatch or srun, by their long names."""
    for place, word in enumerate(words):
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
        elif word.startswith("-") and word[1:2] in JOB_OPTIONS:
            key, equals, value = JOB_OPTIONS[word[1]], word[2:], word[2:].lstrip("=")
        else:
            continue
        following = words[place + 1] if place + 1 < len(words) else "-"
        options[key] = value if equals or following.startswith("-") else following
    return options


def job(options: dict[str, str]) -> dict[str, str]:
    """The variables that Slurm sets in the first task of a job of these options."""
    stated = re.match(r"\d{1,5}", options.get("nodes") or os.environ.get("SLURM_NNODES", "1"))
    nodes = max(1, int(stated[0])) if stated else 1
    names = ",".join(f"node{number}" for number in range(1, min(nodes, 4096) + 1))
    tasks = options.get("ntasks-per-node", "")
    total = options.get("ntasks") or str(nodes * int(tasks) if tasks.isdigit() else nodes)
    found = {
        "SLURM_JOB_ID": "1000", "SLURM_JOBID": "1000", "SLURM_NNODES": str(nodes), "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_JOB_NODELIST": names, "SLURM_NODELIST": names, "SLURM_NTASKS": total, "SLURM_NPROCS": total,
        "SLURMD_NODENAME": "node1", "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
        "SLURM_SUBMIT_DIR": os.environ.get("PWD", "/"), "SLURM_SUBMIT_HOST": "node1",
        "SLURM_JOB_NAME": options.get("job-name", "job"), "SLURM_JOB_PARTITION": options.get("partition", "batch"),
    }  # fmt: skip
    if tasks:
        found |= {"SLURM_NTASKS_PER_NODE": tasks, "SLURM_TASKS_PER_NODE": tasks}
    if options.get("cpus-per-task"):
        found["SLURM_CPUS_PER_TASK"] = options["cpus-per-task"]
    gpus = re.search(r"\d+$", options.get("gpus-per-node") or options.get("gres") or "")
    if gpus:
        found |= {"SLURM_GPUS_ON_NODE": gpus[0], "SLURM_GPUS_PER_NODE": gpus[0]}
    if "array" in options:
        first = re.match(r"\d+", options["array"])
        found |= {"SLURM_ARRAY_TASK_ID": first[0] if first else "0", "SLURM_ARRAY_JOB_ID": "1000"}
    return found


def batch(words: Words) -> int:
    """Runs the script of a job at once, as its first node would; it may stand on the standard input."""
    place, text = behind_options(words), ""
    _, command = inside(words) if any(word.startswith("--wrap") for word in words) else (0, [])
    if not command and place < len(words):
        command = ["bash", *words[place:]]
        with suppress(OSError), Path(words[place]).open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_TEXT)
    elif not command:
        text = text_on_input()
        path = ROOT / "scripts" / f"{os.getpid()}.sh"
        path.write_text(text, encoding="utf-8")
        command = ["bash", str(path)]
    stated = [word for line in directives(text) for word in line.split("#")[0].split()]
    options = job_options(words[1:place], job_options(stated, {}))
    is_first = "SEATRIAL_PARENT" not in os.environ
    own = words[: next((at for at, word in enumerate(words) if word.startswith("--wrap")), place)]
    number = record(words, "wrapper", before=[own[0], *stated, *own[1:]], text=text)
    environment = {**os.environ, **job(options), **passed(words), "SEATRIAL_PARENT": number}
    with suppress(OSError):
        os.chdir(options.get("chdir", "."))
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL)
    print("1000" if "--parsable" in words else "Submitted batch job 1000")
    return done.returncode if is_first else 0


def directives(text: str) -> list[str]:
    """The options in a script's #SBATCH lines, which stand before its first command."""
    head = itertools.takewhile(lambda line: not line.strip() or line.startswith("#"), text.splitlines())
    return [line.removeprefix("#SBATCH") for line in head if line.startswith("#SBATCH")]


def behind_options(words: Words) -> int:
    """The place of the first word that is neither an option of sbatch nor the value of one."""
    place = 1
    while place < len(words) and words[place].startswith("-"):
        word = words[place]
        place += 1 if word in ALONE or "=" in word or (word[1:2] != "-" and len(word) > 2) else 2
    return min(place, len(words))


# --- questions about machines -----------------------------------------------------------------------------------------


def answer(text: Callable[[Words], str]) -> Callable[[Words], None]:
    """The part of a program that answers."""

    def part(words: Words) -> None:
        record(words, "answer")
        print(text(words))

    return part


def each_gpu(line: str) -> Callable[[Words], str]:
    """A line for each GPU, in which {} is its number."""
    return lambda _: "\n".join(line.format(gpu) for gpu in GPUS)


def hostname(words: Words) -> str:
    """The name of the node, or its address."""
    return "10.0.0.1" if {"-I", "-i", "--ip-address", "--all-ip-addresses"} & {*words} else "node1"


def nvidia_smi(words: Words) -> str:
    """The list of GPUs, or what is queried of each."""
    line = " ".join(words)
    query = re.search(r"--query-gpu=(\S+)", line)
    if not query:
        return each_gpu("GPU {0}: NVIDIA H100 80GB HBM3 (UUID: GPU-{0})")(words)
    unit = "" if "nounits" in line else " MiB"
    known = {
        "name": "NVIDIA H100 80GB HBM3", "gpu_name": "NVIDIA H100 80GB HBM3", "count": "8", "compute_cap": "9.0",
        "memory.total": f"81559{unit}", "memory.free": f"81559{unit}", "driver_version": "570.86.15",
    }  # fmt: skip
    fields = query[1].split(",")
    rows = [", ".join(str(gpu) if field == "index" else known.get(field, "0") for field in fields) for gpu in GPUS]
    return "\n".join(rows if "noheader" in line else [", ".join(fields), *rows])


def interface(words: Words) -> str:
    """The one network interface, or the route over it."""
    if {"route", "r"} & {*words[1:]}:
        return "default via 10.0.0.254 dev eth0 src 10.0.0.1"
    return "2: eth0: <BROADCAST,UP> mtu 9000 state UP\n    inet 10.0.0.1/16 brd 10.0.255.255 scope global eth0"


def scontrol(words: Words) -> str:
    """The hosts of a list, one a line."""
    if not any(word.startswith("hostname") for word in words[2:3]):
        return ""
    return (words[3] if len(words) > 3 else os.environ.get("SLURM_JOB_NODELIST", "node1")).replace(",", "\n")


# --- programs that leave something behind -----------------------------------------------------------------------------


def git(words: Words) -> None:
    """A clone is an empty folder; every commit is 0."""
    record(words, "other")
    paths = [word for word in words[2:] if not word.startswith("-")]
    if "clone" in words[1:4] and paths:
        with suppress(OSError):
            Path(Path(paths[-1]).name.removesuffix(".git") if ":" in paths[-1] else paths[-1]).mkdir(parents=True)
    elif "--show-toplevel" in words:
        print(os.environ.get("SEATRIAL_PROJECT", "."))
    elif words[1:2] == ["rev-parse"] or "describe" in words:
        print("main" if "--abbrev-ref" in words else "0" * 40)


def fetch(words: Words) -> None:
    """wget, curl: the file that would be there is empty."""
    record(words, "other")
    named = [words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-O", "-o", "--output")]
    sources = [Path(word).name for word in words[1:] if "://" in word] if Path(words[0]).name == "wget" else []
    for path in named or sources:
        if path not in ("-", "", "/dev/null"):
            with suppress(OSError):
                Path(path).touch()


PARTS: dict[str, Callable[[Words], int | None]] = {
    "sbatch": batch, "nohup": nohup, "git": git, "wget": fetch, "curl": fetch, "hostname": answer(hostname),
    "nvidia-smi": answer(nvidia_smi), "ip": answer(interface), "ifconfig": answer(interface),
    "scontrol": answer(scontrol), "ibdev2netdev": answer(each_gpu("mlx5_{0} port 1 ==> ib{0} (Up)")),
    "ibv_devices": answer(each_gpu("    mlx5_{}")), "ibstat": answer(each_gpu("CA 'mlx5_{}'\n\tState: Active")),
    "lspci": answer(each_gpu("0{}:00.0 3D controller: NVIDIA Corporation GH100")),
    **dict.fromkeys(
        ("rocm-smi", "amd-smi", "rocminfo"), answer(each_gpu("GPU[{}]\t\t: Card series: AMD Instinct MI300X gfx942"))
    ),
}  # fmt: skip
SILENT = (
    "pip", "pip3", "apt", "apt-get", "apt-key", "yum", "dnf", "apk", "gsutil", "aws", "az", "huggingface-cli", "hf",
    "rsync", "scp", "sftp", "rclone", "nc", "ncat", "squeue", "sinfo", "scancel", "sacct", "sacctmgr", "sattach",
    "docker-compose", "helm", "systemctl", "service", "modprobe", "mount", "umount", "reboot", "sysctl", "ethtool",
    "cpupower", "tuned-adm", "ninja", "cmake", "make", "pkill", "killall", "nvcc", "module", "activate",
    "tensorboard", "wandb", "ping", "telnet", "crontab", "at",
)  # fmt: skip
NAMES = (*KEEPING, *CUTTING, *LAUNCHERS, *PARTS, *SILENT, "python", "python3", *(f"python3.{n}" for n in range(8, 16)))

if __name__ == "__main__":
    main()
