"""From a resolved configuration to a verdict: plan → launch → follow → measure → judge → report.

Every stage reads files of the run directory and writes its own, so that each can be redone from what is there; the
decisions themselves are made elsewhere, by functions that touch nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import util
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from seatrial.command import Secret
from seatrial.commands import preflight as host_checks
from seatrial.commands.judge import judge_and_report
from seatrial.commands.retries import again, beginning, promise, resumed, set_aside, settle
from seatrial.dialects.data_files import has_data
from seatrial.engines import engine as engine_called
from seatrial.errors import InputError, LaunchError
from seatrial.launch.deadlines import Deadlines
from seatrial.launch.display import watched
from seatrial.launch.job import revealed
from seatrial.launch.local import free_port, this_machine
from seatrial.launch.targets import checked, on_hosts, scripts, target
from seatrial.launch.where import HERE, Where
from seatrial.plan import Plan, Site, collapsed, collapsed_to_fit, decided, make_plan, without_secrets
from seatrial.report.problems import inert
from seatrial.runs.directory import claim, new_directory, resolved_as_dict, short_path, write_inputs
from seatrial.runs.files import write_text
from seatrial.runs.status import write_status
from seatrial.shrink import rehearsal as rehearsing
from seatrial.spec import Resolved, RunSpec

if TYPE_CHECKING:
    from seatrial.verdict import Verdict

SHARED_FILES_SECONDS = 60.0
_FROM_LAUNCHERS = {
    "nodes": ("NNODES",),
    "rank": ("NODE_RANK",),
    "address": ("MASTER_ADDR", "JAX_COORDINATOR_IP"),
    "port": ("MASTER_PORT", "JAX_COORDINATOR_PORT"),
}


def run(
    resolved: Resolved,
    *,
    config: Path,
    where: Where = HERE,
    engine: str,
    rehearse: bool,
    collapse: bool = False,
    out: Path | None,
    retries: int = 0,
    deadlines: Deadlines | None = None,
) -> Verdict:
    """Runs a configuration to its verdict, live on the terminal; the report is in the run directory.

    A run that machines have ended is tried again up to `retries` times. Raises LaunchError where nothing can be
    started, InputError where the engine or the run directory cannot be used.
    """
    spec, small = _spec(resolved), _small(rehearse, collapse)
    run_dir = (out or new_directory(spec)).resolve()
    there = target(checked(where).on)
    for attempt in count(1):
        with beginning(run_dir):
            site = there.site(where, spec, run_dir)
            trained = resumed(spec) if attempt > 1 or there.restarts(where) else spec
            plan = _plan(
                trained, run_dir, on=where.on, engine=engine, small=small, site=site, attempt=attempt,
                coordinator=f"127.0.0.1:{free_port()}",
            )  # fmt: skip
            if attempt == 1:
                claim(run_dir)
                write_status(run_dir, plan.spec, "starting")
            write_inputs(resolved, config, plan, run_dir)
            if attempt <= retries:
                promise(run_dir)
            print(f"run directory: {short_path(run_dir)}", flush=True)
            _tell(plan.notes)
            if site is not None and there.KNOWS_ITS_HOSTS and where.preflight:
                host_checks.before_run(plan, site, run_dir, transport=where.ssh)
            with watched(run_dir, plan.spec, plan.engine, deadlines) as following:
                there.run(plan, run_dir, following, where=where, site=site, attempt=attempt)
        text, verdict = judge_and_report(run_dir)
        if attempt > retries or verdict.outcome == "pass":
            break
        worth_it, why, blamed = again(verdict, run_dir, plan, site)
        print(f"attempt {attempt} of {1 + retries} is over; {inert(why)}", flush=True)
        if not worth_it:
            break
        set_aside(run_dir, plan.spec, attempt)
        where = there.without(where, blamed) if blamed else where
    settle(run_dir)
    print(text, flush=True)
    return verdict


def preflight(
    resolved: Resolved | None, *, where: Where, engine: str, rehearse: bool, as_json: bool
) -> tuple[str, bool]:
    """What there is to say of the hosts of a cluster file, and whether each of them can run the configuration, or any.

    Raises InputError where there are no hosts.
    """
    where = on_hosts(where)
    if not target(where.on).KNOWS_ITS_HOSTS:
        why = "under Slurm there is no preflight: it allots hosts only when a job begins"
        fix = (
            "try a job (`seatrial run CONFIG --on slurm --rehearse`), or look at hosts by SSH: --on ssh --cluster FILE"
        )
        raise InputError.single("slurm-hosts", "--on", why, fix)
    checked(where)
    spec = _spec(resolved) if resolved else None
    site = target(where.on).site(where, spec, Path("preflight"))
    assert site is not None
    return host_checks.preflight(spec, site, transport=where.ssh, engine=engine, rehearsing=rehearse, as_json=as_json)


def describe(
    resolved: Resolved,
    *,
    where: Where = HERE,
    engine: str = "native",
    rehearse: bool,
    collapse: bool = False,
    as_json: bool,
) -> str:
    """What `run` would do: every value with its origin, what to expect of it, every process's command, and its files.

    Where this machine has not what the run asks for, there are no commands, but a note that says so.
    """
    from seatrial.report.expected import expected, expected_lines

    spec = _spec(resolved)
    run_dir, small = new_directory(spec).resolve(), _small(rehearse, collapse)
    try:
        site = target(checked(where).on).site(where, spec, run_dir)
        plan, missing = _plan(spec, run_dir, on=where.on, engine=engine, small=small, site=site), ""
    except LaunchError as error:
        plan, missing = None, str(error)
    if as_json:
        made = plan and {**plan.as_dict(), "files": {**plan.files, **scripts(where, plan, run_dir)}}
        shown = {"asked": resolved_as_dict(resolved), "expected": expected(spec, engine), "plan": made}
        return json.dumps({"v": 1, **shown, **({"missing": missing} if missing else {})}, indent=1)
    values = [(path, _shown(value), _origin(resolved, path)) for path, value in _leaves(without_secrets(spec))]
    sections = ["# The run, value by value", _table(values)]
    sections += ["# What to expect of it", _table([(a, b, inert(c)) for a, b, c in expected_lines(spec, engine)])]
    if plan is None:
        return "\n\n".join([*sections, f"note: {inert(missing)}"])
    if plan.rehearsal:
        changes = [(c.path, f"{_shown(c.original)} → {_shown(c.rehearsed)}", c.why) for c in plan.rehearsal.changes]
        sections += [f"# What the {'collapse' if plan.rehearsal.collapsed else 'rehearsal'} changes", _table(changes)]
    for process in plan.processes:
        sections += [f"# Process {process.rank} on {process.host.name}", process.command.shell()]
    files = {**plan.files, **scripts(where, plan, run_dir)}
    texts = ((path, text) for path, text in files.items() if not path.endswith(".json"))  # that is the spec above
    sections += [f"# File {path}\n\n{_lines(text)}" for path, text in texts]
    sections += [f"note: {note}" for note in plan.notes]
    return "\n\n".join(sections)


def explained(resolved: Resolved, key: str, *, as_json: bool) -> str:
    """Where a value came from and what each dialect calls it. Raises InputError for a key that means none."""
    from seatrial.dialects.explain import explain

    _spec(resolved)
    found = explain(resolved, key)
    if as_json:
        return json.dumps({"v": 1, "key": key, "values": [each.as_dict() for each in found]}, indent=1)
    return "\n\n".join("\n".join(inert(line) for line in each.lines()) for each in found)


def train_here(resolved: Resolved, *, config: Path, out: Path | None) -> Never:
    """Becomes the trainer process of a configuration: this process is replaced, and ends with the trainer's code.

    A run over several nodes needs what launchers export: NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT (or the CVS
    spelling JAX_COORDINATOR_IP and JAX_COORDINATOR_PORT), and `--out` on a file system that all nodes share. Raises
    LaunchError where these, or the devices, are missing.
    """
    spec = _spec(resolved)
    rank, coordinator = _place(spec, os.environ)
    if coordinator and out is None:
        raise LaunchError("a run over several nodes needs a run directory that all of them share: give --out DIR")
    run_dir = (out or new_directory(spec)).resolve()
    plan = _plan(spec, run_dir, coordinator=coordinator, nodes_here=1)
    command = plan.processes[rank].command
    if rank == 0:
        claim(run_dir)
        write_inputs(resolved, config, plan, run_dir)
        for relative, text in command.files.items():
            write_text(run_dir / relative, text, below=run_dir)
    else:
        _await_files([run_dir / relative for relative in command.files])
    _tell(plan.notes)
    os.execve(command.argv[0], command.argv, {**os.environ, **revealed(command.environment)})


def require_trainer() -> None:
    if util.find_spec("jax") is None:
        raise LaunchError("the trainer needs jax, which is not installed: pip install 'seatrial[train]'")


def _spec(resolved: Resolved) -> RunSpec:
    if resolved.spec is None:
        raise InputError(resolved.problems)
    return resolved.spec


def _small(rehearse: bool, collapse: bool) -> str | None:
    if rehearse and collapse:
        why, fix = "a rehearsal shrinks the mesh as well", "give --rehearse or --collapse"
        raise InputError.single("two-ways", "--collapse", why, fix)
    return "rehearse" if rehearse else "collapse" if collapse else None


def _plan(
    spec: RunSpec,
    run_dir: Path,
    *,
    engine: str = "native",
    small: str | None = None,
    site: Site | None = None,
    **options: Any,
) -> Plan:
    needs_jax = engine_called(engine).NEEDS_JAX_HERE and site is None
    machine = this_machine(for_jax=needs_jax)
    if needs_jax:
        require_trainer()
    rehearsal = None
    if small == "collapse":  # what fits is decided for the devices here
        rehearsal, why = (collapsed_to_fit if site is None else collapsed)(spec, machine, engine)[:2]
    else:
        spec, why = decided(spec, machine, engine)
    if small == "rehearse":
        rehearsal = rehearsing.rehearse(
            spec,
            cores=machine.cores,
            memory_bytes=machine.memory_bytes,
            has_data=has_data(spec),
            hosts=len(site.cluster.hosts) if site else None,
            fixed=engine_called(engine).FIXED,
        )
    return make_plan(
        spec,
        run_dir=run_dir,
        machine=machine,
        engine=engine,
        site=site,
        rehearsal=rehearsal,
        secrets=_secrets(spec),
        shell=os.environ,
        why=why,
        **options,
    )


def _secrets(spec: RunSpec) -> dict[str, Secret]:
    """Variables that the configuration names a file of; none where the file cannot be read here."""
    if spec.hf_token_file is None:
        return {}
    try:
        token = Path(spec.hf_token_file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError, RuntimeError):
        return {}
    return {"HF_TOKEN": Secret(token)} if token else {}


def _place(spec: RunSpec, environ: Mapping[str, str]) -> tuple[int, str | None]:
    """(rank, host:port of rank 0) from what launchers export; rank 0 without a coordinator for a single node."""
    nodes = spec.topology.num_nodes
    if nodes == 1:
        return 0, None
    found = {}
    for what, spellings in _FROM_LAUNCHERS.items():
        names = [name for name in spellings if environ.get(name)]
        if not names:
            raise LaunchError(
                f"a run over {nodes} nodes needs {' or '.join(spellings)} in the environment of each of its processes; "
                "to run them all on this machine, use `seatrial run`"
            )
        found[what] = environ[names[0]]
    if found["nodes"] != str(nodes) or found["rank"] not in map(str, range(nodes)):
        raise LaunchError(f"the launcher says rank {found['rank']} of {found['nodes']}, the run has {nodes} nodes")
    return int(found["rank"]), f"{found['address']}:{found['port']}"


def _tell(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"note: {inert(note)}", flush=True)


def _await_files(paths: Sequence[Path]) -> None:
    """Waits for what rank 0 writes. Raises LaunchError where it does not come."""
    deadline = time.monotonic() + SHARED_FILES_SECONDS
    while missing := [path for path in paths if not path.exists()]:
        if time.monotonic() > deadline:
            raise LaunchError(f"rank 0 has not written {missing[0]}: is that file system shared by all nodes?")
        time.sleep(0.1)


def _table(rows: Sequence[tuple[str, str, str]]) -> str:
    """Rows of three columns, the first two padded to their longest entry (of a bearable length)."""
    first, second = (min(limit, max(len(row[n]) for row in rows)) for n, limit in enumerate((48, 32)))
    return "\n".join(f"{a:{first}} = {b:{second}}  {c}".rstrip() for a, b, c in rows)


def _lines(text: str) -> str:
    return "\n".join(inert(line) for line in text.rstrip("\n").split("\n"))


def _leaves(data: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    """Nested mappings as (dotted path, value), in order."""
    for key, value in data.items():
        path = f"{parent}.{key}" if parent else key
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, path)
        else:
            yield path, value


def _shown(value: Any) -> str:
    return inert(value if isinstance(value, str) else json.dumps(value, default=str))


def _origin(resolved: Resolved, path: str) -> str:
    origin = resolved.origin(path)
    place: str = origin.kind
    if origin.kind == "file":
        mark = origin.mark
        place = f"{Path(mark.file).name}:{mark.line}:{mark.column} {origin.key}" if mark else origin.key
    elif origin.kind == "override":
        place = f"override {origin.key}"
    return inert(f"{place}; {origin.note}" if origin.note else place)
