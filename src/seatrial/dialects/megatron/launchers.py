"""The launcher before a Megatron command: torchrun, DeepSpeed's runner, accelerate, srun, mpirun, or none that is seen.

Each says in its own way how many nodes there are, and how many processes each has, one a device; here these become
torchrun's `nnodes` and `nproc_per_node`. Where none says it, `Settings.unstated` has the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from seatrial.dialects.jobs import EACH, NODES
from seatrial.dialects.megatron import hostfiles
from seatrial.dialects.megatron.arguments import LAUNCHER, flag
from seatrial.dialects.megatron.script import ASSUMED_DEVICES
from seatrial.dialects.megatron.settings import ALL, TORCHRUN, Settings, groups
from seatrial.dialects.table.entries import Entry
from seatrial.dialects.table.suggestions import did_you_mean
from seatrial.errors import InputError
from seatrial.source import Document, Node, parse

_TORCHRUN = ("torchrun", "torch.distributed.launch", "torch.distributed.run")
_DEEPSPEED = ("deepspeed", "deepspeed.launcher.runner")
_ACCELERATE = ("accelerate-launch", "accelerate.commands.launch")
_MPIRUN = ("mpirun", "mpiexec", "orterun", "prterun", "horovodrun")
_KNOWN = "torchrun, deepspeed, accelerate, srun, mpirun and horovodrun"
_NNODES, _NPROC = f"{TORCHRUN}nnodes", f"{TORCHRUN}nproc_per_node"
_SHORT = {"-m": "module", "-r": "redirects", "-t": "tee"}  # torchrun's
_OPTIONS = tuple(f"--{name}" for name in LAUNCHER)


def program(word: Node) -> str:
    """The name of the program that a word is."""
    return str(word.value).rpartition("/")[2]


def take_launcher(found: Settings, words: Sequence[Node], document: Document) -> None:
    """Takes what the words before the program say of nodes and processes."""
    names = [program(word) for word in words]
    place = next((i for i, name in enumerate(names) if name in (*_TORCHRUN, *_DEEPSPEED)), None)
    accelerate = next((i for i in range(len(names)) if _is_accelerate(names, i)), None)
    if place is not None and names[place] in _DEEPSPEED:
        _take_deepspeed(found, words[place], words[place + 1 :], document)
    elif place is None and accelerate is not None:
        _take_accelerate(found, words[accelerate], words[accelerate + 1 :], document)
    elif place is not None:
        for option, values in groups(words[place + 1 :]):
            if option is not None:  # else it is an interpreter or a wrapper
                _take_torchrun(found, option, values)
        _take_variables_of_torchrun(found, _variables(document))
    else:
        for path, name in ((NODES, _NNODES), (EACH, _NPROC)):
            if path in found.job:
                found.take(name, replace(found.job[path], value=found.job[path].text))
        _take_mpirun(found, words, document)
        if _NNODES in found.entries and _NPROC not in found.entries:
            found.unstated = _unstated("srun says of how many nodes, but neither tasks nor GPUs of a node")


def take_world(found: Settings, stated: Mapping[str, Entry]) -> None:
    """Of a program that nothing starts on several devices: how many processes WORLD_SIZE, or --world-size, says."""
    given = [found.entries[name] for name in (_NNODES, _NPROC) if name in found.entries]
    if any(entry.is_override for entry in given):
        found.unstated = ""
    if given:
        return
    entry = next((each for each in (found.entries.get("world-size"), stated.get("WORLD_SIZE")) if each), None)
    each = stated.get("LOCAL_WORLD_SIZE")
    world = int(entry.text) if entry and entry.text.isdecimal() else 0
    if entry is None or world < 1:
        found.unstated = _unstated(f"none of {_KNOWN} starts it, and no WORLD_SIZE is given")
        return
    of_node = int(each.text) if each and each.text.isdecimal() and int(each.text) else min(world, ASSUMED_DEVICES)
    if world % of_node == 0:
        _take_machines(found, entry, world // of_node, of_node)
    if world > of_node and not each:
        why = f"nothing says on how many nodes these {world} processes are; {of_node} on each are assumed"
        found.problems.append(entry.problem("info", "assumed", why, "give nnodes=… and nproc_per_node=…"))


def _unstated(why: str) -> str:
    return f"nothing says how many devices a node has ({why}), so that one is assumed"


def _word(key: str, word: Node) -> Entry:
    """A launcher itself, for findings about what no option of it says."""
    return Entry(key=key, value="", text="", mark=word.mark, key_mark=word.mark)


def _hostfile(path: str, document: Document) -> str | None:
    """The text of a launcher's file, if it is in a captured file or on this machine."""
    captured = document.root.members["files"].members if "files" in document.root.members else {}
    return hostfiles.text_of(path, {name: str(node.value) for name, node in captured.items()}, document.folder)


def _variables(document: Document) -> Mapping[str, Node]:
    """The variables of the command."""
    return document.root.members["environment"].members if "environment" in document.root.members else {}


def _take_machines(found: Settings, entry: Entry, nodes: int, each: int) -> None:
    """Takes a number of nodes and of processes on each, both from one place."""
    for name, value in ((_NNODES, nodes), (_NPROC, each)):
        found.take(name, replace(entry, value=str(value), text=str(value)))


def _options(found: Settings, words: Sequence[Node], known: Mapping[str, str]) -> Iterator[tuple[str, Entry]]:
    """The options of a launcher that matter here, by what they say."""
    for option, values in groups(words):
        written, equals, value = str(option.value).partition("=") if option else ("", "", "")
        if option is None or written not in known:
            continue
        if not equals and not values:
            found.report(option, written, "missing-value", "its value is missing", "write it after the option")
        else:
            node, said = (option, value) if equals else (values[0], str(values[0].value))
            yield known[written], Entry(key=written, value=said, text=said, mark=node.mark, key_mark=node.mark)


# --- torchrun ---------------------------------------------------------------------------------------------------------


def _take_torchrun(found: Settings, option: Node, values: Sequence[Node]) -> None:
    word = str(option.value)
    written, equals, value = word.lstrip("-").partition("=")
    name = _SHORT.get(word) or _whole(written.replace("-", "_"), is_long=word.startswith("--"))
    if name not in LAUNCHER:
        why, fix = "torchrun has no such option", did_you_mean(f"--{name}", _OPTIONS)
        if written in ALL:
            why, fix = f"{why}: it is one of pretrain_gpt.py's", "write it after the program"
        found.report(option, word.partition("=")[0], "unknown-argument", why, fix)
    elif LAUNCHER[name].read is not flag:
        is_behind = bool(values) and not equals
        node, value = (values[0], str(values[0].value)) if is_behind else (option, value)
        entry = Entry(key=f"--{written}", value=value, text=value, mark=node.mark, key_mark=node.mark)
        found.take(f"{TORCHRUN}{name}", entry)


def _whole(name: str, *, is_long: bool) -> str:
    """The option that a name is, or the only one that begins so: argparse takes a beginning for it."""
    begun = [option for option in LAUNCHER if is_long and name and option.startswith(name)]
    return begun[0] if len(begun) == 1 else name


def _take_variables_of_torchrun(found: Settings, variables: Mapping[str, Node]) -> None:
    """Takes PET_NNODES and the like, which torchrun reads for what its words do not say."""
    for name, key in LAUNCHER.items():
        node = variables.get(f"PET_{name.upper()}")
        if node is not None and key.read is not flag and f"{TORCHRUN}{name}" not in found.entries:
            found.take(f"{TORCHRUN}{name}", Entry.of(f"PET_{name.upper()}", node))


# --- DeepSpeed --------------------------------------------------------------------------------------------------------

_OF_RUNNER = {  # its options that matter here
    "-H": "hostfile", "--hostfile": "hostfile", "-i": "include", "--include": "include", "-e": "exclude",
    "--exclude": "exclude", "--num_nodes": "num_nodes", "--num_gpus": "num_gpus", "--num_accelerators": "num_gpus",
    "--master_addr": "master_addr", "--master_port": "master_port",
}  # fmt: skip


def _take_deepspeed(found: Settings, runner: Node, words: Sequence[Node], document: Document) -> None:
    """The machines that DeepSpeed's runner takes: those of its hostfile, or this node where there is none."""
    given = dict(_options(found, words, _OF_RUNNER))
    for name in ("master_addr", "master_port"):
        if name in given:
            found.take(f"{TORCHRUN}{name}", given[name])
    itself = _word("deepspeed", runner)
    file = given.get("hostfile")
    path = file.text if file else hostfiles.JOB_HOSTFILE
    text = _hostfile(path, document)
    try:
        by = _selection(given)
        by = _visible(by, _variables(document)) if text is None else by
        if text is None and not by.is_local:
            _without_hostfile(found, file or itself, path, by)
            return
        slots = {hostfiles.LOCAL: ASSUMED_DEVICES} if text is None else hostfiles.slots_of(text)
        machines = hostfiles.selected(slots, by)
        if text is None and ":" not in by.include:
            found.unstated = f"there is no hostfile {path} here: {ASSUMED_DEVICES} devices of this node are assumed"
    except ValueError as error:
        where = f"{path}: " if text is not None else ""
        fix = "correct it: DeepSpeed starts nothing as it is"
        found.problems.append((file or itself).problem("error", "bad-hostfile", f"{where}{error}", fix))
        return
    sizes = {host: len(numbers) for host, numbers in machines.items()}
    if len(set(sizes.values())) > 1:
        few, many = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
        why = (
            f"{path}: of {few} {sizes[few]} slots are used, of {many} {sizes[many]}; "
            "here all nodes have the same number of devices"
        )
        fix = f"give each as many: --num_gpus {sizes[few]}"
        found.problems.append((file or itself).problem("error", "uneven-nodes", why, fix))
        return
    _take_machines(found, file or itself, len(sizes), next(iter(sizes.values())))


def _selection(given: Mapping[str, Entry]) -> hostfiles.Selection:
    """The runner's options of this name. Raises ValueError for a number that is none."""
    texts = {name: entry.text for name, entry in given.items()}
    numbers = {name: texts[name] for name in ("num_nodes", "num_gpus") if name in texts}
    for name, text in numbers.items():
        if not re.fullmatch(r"-?\d{1,6}", text):
            raise ValueError(f"--{name} {text} is not a whole number")
    return hostfiles.Selection(
        include=texts.get("include", ""), exclude=texts.get("exclude", ""),
        **{name: int(text) for name, text in numbers.items()},
    )  # fmt: skip


def _visible(by: hostfiles.Selection, variables: Mapping[str, Node]) -> hostfiles.Selection:
    """The selection that the runner makes of CUDA_VISIBLE_DEVICES, where there is neither a hostfile nor an option."""
    devices = str(variables["CUDA_VISIBLE_DEVICES"].value) if "CUDA_VISIBLE_DEVICES" in variables else ""
    is_open = not (by.include or by.exclude or by.num_nodes > 1 or by.num_gpus > 0)
    is_list = bool(re.fullmatch(r"\d{1,3}(,\d{1,3})*", devices))  # of devices, by their numbers
    return replace(by, include=f"{hostfiles.LOCAL}:{devices}") if is_list and is_open else by


def _without_hostfile(found: Settings, entry: Entry, path: str, by: hostfiles.Selection) -> None:
    """Without the file, the runner takes the devices of its own node, and refuses to be given more nodes."""
    is_elsewhere = by.num_nodes > 1 or bool(by.include or by.exclude)
    without = "does not start" if is_elsewhere else "trains on the devices of one node"
    why = f"there is no hostfile {path} here, without which DeepSpeed {without}"
    if by.num_gpus > 0 and (by.num_nodes > 0 or not is_elsewhere):
        if is_elsewhere:
            found.problems.append(entry.problem("warning", "no-hostfile", why, "have it there when it is started"))
        _take_machines(found, entry, max(1, by.num_nodes), by.num_gpus)
        return
    found.unstated = f"{why}: {ASSUMED_DEVICES} a node are assumed"
    _take_machines(found, entry, max(1, by.num_nodes), ASSUMED_DEVICES)


# --- accelerate -------------------------------------------------------------------------------------------------------

# Its options that matter here, with _ or -; all but the first are keys of its file, too.
_NAMES = ("config_file", "num_machines", "num_processes", "main_process_ip", "main_process_port")
_OF_ACCELERATE = {f"--{written}": name for name in _NAMES for written in (name, name.replace("_", "-"))}


def _is_accelerate(names: Sequence[str], place: int) -> bool:
    return names[place] in _ACCELERATE or tuple(names[place : place + 2]) == ("accelerate", "launch")


def _take_accelerate(found: Settings, launcher: Node, words: Sequence[Node], document: Document) -> None:
    """Takes the number of processes, which all machines share, by its options or by the file that they name."""
    given = dict(_options(found, words, _OF_ACCELERATE))
    file = given.get("config_file")
    text = _hostfile(file.text, document) if file else None
    stated = {**(_stated_in(found, file.text, text) if file and text is not None else {}), **given}
    for name, option in (("main_process_ip", "master_addr"), ("main_process_port", "master_port")):
        if name in stated:
            found.take(f"{TORCHRUN}{option}", stated[name])
    machines, processes = stated.get("num_machines"), stated.get("num_processes")
    if wrong := next((entry for entry in (machines, processes) if entry and not entry.text.isdecimal()), None):
        found.take(_NNODES if wrong is machines else _NPROC, wrong)  # which says what is wrong with it
        return
    if file and text is None and not (machines and processes):
        found.unstated = (
            f"there is no {file.text} here, which may say how many machines and processes accelerate starts"
        )
    elif not processes:
        found.unstated = "accelerate starts a process for each device of its node, and nothing says how many it has"
    nodes = max(1, int(machines.text)) if machines else 1
    each = max(1, int(processes.text) // nodes) if processes else ASSUMED_DEVICES
    if found.unstated:
        found.unstated += f": {nodes} × {each} are assumed"
    _take_machines(found, processes or machines or file or _word("accelerate launch", launcher), nodes, each)


def _stated_in(found: Settings, path: str, text: str) -> Mapping[str, Entry]:
    """The same in accelerate's file, which is YAML or JSON; -1 is a number that the command says."""
    try:
        members = parse(text, file=path, is_json=text.lstrip().startswith("{")).root.members
    except InputError as error:
        found.problems += error.problems
        return {}
    named = {name: Entry.of(name, members[name]) for name in _NAMES[1:] if name in members}
    return {name: entry for name, entry in named.items() if entry.value not in (None, -1)}


# --- mpirun -----------------------------------------------------------------------------------------------------------

_ALL_PROCESSES = ("-np", "--np", "-n", "-c", "--num-proc")
_OF_A_NODE = ("-npernode", "--npernode", "-N", "-ppn", "--ppn", "-perhost")
_HOSTS = ("-H", "-host", "--host", "-hosts", "--hosts")
_HOSTFILE = ("-hostfile", "--hostfile", "-machinefile", "--machinefile")
_MAPPED = ("-map-by", "--map-by")
_EACH_NODE = re.compile(r"ppr:(\d{1,3}):node(:.*)?")


_Given = Mapping[str, tuple[str, Node]]  # option → (value, the word that has it)


def _take_mpirun(found: Settings, words: Sequence[Node], document: Document) -> None:
    """Takes the number of processes that mpirun, or horovodrun, starts, one a device, and how many are on a node.

    Where it does not give the latter, its list of hosts may, which it fills one after the other; else all are on one.
    """
    start = next((i for i, word in enumerate(words) if program(word) in _MPIRUN), None)
    if start is None:
        return
    given = dict(reversed([*_options_of_mpirun(words[start + 1 :])]))  # the first one of each counts
    total = _first(given, _ALL_PROCESSES)
    if total is None or not total[0].isdecimal():
        return
    each = _first(given, _OF_A_NODE)
    each = each if each is not None and each[0].isdecimal() else _mapped(given)
    processes = int(total[0])
    of_a_node = int(each[0]) if each else _on_hosts(found, given, processes, document)
    if of_a_node and processes % of_a_node == 0:
        for name, value, at in ((_NNODES, processes // of_a_node, total), (_NPROC, of_a_node, each or total)):
            entry = Entry(
                key=f"{program(words[start])} -np",
                value=str(value),
                text=str(value),
                mark=at[1].mark,
                key_mark=at[1].mark,
            )
            found.take(name, entry)


def _first(given: _Given, names: Sequence[str]) -> tuple[str, Node] | None:
    """The first of some options."""
    return next((given[name] for name in names if name in given), None)


def _mapped(given: _Given) -> tuple[str, Node] | None:
    """The number in `--map-by ppr:8:node`."""
    value = _first(given, _MAPPED)
    match = _EACH_NODE.fullmatch(value[0]) if value else None
    return (match[1], value[1]) if match and value else None


def _on_hosts(found: Settings, given: _Given, processes: int, document: Document) -> int:
    """The number of processes on each host, by mpirun's list of hosts; all of them where that does not tell."""
    here, file = _first(given, _HOSTS), _first(given, _HOSTFILE)
    named = here or file
    if named is None:
        return processes
    text = _lines_of(named[0]) if here else _hostfile(named[0], document)
    machines = hostfiles.filled(hostfiles.mpi_slots(text), processes) if text is not None else None
    if machines is None:
        why = f"there is no {named[0]} here" if text is None else "its hosts do not say how many each has"
        found.unstated = f"mpirun starts {processes} processes, and {why}: all are assumed on one node"
    return machines[1] if machines else processes


def _options_of_mpirun(words: Sequence[Node]) -> Iterator[tuple[str, tuple[str, Node]]]:
    """(option, (value, its word)) of each pair of words, and of each `--option=value`."""
    for word, behind in zip_longest(words, words[1:]):
        name, equals, value = str(word.value).partition("=")
        if name.startswith("-") and equals:
            yield name, (value, word)
        elif behind is not None:
            yield name, (str(behind.value), behind)


def _lines_of(hosts: str) -> str:
    """The hosts of `-H a:8,b:8` as the lines of a file; a host without a number has one process each time."""
    return "\n".join(host if ":" in host else f"{host}:1" for host in hosts.split(","))
