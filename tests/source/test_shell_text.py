"""Shell texts: words and variables as a real shell has them, places, and what is refused because it would execute."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seatrial.errors import InputError
from seatrial.source import Document, Node, parse_shell, read

TRAIN = "python3 train.py"


def argv(document: Document) -> list[str]:
    words = document.root.members["argv"].value
    assert isinstance(words, list)
    return [word.text for word in words]


def environment(document: Document) -> dict[str, str]:
    return {name: node.text for name, node in document.root.members["environment"].members.items()}


def shell(text: str) -> Document:
    return parse_shell(text, file="run.sh")


def findings(document: Document) -> list[tuple[str, str, str, str]]:
    marks = [f"{p.mark.line}:{p.mark.column}" if p.mark else "" for p in document.problems]
    return [(p.severity, p.code, p.path, mark) for p, mark in zip(document.problems, marks, strict=True)]


def refusal(text: str) -> tuple[str, str, str]:
    with pytest.raises(InputError) as caught:
        shell(text)
    (problem,) = caught.value.problems
    assert problem.mark is not None
    return problem.code, f"{problem.mark.line}:{problem.mark.column}", problem.why


# --- against a real shell ---------------------------------------------------------------------------------------------

_CHARACTERS = st.characters(exclude_categories=("Cs",), exclude_characters="\0\r")


@given(st.lists(st.text(_CHARACTERS, max_size=12), max_size=6))
def test_quoted_words_come_back_as_they_were(words: list[str]) -> None:
    assert argv(shell(f"{TRAIN} {shlex.join(words)}")) == ["python3", "train.py", *words]


_SNIPPETS = st.sampled_from([
    "a", "b=c", "--x", " ", "  ", "\t", "'", '"', '"', "\\", "\\\n", "\n", "$A", "${A}", '"$B"', "${B}", "${C:-d e}",
    "#", "${A:+y z}", "${E-x}", "${E:-'q r'}", '"${E:-p \'q}"', "$", "=", "''", '""', "\\\\", "\\'", '\\"', "\\$", "é",
    "$((3*A+1))", "${D:-$A}", ";", "&&", "~", "%", "{", "}", ",", "@", "2>/dev/null", ">/dev/null", "$F", '"$F"',
    "x$F'y'",
])  # fmt: skip
_ASSIGNED = "A=1\nB='x  y'\nE=\nF=' lead and trail '\n"


@settings(max_examples=300)
@given(st.lists(_SNIPPETS, max_size=10).map("".join))
def test_words_and_expansions_are_those_of_a_real_shell(text: str) -> None:
    """Whatever is read without a doubt is what `sh` gives the command; what `sh` cannot read is refused."""
    with tempfile.TemporaryDirectory() as folder:
        program, written = Path(folder) / "train.py", Path(folder) / "words"
        program.write_text(f'printf "%s\\0" "$@" >{written}\nexit 7\n', encoding="utf-8")  # its output may go elsewhere
        script = f"{_ASSIGNED}sh {program} {text}\n"
        try:
            document = shell(script)
        except InputError:
            document = None
        ran = subprocess.run(["sh", "-f"], input=script.encode(), capture_output=True, cwd=folder, env=dict(os.environ))
        printed = written.read_bytes().split(b"\0")[:-1] if written.exists() else []
    if document is None or document.problems:
        return  # refused, or told that it may differ
    assert ran.returncode != 2, (script, ran.stderr)
    if "~" not in text:
        assert argv(document)[2:] == [word.decode() for word in printed] or (
            argv(document)[2:] == [] and printed == [b""]
        )


_IN_A_SHELL = {
    "exported": "export A=1\nbash -c 'python train.py $A'",
    "given": "A=1 bash -c 'python train.py $A ${B:-2}'",
    "of its own": "A=1\nbash -c 'A=2; A+=3; python train.py $A'",
    "a default": "A=1\nbash -c 'python train.py ${A:-2} ${A:+3}'",
    "assigned by default": "A=1\nbash -c 'python train.py ${A:=2} $A'",
    "expanded outside": 'A=1\nbash -c "python train.py $A"',
    "unset": "export A=1 B=2\nbash -c 'unset A; python train.py ${A-3} $B'",
    "two deep": "export A=1\nbash -c 'B=2; export C=3; bash -c \"python train.py \\$A $B \\$C\"'",
    "a list in one word": 'A=(a "b  c" d)\npython train.py "${A[*]}" "x${A[*]}y" ${A[*]} "${A[@]}"',
    "an empty list in one word": 'A=()\npython train.py "${A[*]}" "${A[@]}" x',
    "a list with commas": 'A=(1 2)\nIFS=,\nB="${A[*]}"\nunset IFS\npython train.py $B "${A[*]}"',
}


def printed_by_bash(script: str) -> list[str]:
    """The words behind the program that bash gives to `python`."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "python"
        python.write_text("#!/bin/bash\nprintf '%s\\0' \"${@:2}\"\n", encoding="utf-8")
        python.chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        ran = subprocess.run(["bash"], input=script.encode(), capture_output=True, check=True, env={"PATH": path})
    return ran.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("name", _IN_A_SHELL)
def test_what_a_shell_gets_of_the_one_around_it_and_lists_in_one_word(name: str) -> None:
    assert argv(shell(_IN_A_SHELL[name]))[-len(printed_by_bash(_IN_A_SHELL[name])) :] == printed_by_bash(
        _IN_A_SHELL[name]
    )


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("bash -c 'python train.py $N'", "2:26"),
        ("srun -l bash -c 'python train.py $N'", "2:34"),
        ("bash -c 'bash -c \"python train.py \\$N\"'", "2:35"),
        ("docker run img bash -c 'python train.py $N'", "2:41"),
    ],
)
def test_what_is_not_exported_does_not_reach_a_script_in_a_word(text: str, at: str) -> None:
    document = shell(f"N=8\n{text}")
    assert argv(document)[-1] == "$N"
    assert findings(document) == [("warning", "not-exported", "$N", at)]


def test_what_a_script_in_a_word_does_not_get_and_does_not_name_is_told_where_it_is_assigned() -> None:
    document = shell("N=8\nexport M=1\nbash -c 'python train.py b'")
    assert environment(document) == {"M": "1"}
    assert findings(document) == [("warning", "not-exported", "N", "1:1")]


_CONDITIONS = st.sampled_from([
    '[ "$A" = 1 ]', '[[ "$A" == "x" ]]', '[ -z "$B" ]', '[ -n "$E" ]', "[ $A -gt 0 ]", "[[ $A -lt 1 ]]", "true",
    "false", '! [ "$A" = 1 ]', '[ ! "$A" = 1 ]', '[ "$C" = y ] || [ "$A" = 1 ]', '[[ "$A" == 1 && -n "$B" ]]',
    "[ ]", "[ $E ]",     '[[ "$B" == x* || "$A" == 2 ]]', "[ -e /nonexistent ]", '[ "$A" = 1 ] && [ "$A" = 2 ]',
])  # fmt: skip


def _lines(depth: int) -> st.SearchStrategy[str]:
    plain = st.sampled_from(["A=2", "B=$A", "C=y", "export D=$C", ":", "echo hi > /dev/null", "E=$E$A"])
    if not depth:
        return plain
    inner = st.lists(_lines(depth - 1), min_size=1, max_size=2).map("\n".join)
    branches = st.tuples(_CONDITIONS, inner, _CONDITIONS, inner, inner)
    return st.one_of(
        plain,
        branches.map(lambda b: f"if {b[0]}; then\n{b[1]}\nfi"),
        branches.map(lambda b: f"if {b[0]}\nthen {b[1]}\nelse {b[4]}\nfi"),
        branches.map(lambda b: f"if {b[0]}; then {b[1]}\nelif {b[2]}; then\n{b[3]}\nelse\n{b[4]}\nfi"),
        st.tuples(_CONDITIONS, st.sampled_from(["&&", "||"]), plain).map(" ".join),
    )


@settings(max_examples=200)
@given(st.lists(_lines(2), max_size=4).map("\n".join))
@example('[ "$A" = 2 ] && [ "$A" = 1 ] || B=$A')
def test_conditions_are_decided_as_a_real_shell_decides_them(text: str) -> None:
    """Whatever is read gives the values that `bash` has at the end; what cannot be decided is refused."""
    script = f"{_ASSIGNED}{text}\n"
    ending = '"$A" "$B" "$C" "$D" "$E"'
    try:
        document = shell(f"C=\nD=\n{script}python train.py {ending}")
    except InputError:
        return
    ran = subprocess.run(["bash", "-c", f"C=\nD=\n{script}printf '%s\\0' {ending}"], capture_output=True, check=True)
    assert argv(document)[2:] == ran.stdout.decode().split("\0")[:-1]


# --- one command out of a text ----------------------------------------------------------------------------------------

_READ = {
    "prefix": ("A=1 B='2 3' python train.py x=1", {"A": "1", "B": "2 3"}, "python train.py x=1"),
    "exported": ("export A=1\nB=2\nexport B C=3\npython train.py", {"A": "1", "B": "2", "C": "3"}, "python train.py"),
    "declared": ("declare -x A=1; readonly B=2; python train.py $B", {"A": "1"}, "python train.py 2"),
    "unset": ("export A=1 B=2\nunset A\npython train.py", {"B": "2"}, "python train.py"),
    "helper": ("N=8\nM=$N\npython train.py a=$M", {}, "python train.py a=8"),
    "itself": ("A='-a 1'\nA=\"$A -b 2\"\nA+=' -c'\npython train.py $A", {}, "python train.py -a 1 -b 2 -c"),
    "array": ("A=(--x 1 # one\n  --y 'a')\nA+=(--z)\npython train.py \"${A[@]}\" ${A}", {},
              "python train.py --x 1 --y a --z --x"),
    "list of pairs": ('A=("--x 1" \'--y 2\')\npython train.py ${A[@]} "${A[@]}"', {},
                      "python train.py --x 1 --y 2 '--x 1' '--y 2'"),
    "arithmetic": ("G=8\nN=4\npython train.py $((G * $N)) $(( (1+2)*3 ))", {}, "python train.py 32 9"),
    "default": ("python train.py ${A:-3} ${B:=4} $B", {}, "python train.py 3 4 4"),
    "before": ("set -e; cd /x || exit 1\nmkdir -p y && cd y && python train.py\nexit 0\npython pretrain.py", {},
               "python train.py"),
    "around": ("nohup python train.py a 2>&1 | tee -a x.log &\nwait", {}, "nohup python train.py a"),
    "comments": ("#!/bin/sh\n# python train.py 1\npython train.py \\\n  a#b # c\n", {}, "python train.py 'a#b'"),
    "other programs": ("python prepare.py\npip install x\npython train.py", {}, "python train.py"),
    "one unknown": ("cd x\n./go --fast", {}, "./go --fast"),
    "docker": ("docker run -e A=1 --env=B=2 img sh -c 'export C=3; D=4 python train.py \"$A\"'",
               {"A": "1", "B": "2", "C": "3", "D": "4"}, "docker run -e A=1 --env=B=2 img python train.py 1"),
    "joined": ("docker run -eA=1 -v /x/train.py:/w/train.py -e B=2 img python train.py", {"A": "1", "B": "2"},
               "docker run -eA=1 -v /x/train.py:/w/train.py -e B=2 img python train.py"),
    "apptainer": ("apptainer exec --env A=1,B=2 img python train.py", {"A": "1", "B": "2"},
                  "apptainer exec --env A=1,B=2 img python train.py"),
    "env": ("env A=1 python train.py", {"A": "1"}, "env A=1 python train.py"),
    "srun": ("export A=1; srun -N 2 --export=ALL,B=2 bash -lc 'python train.py'", {"A": "1", "B": "2"},
             "srun -N 2 --export=ALL,B=2 python train.py"),
    "eval": ("C=\"python train.py 'a b'\"\neval $C", {}, "python train.py 'a b'"),
    "flags alone": ('XLA_FLAGS="--xla_a=1\n  --xla_b=2"\n', {"XLA_FLAGS": "--xla_a=1\n  --xla_b=2"}, ""),
    "module": ("A=1 python -m maxtext.train base.yml", {"A": "1"}, "python -m maxtext.train base.yml"),
    "no arguments": ('python train.py "$@"', {}, "python train.py"),
}  # fmt: skip


@pytest.mark.parametrize("name", _READ)
def test_the_command_of_a_text_and_its_environment(name: str) -> None:
    text, variables, command = _READ[name]
    document = shell(text)
    assert (environment(document), shlex.join(argv(document)), findings(document)) == (
        variables, command, []
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name", "value", "at"),
    [
        ('export XLA_FLAGS="${XLA_FLAGS} --a=1"\n', "XLA_FLAGS", " --a=1", "1:19"),
        ('XLA_FLAGS="$XLA_FLAGS --a=1" ', "XLA_FLAGS", " --a=1", "1:12"),
        ("export L=/x:$L\n", "L", "/x:", "1:13"),
        ('export L="$L:/x"\nexport L="$L:/y"\n', "L", ":/x:/y", "1:11"),
        ("export A=1; export L=a,$L,b\n", "L", "a,,b", "1:24"),
    ],
)
def test_what_a_list_held_before_the_text_is_taken_as_nothing(text: str, name: str, value: str, at: str) -> None:
    document = shell(f"{text}python train.py b")
    assert environment(document)[name] == value
    assert findings(document) == [("info", "assumed", name, at)]
    ran = subprocess.run(["env", "-u", name, "bash", "-c", f"{text}printenv {name}"], capture_output=True, text=True)
    assert ran.stdout == f"{value}\n"


@pytest.mark.parametrize("text", ["export MBS=$MBS", "export OUT=$OUT/run", "export B=$A:/x", 'export N="n$N"'])
def test_a_variable_that_is_to_be_given_is_no_list(text: str) -> None:
    document = shell(f"{text}\npython train.py b")
    assert "$" in next(iter(environment(document).values()))
    assert [code for _, code, _, _ in findings(document)] == ["unknown-variable"]


_DOUBTFUL = {
    "unknown": ("python train.py a=$B", "a=$B", ("warning", "unknown-variable", "a", "1:19")),
    "command": ("python train.py --n $(nproc)", "$(nproc)", ("warning", "not-executed", "--n", "1:21")),
    "backquotes": ("python train.py --n `rm -rf /`", "`rm -rf /`", ("warning", "not-executed", "--n", "1:21")),
    "process": ("python train.py <(ls)", "<(ls)", ("warning", "not-executed", "<(ls)", "1:17")),
    "cut": ("A=ab\npython train.py n=${A%b}", "n=${A%b}", ("warning", "not-executed", "n", "2:19")),
    "in a value": ('A="x/$(date)"\npython train.py d=$A', "d=x/$(date)", ("warning", "not-executed", "d", "1:6")),
    "source": (". ./env.sh\npython train.py b", "b", ("warning", "not-executed", ". ./env.sh", "1:1")),
    "lost": ("A=1\npython train.py b", "b", ("warning", "not-exported", "A", "1:1")),
    "kept out": ("export A=1\ndocker exec x python train.py b", "b", ("warning", "not-exported", "A", "1:8")),
    "enroot": ("export A=1\nenroot start x python train.py b", "b", ("warning", "not-exported", "A", "1:8")),
    "flags": ("XLA_FLAGS=--a\npython train.py b", "b", ("warning", "not-exported", "XLA_FLAGS", "1:1")),
    "twice": ("A=1 A=2 python train.py b", "b", ("error", "duplicate-key", "A", "1:5")),
    "windows": ("python train.py \\\r\n  b\r\n", "b", ("warning", "carriage-return", "run.sh", "1:18")),
}  # fmt: skip


@pytest.mark.parametrize("name", _DOUBTFUL)
def test_what_only_a_shell_could_tell_stays_as_written_and_is_told(name: str) -> None:
    text, last, finding = _DOUBTFUL[name]
    document = shell(text)
    assert (argv(document)[-1], findings(document)) == (last, [finding])


_REFUSED = {
    "loop": ("for i in 1 2; do python train.py; done", "control-flow", "1:1"),
    "decided": ('A=8\nB=()\nif [[ "$A" == 8 ]]; then B+=(--x); fi\npython train.py ${B[@]}', "control-flow", "3:1"),
    "not set": ('[ -n "$B" ] && A=1\npython train.py c', "control-flow", "1:16"),
    "condition": ("A=1\nif [ -d $A ]; then python train.py; fi", "control-flow", "2:1"),
    "conditional value": ('[ -d "$B" ] && export A=1\npython train.py', "control-flow", "1:16"),
    "subshell": ("(cd x; python train.py)", "control-flow", "1:1"),
    "function": ("go() { python train.py; }\ngo", "control-flow", "1:3"),
    "here-document": ("python train.py <<EOF\nx\nEOF", "bad-shell", "1:17"),
    "two": ("python train.py a\n\npython train.py b", "two-commands", "3:1"),
    "two in a word": ("bash -c 'python train.py a; python train.py b'", "two-commands", "1:29"),
    "none": ("./a\n./b", "no-training-command", "2:1"),
    "empty": ("# nothing\n", "empty", "1:1"),
    "quote": ("python train.py 'a\nb", "bad-shell", "1:17"),
    "double quote": ('python train.py "a\nb', "bad-shell", "1:17"),
    "brace": ("python train.py ${A:-b", "bad-shell", "1:17"),
    "command": ("python train.py $(a", "bad-shell", "1:17"),
    "array": ("A=(a b\npython train.py", "bad-shell", "1:3"),
    "redirection": ("python train.py >\n", "bad-shell", "1:17"),
    "nothing behind an operator": ("python train.py &&\n", "bad-shell", "2:1"),
    "bom": ("\ufeffpython train.py", "bad-shell", "1:1"),
    "nul": ("python train.py a\0b", "bad-shell", "1:18"),
    "escapes": ("python train.py $'a\\n'", "bad-shell", "1:17"),
    "deep": ("python train.py " + "${A:-" * 40 + "}" * 40, "too-deep", "1:102"),
    "laughs": ("A=aaaaaaaaaa\n" + 'A="$A$A"\n' * 30 + "python train.py $A", "too-large", "12:6"),
    "long": ("python train.py " + "a" * 600_000, "too-large", "1:1"),
    "many": ("python train.py " + "a " * 30_000, "too-large", "1:23821"),
    "scripts": ("bash -c '" + "eval " * 3 + "true'\n" + "bash -c x\n" * 10, "too-deep", "5:9"),
}  # fmt: skip


@pytest.mark.parametrize("name", _REFUSED)
def test_what_would_have_to_be_executed_and_what_is_no_shell_text_is_refused(name: str) -> None:
    text, code, at = _REFUSED[name]
    assert refusal(text)[:2] == (code, at)


def test_words_stand_where_they_were_written_also_through_variables_and_scripts_in_words() -> None:
    text = "A='\t --x 1'\n\nexport B=2\nbash -c \"C=3 python train.py $A\""
    root = shell(text).root
    words = root.members["argv"].value
    assert isinstance(words, list)
    places = {node.text: (node.mark.line, node.mark.column) for node in words}
    assert places == {"python": (4, 14), "train.py": (4, 21), "--x": (1, 6), "1": (1, 10)}
    variables = root.members["environment"].members
    marks = {name: (node.key_mark and node.key_mark.column, node.mark.column) for name, node in variables.items()}
    assert marks == {"B": (8, 10), "C": (10, 12)}


@pytest.mark.parametrize(
    ("name", "text", "is_shell"),
    [
        ("run.sh", "./go", True),
        ("run", "#!/bin/bash\n./go", True),
        ("run.txt", "A=1 python MaxText/train.py base.yml", True),
        ("run.txt", 'XLA_FLAGS="--xla_x=1"', True),
        ("run.yaml", "command: python train.py\n", False),
        ("run", "# python train.py\nmodel: llama2-7b\n", False),
        ("run", '{"a": "train.py"}', False),
    ],
)
def test_a_file_is_a_shell_text_by_its_suffix_its_first_line_or_its_command(
    tmp_path: Path, name: str, text: str, is_shell: bool
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert ("argv" in read(path).root.members) == is_shell


@given(st.text(st.sampled_from("ab=$(){}[]'\"`\\;&|<> \n#@*!?:-+,1%~\r"), max_size=60))
def test_no_text_makes_it_crash(text: str) -> None:
    try:
        root = shell(f"{text}\n{TRAIN} x").root
    except InputError:
        return
    assert isinstance(root, Node)


def test_all_that_is_still_to_be_filled_in_is_named_at_once() -> None:
    text = "CHECKPOINT_PATH=<Specify path>\nexport VOCAB=<path to file>/vocab.json\nA=<in.txt\npython train.py\n"
    with pytest.raises(InputError) as caught:
        parse_shell(text, file="run.sh")
    found = [(p.code, p.path, p.mark and (p.mark.line, p.mark.column)) for p in caught.value.problems]
    assert found == [("placeholder", "CHECKPOINT_PATH", (1, 17)), ("placeholder", "VOCAB", (2, 14))]
