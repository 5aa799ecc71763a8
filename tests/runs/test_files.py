"""Run directories that somebody else has prepared: links are not followed when writing, nothing blocks when reading."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from seatrial.errors import InputError
from seatrial.runs.files import (
    append_to,
    read_lines,
    read_object,
    touch,
    write_bytes,
    write_json,
    write_named,
    write_text,
)
from tests.helpers.command_line import seatrial
from tests.helpers.run_directory import sound, write, write_judged

CONFIGS = Path(__file__).parents[2] / "configs"
WRITTEN = ("metrics.json", "verdict.json", "report.html", "events-kernel.jsonl", "judged.json")
READ = ("plan.json", "spec.json", "status.json", "metrics.json", "verdict.json", "events-0.jsonl", "judged.json")
pytestmark = pytest.mark.timeout(60)  # a verb that blocks fails its test


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("runs") / "made", sound)


@pytest.fixture
def run_dir(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_text("do not touch")
    return path


# --- writing ----------------------------------------------------------------------------------------------------------


def test_no_link_in_a_run_directory_is_written_through(run_dir: Path, precious: Path, tmp_path: Path) -> None:
    for name in WRITTEN[:4]:
        (run_dir / name).unlink(missing_ok=True)
        (run_dir / name).symlink_to(precious)
        (run_dir / f"{name}.new").symlink_to(precious)
    assert seatrial("judge", run_dir, cwd=tmp_path).returncode in (0, 6)
    assert seatrial("report", run_dir, cwd=tmp_path).returncode == 0
    assert precious.read_text() == "do not touch"
    assert json.loads((run_dir / "verdict.json").read_text())["outcome"] == "pass"
    assert not any((run_dir / name).is_symlink() for name in ("metrics.json", "verdict.json", "report.html"))


def test_nor_is_one_where_the_events_of_another_engine_go(run_dir: Path, precious: Path, tmp_path: Path) -> None:
    plan = json.loads((run_dir / "plan.json").read_text())
    (run_dir / "plan.json").write_text(json.dumps({**plan, "engine": "maxtext"}))
    for path in run_dir.glob("events-*.jsonl"):
        path.unlink()
    for process in range(len(plan["processes"])):
        (run_dir / f"events-{process}.jsonl").symlink_to(precious)
    seatrial("judge", run_dir, cwd=tmp_path)
    assert precious.read_text() == "do not touch"
    assert not (run_dir / "events-0.jsonl").is_symlink()


def test_options_of_a_judgement_are_kept_without_following_a_link(precious: Path, tmp_path: Path) -> None:
    run_dir = write_judged(tmp_path / "judged", sound)
    precious.write_text((run_dir / "judged.json").read_text())
    before = precious.read_text()
    (run_dir / "judged.json").unlink()
    (run_dir / "judged.json").symlink_to(precious)
    assert seatrial("judge", run_dir, "--tokens", "1T", cwd=tmp_path).returncode in (0, 6)
    assert precious.read_text() == before
    assert json.loads((run_dir / "judged.json").read_text())["tokens"] == 1e12


def test_stop_makes_nothing_where_a_linked_folder_leads(run_dir: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.rmtree(run_dir / "launch", ignore_errors=True)
    (run_dir / "launch").symlink_to(elsewhere)
    now = time.time()
    status = {"v": 1, "state": "running", "reason": None, "launcher_pid": os.getpid(), "started": now, "heartbeat": now}
    write_json(run_dir / "status.json", status)
    done = seatrial("stop", run_dir, cwd=tmp_path)
    assert (done.returncode, list(elsewhere.iterdir())) == (2, [])
    assert "launch" in done.stderr
    assert "link" in done.stderr


def test_a_name_that_can_be_foreseen_is_used_by_nobody(tmp_path: Path) -> None:
    """Whatever stands beside a file, replacing it touches nothing else; and nobody ever sees half of it."""
    folder, texts = tmp_path / "run", [f"{n}" * 100_000 for n in range(8)]
    folder.mkdir()
    path = folder / "status.json"
    path.write_text(texts[0])
    over = threading.Event()

    def replace() -> None:
        while not over.is_set():
            write_text(path, random.choice(texts))

    threads = [threading.Thread(target=replace) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert all(path.read_text() in texts for _ in range(300))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert [each.name for each in folder.iterdir()] == ["status.json"]


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half of a character: \ud800")
    assert path.read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["verdict.json"]


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "report.xml").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_text(tmp_path / "report.xml", "text")
    assert caught.value.filename == str(tmp_path / "report.xml")


def test_what_a_user_names_is_replaced_through_a_link_and_written_to_where_it_is_no_file(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to("target")
    for words in ("first", "second"):
        write_named(link, words)
        assert (link.is_symlink(), target.read_text()) == (True, words)
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_text)
        write_named(pipe, "to the reader")
        assert read.result(timeout=30) == "to the reader"
    assert pipe.is_fifo()
    write_named(Path("/dev/null"), "to nobody")
    with pytest.raises(IsADirectoryError) as caught:
        write_named(tmp_path, "text")
    assert caught.value.filename == str(tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "pipe", "target"]


@pytest.mark.parametrize("below", ["nodes", "nodes/host"])
def test_no_folder_below_the_run_directory_may_be_a_link(tmp_path: Path, below: str) -> None:
    run_dir, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (run_dir / below).parent.mkdir(parents=True)
    (run_dir / below).symlink_to(elsewhere)
    path = run_dir / "nodes" / "host" / "rank0.log"
    for act in (lambda: write_text(path, "", below=run_dir), lambda: append_to(path, below=run_dir).close()):
        with pytest.raises(InputError, match="it is a link"):
            act()
    assert list(elsewhere.iterdir()) == []


def test_nor_may_a_file_that_is_added_to(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "log").symlink_to(precious)
    with pytest.raises(InputError, match="it is a link"):
        append_to(tmp_path / "log")
    with pytest.raises(InputError, match="it is a link"):
        touch(tmp_path / "log", below=tmp_path)
    write_bytes(tmp_path / "log", b"")
    assert not (tmp_path / "log").is_symlink()
    assert precious.read_text() == "do not touch"


# --- permissions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o755])
def test_a_configuration_is_kept_for_those_who_may_read_it(tmp_path: Path, mode: int) -> None:
    from seatrial.runs.directory import copy_config

    config, run_dir = tmp_path / "mine.yaml", tmp_path / "run"
    config.write_text("token: secret")
    config.chmod(mode)
    run_dir.mkdir()
    copy_config(config, run_dir)
    kept = stat.S_IMODE((run_dir / "config.yaml").stat().st_mode)
    assert kept == mode & 0o666 & ~_umask()
    assert (run_dir / "config.yaml").read_bytes() == config.read_bytes()


def test_a_run_keeps_it_so(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_bytes((CONFIGS / "native" / "eight-devices.yaml").read_bytes())
    config.chmod(0o600)
    log = tmp_path / "train.log"
    log.write_text("".join(f"completed step: {n}, seconds: 0.5, loss: {9 - n / 9:.3f}\n" for n in range(30)))
    done = seatrial("judge", log, "--against", config, "--out", "judged", cwd=tmp_path)
    assert done.returncode in (0, 1, 6), done.stderr
    assert stat.S_IMODE((tmp_path / "judged" / "config.yaml").stat().st_mode) == 0o600


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["judge", "report", "logs", "stop"])
@pytest.mark.parametrize("what", ["fifo", "zero"])
def test_what_never_ends_does_not_hang_a_verb(made: Path, tmp_path: Path, verb: str, what: str) -> None:
    for name in READ:
        run_dir = Path(shutil.copytree(made, tmp_path / name))
        (run_dir / name).unlink(missing_ok=True)
        if what == "fifo":
            os.mkfifo(run_dir / name)
        else:
            (run_dir / name).symlink_to("/dev/zero")
        done = seatrial(verb, run_dir, cwd=tmp_path)
        assert "Traceback" not in done.stderr, (name, done.stderr)
        assert done.returncode in (0, 2, 6), (name, done.returncode, done.stderr)
    run_dir = tmp_path / "plan.json"
    assert seatrial("judge", run_dir, cwd=tmp_path).returncode == 2


def test_the_history_reads_on_past_them(made: Path, tmp_path: Path) -> None:
    for name in READ:
        run_dir = Path(shutil.copytree(made, tmp_path / "runs" / name))
        (run_dir / name).unlink(missing_ok=True)
        os.mkfifo(run_dir / name)
    done = seatrial("history", "--root", "runs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "plan.json is not a regular file" in done.stdout + done.stderr


def test_a_sparse_file_of_a_terabyte_is_not_read(made: Path, tmp_path: Path) -> None:
    for name in ("plan.json", "events-0.jsonl"):
        run_dir = Path(shutil.copytree(made, tmp_path / name))
        with (run_dir / name).open("r+b") as file:
            file.truncate(1 << 40)
        done = seatrial("judge", run_dir, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert name in done.stderr


def test_lines_and_objects_are_what_a_plain_reader_gives(tmp_path: Path) -> None:
    noise = random.Random(7)
    for _ in range(50):
        text = "".join(noise.choice("ab{}\n\u00e9\u2028\r \U0001f600") for _ in range(noise.randrange(200)))
        (tmp_path / "lines").write_bytes(text.encode())
        with (tmp_path / "lines").open(encoding="utf-8", errors="replace") as file:
            assert list(read_lines(tmp_path / "lines")) == list(file)
        data = {text: [noise.random(), None, {"x": text}]}
        write_json(tmp_path / "object.json", data)
        assert read_object(tmp_path / "object.json") == data


@pytest.mark.parametrize(
    ("text", "why"),
    [("[1]", "not a JSON object"), ("{", "not JSON"), ("", "not JSON"), ("[" * 100_000, "brackets too deep")],
    ids=["a list", "cut", "empty", "nested"],
)  # fmt: skip
def test_a_document_that_is_none_says_why(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ValueError, match=f"plan.json .*{why}"):
        read_object(tmp_path / "plan.json")


@pytest.mark.parametrize("transport", ["carrier-pigeon", "", None, 5, [], {}], ids=repr)
@pytest.mark.parametrize("verb", ["stop", "attach"])
def test_an_unknown_transport_is_refused(run_dir: Path, tmp_path: Path, verb: str, transport: object) -> None:
    plan = json.loads((run_dir / "plan.json").read_text())
    write_json(run_dir / "plan.json", {**plan, "on": "ssh"})
    status = {"v": 1, "state": "running", "reason": None, "launcher_pid": -1, "started": 1.0, "heartbeat": 1.0}
    write_json(run_dir / "status.json", status)
    host = {"name": "node0", "address": "127.0.0.1", "port": 1, "ranks": [0]}
    places = {"v": 1, "root": "/tmp/x", "transport": transport, "user": None, "key_file": None, "hosts": [host]}
    write_json(run_dir / "launch" / "places.json", places, below=run_dir)
    done = seatrial(verb, run_dir, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert f"no transport is called {transport!r}" in done.stderr or "launch/places.json cannot be read" in done.stderr


@pytest.mark.parametrize("name", ["../outside", "/etc/seatrial-outside", "nodes/../../outside"])
def test_nothing_is_written_outside_of_the_run_directory(run_dir: Path, name: str) -> None:
    with pytest.raises(InputError, match="is outside"):
        write_text(run_dir / name / "stop", "", below=run_dir)
    assert not (run_dir / name).exists()


ODD_STATUSES = [
    '{"state":"running"}', "[]", "5", '{"processes": {}}', '{"processes": [1]}', '{"processes": [{"rank": []}]}',
    '{"processes": [{"rank": 0, "started": "x"}]}', '{"processes": [{"rank": 0, "started": 1e400, "ended": 1}]}',
    '{"processes": [{"rank": 0, "started": NaN, "ended": NaN, "last_output": 1}]}',
]  # fmt: skip


@pytest.mark.parametrize("text", ODD_STATUSES)
def test_a_node_whose_status_is_none_does_not_keep_its_logs_from_being_judged(
    run_dir: Path, tmp_path: Path, text: str
) -> None:
    plan = json.loads((run_dir / "plan.json").read_text())
    write_json(run_dir / "plan.json", {**plan, "engine": "maxtext"})
    write_text(run_dir / "nodes" / "local0" / "status.json", text, below=run_dir)
    done = seatrial("judge", run_dir, cwd=tmp_path)
    assert done.returncode in (0, 1, 4, 6), done.stderr
    assert seatrial("report", run_dir, cwd=tmp_path).returncode == 0
