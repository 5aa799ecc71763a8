"""The frame that all families share: prefixes, numbers, attempts, copies of lines, and the fast path."""

from __future__ import annotations

import gzip
import io
import math
import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial import logs
from seatrial.events import Event, Fault, RunEnded, RunStarted, Step
from seatrial.logs import lines, numbers, reader
from seatrial.logs.lines import all_without_codes, hosts_of, read_lines, read_prefix, split_line, without_codes
from tests.helpers.log_cases import HERE, both, folders


def line(step: int, total: int = 50, *, loss: str = "2.5", seconds: float = 1.0, at: str = "") -> str:
    return (
        f"{at} iteration {step:8d}/{total:8d} | consumed samples: {step * 16:12d} | elapsed time per iteration (ms): "
        f"{seconds * 1000:.1f} | learning rate: 1.000000E-04 | global batch size:    16 | lm loss: {loss} | "
        "loss scale: 1.0 | grad norm: 1.250 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def parse(log: Iterable[str]) -> list[Event]:
    return list(logs.parse(log))


def steps(events: Iterable[Event]) -> list[Step]:
    return [event for event in events if isinstance(event, Step)]


def starts(events: Iterable[Event]) -> list[RunStarted]:
    return [event for event in events if isinstance(event, RunStarted)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("460.480", 460.48), (" 12,345 ", 12345.0), ("1.249e+03", 1249.0), ("4.000000E-07", 4e-7), ("14.6K", 14600.0),
        ("88.81%", 0.8881), ("66.91GiB", 66.91 * 2**30), ("-1.0000", -1.0), ("inf", math.inf), ("-inf", -math.inf),
        ("7e9", 7e9), (".5", 0.5), ("5.", 5.0), ("524288, loss", 524288.0), ("615.5 (avg 601.0)", 615.5),
        ("N/A", None), ("", None), ("abc", None),
    ],
)  # fmt: skip
def test_a_quantity_is_read_as_it_is_written(text: str, value: float | None) -> None:
    assert numbers.quantity(text) == (None if value is None else pytest.approx(value, rel=1e-15))


def test_nan_is_a_number_and_parts_are_chosen() -> None:
    assert math.isnan(numbers.quantity("nan") or 0.0)
    assert math.isnan(numbers.quantity("NaN") or 0.0)
    assert numbers.quantity("227.35GB/28.63GB/255.98GB/88.81%", 3) == pytest.approx(0.8881)
    assert numbers.quantity("1/2", 3) is None


@given(st.floats(allow_nan=False), st.sampled_from(["{:.3f}", "{:.6E}", "{:,.2f}", "{!r}"]))
def test_any_printed_float_is_read_back(value: float, form: str) -> None:
    text = form.format(value)
    assert numbers.quantity(text) == float(text.replace(",", ""))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[2024-04-06 02:55:45]", datetime(2024, 4, 6, 2, 55, 45)),
        ("[2026-09-23 15:34:04.269468]", datetime(2026, 9, 23, 15, 34, 4, 269468)),
        ("[titan] 2026-02-24 19:46:17,508 - root", datetime(2026, 2, 24, 19, 46, 17, 508000)),
        ("[20251121 12:10:29][rank-31/32]", datetime(2025, 11, 21, 12, 10, 29)),
        ("I0229 03:42:19.314119 140711890970496 x.py:1] ", datetime(numbers.NO_YEAR, 2, 29, 3, 42, 19, 314119)),
    ],
)
def test_dates_and_times_of_the_field(text: str, expected: datetime) -> None:
    span = numbers.find_time(text, len(text))
    assert span
    assert numbers.seconds_since_epoch(text[slice(*span)]) == pytest.approx(expected.replace(tzinfo=UTC).timestamp())


@pytest.mark.parametrize("text", ["[2024-13-41 02:55:45]", "[2024-02-30 99:99:99]"])
def test_an_impossible_date_is_no_time(text: str) -> None:
    span = numbers.find_time(text, len(text))
    assert span
    assert numbers.seconds_since_epoch(text[slice(*span)]) is None


@pytest.mark.parametrize(
    ("prefix", "rank", "host"),
    [
        ("", None, None),
        ("12: ", 12, None),
        ("0: [default3]:[rank11]:", 11, None),
        ("[rank7]:", 7, None),
        ("[trainer0|5]:", 5, None),
        ("i.pretrain/2 ", 2, None),
        ("(TrainWorker pid=4711, ip=10.0.0.7) ", None, "10.0.0.7"),
        ("[20251121 12:10:29][rank-31/32][INFO ] [--------trainer.py:2488] :", 31, None),
        ("[pod/llama-worker-3/main] ", None, "llama-worker-3/main"),
        ("2026-02-24T19:46:17.123456789Z 3: ", 3, None),
        ("10.0.0.7: [rank9]: ", 9, "10.0.0.7"),
        ("localhost: ", None, "localhost"),
    ],
)
def test_prefixes_of_launchers_are_read_and_taken_off(prefix: str, rank: int | None, host: str | None) -> None:
    found = read_prefix(prefix + "iteration 5/ 50 |")
    assert (found.rank, found.host) == (rank, host)
    assert (prefix + "iteration 5/ 50 |")[found.length :].lstrip() == "iteration 5/ 50 |"
    events = parse([prefix + line(1), prefix + line(2)])
    assert [(event.process, event.step) for event in steps(events)] == [(rank or 0, 1), (rank or 0, 2)]


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("[runner.py:630:main] cmd = pdsh -S -f 1024 -w a-1,me@a-2 export A=b", {"a-1", "a-2"}),
        ("+ pdsh -R ssh -w a-1 date", set()),
        ("+ pdsh -w a-1,,a.b date", {"a-1", "a.b"}),
        ("pdsh -w is an option", {"is"}),
        ("a pdsh -wide one", set()),
        ("pdsh@a-1: a-2: ssh exited with exit code 1", set()),
    ],
)
def test_the_command_of_pdsh_names_the_hosts_of_a_log(command: str, found: set[str]) -> None:
    assert hosts_of(command) == found
    events = parse([command, *(f"{host}: {line(n)}" for n, host in enumerate(sorted(found), 1))])
    assert [event.step for event in steps(events)] == list(range(1, len(found) + 1))


def test_colours_titles_and_carriage_returns_are_no_text() -> None:
    assert without_codes("\x1b[31mstep:\x1b[0m \x1b]0;title\x07 4") == "step:  4"


@given(st.lists(st.lists(st.sampled_from(["\x1b[31m", "\x1b[", "\x1b]0;t", "\x07", "\x1b", "m", "3 "]), max_size=5)))
def test_many_lines_lose_the_codes_that_each_of_them_loses(pieces: list[list[str]]) -> None:
    texts = ["".join(each) for each in pieces]
    assert list(all_without_codes(texts)) == list(map(without_codes, texts))
    assert [split_line("a\rb\r\n"), split_line("c\n"), split_line("\rd")] == [["a", "\rb"], ["c"], ["\rd"]]
    coloured = "\x1b[32m" + line(1).replace("lm loss", "\x1b[1mlm loss") + "\x1b[0m"
    assert [event.loss for event in steps(parse([coloured + "\r" + line(2)]))] == [2.5, 2.5]


def test_what_stands_before_a_progress_bar_stands_before_all_of_its_line(tmp_path: Path) -> None:
    log = f"1:  7%|█\r 31%|███\r{line(1)}\n0: {line(1)}\r\n1: {line(2)}\n"
    (tmp_path / "log.txt").write_bytes(log.encode())
    for events in (logs.parse(read_lines(tmp_path / "log.txt")), logs.parse(log.splitlines(keepends=True))):
        assert [(event.process, event.step) for event in steps(events)][-2:] == [(0, 1), (1, 2)]
    read = logs.parse(read_lines(tmp_path / "log.txt"))
    assert [(event.process, event.step) for event in steps(read)] == [(1, 1), (0, 1), (1, 2)]


def test_a_line_of_a_megabyte_is_shortened_and_the_next_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("x" * 3_000_000 + line(1) + "\n" + line(2) + "\n")
    read = list(read_lines(path))
    assert [len(text) <= lines.LONGEST + 3 for text in read] == [True, True]
    assert [event.step for event in steps(logs.parse(read))] == [1, 2]


def test_glued_prints_are_two_steps() -> None:
    assert [event.step for event in steps(parse(["epoch done" + line(1) + line(2, loss="2.25")]))] == [1, 2]
    assert [event.loss for event in steps(parse([line(1) + line(2, loss="2.25")]))] == [2.5, 2.25]


def test_the_fast_path_says_what_the_tables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random values, changing widths, and lines that break the pattern, with and without the fast path."""
    made = random.Random(7)
    log = []
    for step in range(1, 400):
        loss = made.choice([f"{made.uniform(0.1, 12):.6E}", "nan", "inf"] + [f"{made.random():.6E}"] * 5)
        at = datetime.fromtimestamp(1.7e9 + step, UTC).strftime("[%Y-%m-%d %H:%M:%S]")
        text = line(step, 400, loss=loss, seconds=made.uniform(0.5, 60), at=at)
        changes = (("grad norm: 1.250 | ", ""), ("lm loss", "mtp_1 loss"), ("loss scale: 1.0", "loss scale: 65536.0"))
        if made.random() < 0.2:
            text = text.replace(*made.choice(changes))
        if made.random() < 0.05:
            text = "noise " + text
        log.append(text)
    fast = parse(log)
    monkeypatch.setattr(reader, "MAX_PATTERNS", 0)
    monkeypatch.setattr(reader, "learn_pattern", lambda *_, **__: None)
    slow = parse(log)
    assert [repr(event) for event in fast] == [repr(event) for event in slow]
    assert len(steps(fast)) == 399


def test_many_lines_at_once_say_what_they_say_one_by_one() -> None:
    """Long runs of like lines, broken by other lines, copies, ranks, totals, odd values and new attempts."""
    made = random.Random(11)
    log, step = [], 0
    for _ in range(300):
        for _ in range(made.randrange(1, 30)):
            step += made.choice([1, 1, 1, 1, 10])
            log.append(line(step, 9000, loss=f"{made.random():.6E}", at=f"[2026-01-01 {step // 3600:02d}:00:00]"))
        log += made.choice(
            [
                ["noise"], [log[-1]], [f"[rank{made.randrange(2)}]:" + line(step + 1, 9000)], [line(step, 9000)],
                [line(step + 1, 9000).replace("2.5", "nan"), line(step + 2, 9000)], ["RuntimeError: CUDA error"], [],
            ]
        )  # fmt: skip
        if made.random() < 0.05:
            step //= 2
    both(log)
    both([text.partition("]")[2] for text in log])


@pytest.mark.parametrize("name", sorted(path.name for path in HERE.iterdir() if path.is_dir()))
def test_every_case_says_the_same_one_by_one_and_at_once(name: str) -> None:
    for folder in folders(name):
        both((folder / "log.txt").read_text(errors="replace").split("\n") * 2)


def test_what_a_log_does_not_give_is_not_reported() -> None:
    (step,) = steps(
        parse(["iteration 3/ 10 | elapsed time per iteration (ms): 12.5 | number of nan iterations:   0 |"])
    )
    assert (step.seconds, step.loss, step.tokens, step.grad_norm) == (0.0125, None, None, None)
    assert step.reported == {"nan_steps": 0.0}


def test_a_counter_that_goes_back_begins_an_attempt() -> None:
    log = [*map(line, range(1, 31)), *(line(step, loss="2.25") for step in range(20, 51))]
    events = parse(log)
    assert [(start.attempt, start.planned_steps) for start in starts(events)] == [(1, 50), (2, 50)]
    assert [event.reason for event in events if isinstance(event, RunEnded)] == ["completed"]


def test_another_total_begins_an_attempt() -> None:
    events = parse([*(line(step, 15) for step in range(1, 16)), *(line(step, 50) for step in range(16, 20))])
    assert [(start.attempt, start.planned_steps) for start in starts(events)] == [(1, 15), (2, 50)]


def test_copies_by_other_ranks_are_one_step_each() -> None:
    """Eight ranks print every step, without a prefix and a little out of order."""
    made = random.Random(3)
    log = []
    for step in range(1, 41):
        log += [(step + made.uniform(0, 1.5), line(step, 40, loss=f"{5 - step / 10:.3f}")) for _ in range(8)]
    events = parse(text for _, text in sorted(log))
    assert len(starts(events)) == 1
    assert sorted({event.step for event in steps(events)}) == list(range(1, 41))


def test_a_log_that_breaks_off_does_not_say_how_it_ended() -> None:
    assert not any(isinstance(event, RunEnded) for event in parse(map(line, range(1, 50))))


def test_nothing_is_kept_of_a_long_log() -> None:
    """The reader's own memory does not grow with the log."""
    import tracemalloc

    def log(count: int) -> Iterable[str]:
        for step in range(1, count + 1):
            yield line(step, count, seconds=1 + step % 7 / 100)
            yield f"noise {step} of some program, number {step * 7919}"

    tracemalloc.start()
    sum(1 for _ in logs.parse(log(2_000)))
    _, before = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    sum(1 for _ in logs.parse(log(20_000)))
    _, after = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after < before + 500_000


class TestFilesOfOneRun:
    def write(self, folder: Path, **files: Iterable[str]) -> list[Path]:
        for name, text in files.items():
            (folder / f"{name}.log").write_text("\n".join(text) + "\n")
        return [folder / f"{name}.log" for name in files]

    def test_names_say_which_rank_wrote(self, tmp_path: Path) -> None:
        paths = self.write(tmp_path, rank7=map(line, range(1, 5)), rank3=map(line, range(1, 5)))
        assert {event.process for event in steps(logs.read(paths))} == {3, 7}

    def test_otherwise_the_place_of_the_file_does(self, tmp_path: Path) -> None:
        paths = self.write(tmp_path, left=map(line, range(1, 5)), right=map(line, range(1, 5)))
        assert {event.process for event in steps(logs.read(paths))} == {0, 1}

    def test_files_in_succession_are_attempts_of_one_process(self, tmp_path: Path) -> None:
        paths = self.write(tmp_path, second=map(line, range(21, 51)), first=map(line, range(1, 31)))
        events = logs.read(paths)
        assert {event.process for event in steps(events)} == {0} or {event.process for event in steps(events)} == {1}
        assert [start.attempt for start in starts(events)] == [1, 2]
        assert [event.step for event in steps(events)] == [*range(1, 31), *range(21, 51)]

    def test_the_same_steps_at_later_times_are_another_attempt(self, tmp_path: Path) -> None:
        early = [line(step, at=f"[2026-01-01 00:00:{step:02d}]") for step in range(1, 11)]
        late = [line(step, at=f"[2026-01-01 01:00:{step:02d}]") for step in range(1, 51)]
        assert len(starts(logs.read(self.write(tmp_path, a=early, b=late)))) == 2
        assert {event.process for event in logs.read(self.write(tmp_path, a=early, b=late))} == {0}

    def test_a_folder_stands_for_its_logs_and_compressed_ones_are_read(self, tmp_path: Path) -> None:
        with gzip.open(tmp_path / "rank0.log.gz", "wt") as file:
            file.write("\n".join(map(line, range(1, 5))))
        assert [event.step for event in steps(logs.read([tmp_path]))] == [1, 2, 3, 4]

    def test_files_are_read_by_their_bytes_whatever_their_name(self, tmp_path: Path) -> None:
        text = "\n".join(map(line, range(1, 2001))) + "\n"
        packed = gzip.compress(text.encode())
        for name, content, last in (
            ("a.log", packed, 2000),
            ("b.log", text.encode("utf-16"), 2000),
            ("c.log.gz", text.encode(), 2000),
            ("d.log.gz", packed[: len(packed) // 2], 800),  # cut: what is there counts
        ):
            (tmp_path / name).write_bytes(content)
            assert last <= steps(logs.read([tmp_path / name]))[-1].step <= 2000, name

    @pytest.mark.parametrize(
        "pack", [str.encode, lambda text: text.encode("utf-16"), lambda text: gzip.compress(text.encode())]
    )
    def test_so_is_standard_input(self, pack: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        text = "\n".join(map(line, range(1, 2001))) + "\n"
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(pack(text))))
        assert [event.step for event in steps(logs.read([Path("-")]))] == list(range(1, 2001))

    def test_a_failure_in_a_file_of_one_rank_is_that_ranks(self, tmp_path: Path) -> None:
        paths = self.write(
            tmp_path, rank0=map(line, range(1, 5)), rank7=["torch.OutOfMemoryError: CUDA out of memory."]
        )
        (fault,) = [event for event in logs.read(paths) if isinstance(event, Fault)]
        assert (fault.where, fault.facts["rank"]) == ("rank 7", 7)


def test_a_traceback_that_steps_follow_is_no_end() -> None:
    said = '{"prompt": "Traceback (most recent call last): what is it?"}'
    faults = [event for event in parse([line(1), said, line(2), line(3)]) if isinstance(event, Fault)]
    assert [fault.fault for fault in faults if fault.fault == "exception"] == []
    cut = [
        event for event in parse([line(1), line(2), "Traceback (most recent call last):"]) if isinstance(event, Fault)
    ]
    assert [fault.fault for fault in cut] == ["exception"]
