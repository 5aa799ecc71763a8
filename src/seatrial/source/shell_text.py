"""A shell text → the environment and the words of the one command in it that starts a training; nothing is executed.

Variables are replaced by what the text itself assigns to them. What only a shell could tell stays as written, with a
warning where it matters; loops, conditions and functions are refused: `seatrial.capture` runs such scripts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from seatrial.errors import InputError, Problem, Severity
from seatrial.source.programs import is_program
from seatrial.source.shell_values import Field, Piece, Value, Variables, assignment, text_of
from seatrial.source.shell_words import Lexer, Operator, Word
from seatrial.source.tree import Builder, Places

MAX_CHARACTERS = 100_000
MAX_SCRIPTS = 8  # bash -c "bash -c '…'"

_DECLARES = ("export", "declare", "typeset", "readonly", "local")
_CONTROL = frozenset({
    "!", "{", "}", "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if",
    "select", "then", "until", "while",
})  # fmt: skip
# Commands that prepare, and are none of a configuration's business.
_PREPARES = frozenset({
    ".", ":", "[", "[[", "alias", "awk", "cat", "cd", "chmod", "chown", "conda", "cp", "curl", "cut", "date", "df",
    "dirname", "echo", "exec", "false", "git", "grep", "head", "hostname", "id", "kill", "ln", "ls", "mkdir",
    "module", "mv", "nvidia-smi", "pip", "pip3", "popd", "printf", "ps", "pushd", "pwd", "read", "rm", "rocm-smi",
    "sed", "set", "shift", "shopt", "sleep", "sort", "source", "sync", "tail", "tar", "tee", "test", "touch", "trap",
    "true", "ulimit", "umask", "uniq", "unzip", "wait", "wc", "wget", "which",
})  # fmt: skip
_TESTS = ("[", "[[", "test", "false")
_SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
_SCRIPT_FLAG = re.compile(r"-[a-z]*c")
# Wrappers whose options put something into the environment of what they start, and those that pass on nothing else.
_ENVIRONMENT_FLAGS = {
    "docker": ("-e", "--env"), "podman": ("-e", "--env"), "nerdctl": ("-e", "--env"), "mpirun": ("-x",),
    "srun": ("--export",), "singularity": ("--env",), "apptainer": ("--env",), "enroot": ("-e", "--env"),
}  # fmt: skip
_UNFILLED = re.compile(
    r"^[ \t]*(?:(?:export|declare|readonly|local)[ \t]+)?(?P<name>[A-Za-z_]\w*)="
    r"""(?P<what><[A-Za-z][^<>\n'"`$|&;()]*>)""",
    re.MULTILINE,
)
_SET_BY_LAUNCHERS = ("WORLD_SIZE", "RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")  # and so by many texts in vain
_EXPORTED_BEFORE = ("XLA_FLAGS",)  # by the images in which it is assigned
_CUTS_OFF = ("docker", "podman", "nerdctl", "enroot", "kubectl", "ssh")
_IN_ONE_WORD = ("srun", "singularity", "apptainer")  # take A=1,B=2


@dataclass(frozen=True)
class _Command:
    argv: tuple[Field, ...]
    environment: dict[str, Value]
    trains: bool

    @property
    def offset(self) -> int:
        return self.argv[0][0].offset


def read_shell(text: str, builder: Builder) -> None:
    """The tree `{"environment": {NAME: text}, "argv": [word]}` of a shell text. Raises InputError."""
    reader = _Reader(builder.places)
    if text.startswith("\ufeff"):
        why = "the file begins with a byte order mark, which a shell reads as part of the first word"
        raise reader.error(0, "bad-shell", why, "save it as UTF-8 without BOM")
    if "\0" in text:
        raise reader.error(text.index("\0"), "bad-shell", "a shell text has no NUL characters", "remove it")
    if len(text) > MAX_CHARACTERS:
        why = f"this is longer than {MAX_CHARACTERS} characters, far more than a command"
        raise reader.error(0, "too-large", why, "name a file with one command")
    if "\r\n" in text:
        why = "lines end as on Windows, and a shell reads the carriage return as part of the last word"
        reader.find(
            "warning", text.index("\r\n"), "carriage-return", builder.places.file, why, "save it with Unix line ends"
        )
    if unfilled := list(_unfilled(text, builder.places)):
        raise InputError(unfilled)
    reader.script(text, range(len(text) + 1))
    _build(reader.chosen(), reader, builder)
    builder.problems += reader.problems


def _unfilled(text: str, places: Places) -> Iterator[Problem]:
    """Each `PATH=<Specify path>` that its user has still to fill in: a shell would take it for redirections."""
    if "<<" in text:  # a text within the text may hold anything
        return
    for found in _UNFILLED.finditer(text):
        why = f"it is still {found['what']}, which a shell reads as redirections"
        mark = places.mark(found.start("what"))
        yield Problem(
            severity="error", code="placeholder", path=found["name"], why=why, fix="write the value", mark=mark
        )


class _Reader:
    """Takes the commands of a text one after the other and keeps the one that starts a training."""

    def __init__(self, places: Places) -> None:
        self.mark, self.error = places.mark, places.error
        self._captures = f"let a sandbox run it: seatrial capture {shlex.quote(places.file)}"
        self.problems: list[Problem] = []
        self._variables = Variables(self.error)
        self._training: _Command | None = None
        self._others: list[_Command] = []  # up to two that neither train nor prepare
        self._scripts = 0

    # --- findings -----------------------------------------------------------------------------------------------------

    def find(self, severity: Severity, offset: int, code: str, path: str, why: str, fix: str) -> None:
        mark = self.mark(offset)
        self.problems.append(Problem(severity=severity, code=code, path=path, why=why, fix=fix, mark=mark))

    def _refuse_control(self, offset: int, word: str) -> NoReturn:
        why = f"what runs depends on `{word}`, and a configuration is read, not run"
        raise self.error(offset, "control-flow", why, self._captures)

    # --- commands -----------------------------------------------------------------------------------------------------

    def script(self, text: str, places: Sequence[int]) -> None:
        """Takes the commands of a text; `places` are the offsets of its characters in the file, and of its end."""
        self._scripts += 1
        if self._scripts > MAX_SCRIPTS:
            why = f"there are more than {MAX_SCRIPTS} scripts in scripts"
            raise self.error(places[0], "too-deep", why, "simplify it")
        condition, joint = "", "\n"  # what the next command depends on, and what stands before it
        for words, operator in self._commands((*Lexer(text, places, self.error).tokens(), Operator("\n", places[-1]))):
            if words and self._command(words, condition):
                return
            if words or operator != "\n":  # a line may end behind && and ||
                condition, joint = _condition(words, condition, operator), operator
        if joint in ("&&", "||", "|", "|&"):
            raise self.error(places[-1], "bad-shell", f"no command follows {joint}", "write it, or remove the operator")

    def _commands(self, tokens: Iterable[Word | Operator]) -> Iterator[tuple[list[Word], str]]:
        """The words of each command, without its redirections, and the operator behind it."""
        words: list[Word] = []
        redirection: int | None = None  # where one stands whose file is still to come
        for token in tokens:
            if isinstance(token, Word):
                words += [token] if redirection is None else []
                redirection = None
            elif redirection is not None:
                raise self.error(redirection, "bad-shell", "this redirection names no file", "name it, or remove it")
            elif token.text == ">":
                redirection = token.offset
            elif token.text in ("(", ")", ";;"):
                self._refuse_control(token.offset, token.text)
            else:
                yield words, token.text
                words = []

    def _command(self, words: list[Word], condition: str) -> bool:
        """Takes one command, which may not be run where it has a condition (&&, ||); whether the text ends with it."""
        given: dict[str, Value] = {}
        start = words[0].offset
        while words and assignment(words[0]):
            self._assign(words.pop(0), given)
        name = words[0].bare if words else ""
        if condition and (given or name in _DECLARES):
            self._refuse_control(start, condition)
        if name in _CONTROL:
            self._refuse_control(words[0].offset, name)
        if name in ("exit", "return"):
            return not condition
        if not words:
            self._assignments(given, start)
        elif name in _DECLARES:
            self._declare(words)
        elif name == "unset":
            for word in words[1:]:
                self._variables.known.pop(word.bare, None)
        else:
            self._start([field for word in words for field in self._variables.expand(word)], name, given)
        return False

    def _assignments(self, given: dict[str, Value], start: int) -> None:
        """Keeps assignments that no command follows."""
        if self._training is not None and any(name.islower() for name in given):
            self._broken_line("warning", start, next(iter(given)))
        for name, value in given.items():
            self._variables.keep(name, value)

    def _start(self, argv: list[Field], name: str, given: dict[str, Value]) -> None:
        """Takes a program with its words; of `eval` and `exec`, what they start."""
        if name == "eval":
            self._script_in([piece for field in argv[1:] for piece in (*field, Piece(" ", field[-1].offset))])
        elif argv:
            self._take(argv[1:] if name == "exec" and len(argv) > 1 else argv, given)

    def _assign(self, word: Word, given: dict[str, Value]) -> None:
        """Adds an assignment to the others of its command."""
        name, value = self._variables.evaluate(word)
        if name in given:
            why = f"it is assigned here and at {self.mark(given[name].offset)}, and only the last one counts"
            self.find("error", value.offset, "duplicate-key", name, why, "keep one of the two")
        given[name] = value

    def _declare(self, words: Sequence[Word]) -> None:
        """`export A=b C`, `declare -x A=b`."""
        exports = words[0].bare == "export" or any(word.bare.startswith("-") and "x" in word.bare for word in words)
        given: dict[str, Value] = {}
        for word in words[1:]:
            name = word.bare
            if name.startswith("--") and given:
                raise self._unquoted(word.offset, next(reversed(given)))
            if assignment(word):
                self._assign(word, given)
                name = next(reversed(given))
                self._variables.keep(name, given[name])
            if exports and name in self._variables.known:
                self._variables.known[name].exported = True

    def _take(self, argv: Sequence[Field], given: dict[str, Value]) -> None:
        """Keeps a command if it may be the one; of a shell with -c, the command inside."""
        texts = [text_of(field) for field in argv]
        start, is_option = argv[0][0].offset, texts[0].startswith("--")
        if texts[0] in (".", "source"):
            why = "what this file assigns is not known here: nothing is executed"
            fix = "write the assignments that matter into this text"
            self.find("warning", start, "not-executed", " ".join(texts[:2]), why, fix)
        if is_option and given:
            raise self._unquoted(start, next(reversed(given)))
        if is_option:
            self._broken_line("error", start, texts[0])
        if is_option or _base(texts[0]) in _PREPARES:
            return
        shells = (i for i, word in enumerate(texts[:-2]) if _base(word) in _SHELLS)
        script = next((i + 2 for i in shells if _SCRIPT_FLAG.fullmatch(texts[i + 1])), None)
        program = next((i for i in range(len(texts)) if is_program(texts, i)), None)
        if script is not None and (program is None or script <= program):
            environment = self._environment(argv[: script - 2], given)
            lost = {name: value for name, value in environment.items() if not _is_handed_down(name, value)}
            for inner in self._commands_in(argv[script], environment, self._variables.known | given):
                seen = lost | inner.environment  # what is lost is a finding
                self._keep(_Command((*argv[: script - 2], *inner.argv), seen, inner.trains))
            return
        environment = self._environment(argv[:program] if program is not None else (), given)
        self._keep(_Command(tuple(argv), environment, program is not None))

    def _unquoted(self, offset: int, name: str) -> InputError:
        why = f"the value of {name} ends at the blank before this, and a shell reads the rest as something else"
        return self.error(offset, "unquoted-value", why, f'put all of it in quotes: {name}="… …"')

    def _broken_line(self, severity: Severity, offset: int, word: str) -> None:
        why = "this line begins a command of its own: the one before ends with a comment, or not with a backslash"
        fix = "end each line but the last with \\ and nothing behind it, and put no comment between them"
        self.find(severity, offset, "broken-continuation", word, why, fix)

    def _keep(self, command: _Command) -> None:
        if not command.trains:
            self._others = [*self._others, command][:2]
        elif self._training is None:
            self._training = command
        else:
            why = f"a second training starts here; the first one stands at {self.mark(self._training.offset)}"
            raise self.error(command.offset, "two-commands", why, "keep one of them in this file")

    def _commands_in(
        self, script: Field, environment: dict[str, Value], around: dict[str, Value]
    ) -> Iterable[_Command]:  # fmt: skip
        """The commands of a script in a word that may be the one; its shell gets what is exported to it."""
        variables = self._variables
        outer = variables.known, variables.hidden, self._training, self._others
        variables.known = {name: value for name, value in environment.items() if _is_handed_down(name, value)}
        variables.hidden = variables.hidden | around
        self._training, self._others = None, []
        self._script_in(script)
        found = [self._training] if self._training else self._others
        variables.known, variables.hidden, self._training, self._others = outer
        return found

    def _script_in(self, pieces: Sequence[Piece]) -> None:
        places = [place for piece in pieces for place in range(piece.offset, piece.offset + len(piece.text))]
        if places:
            self.script(text_of(pieces), [*places, places[-1] + 1])

    # --- the environment ----------------------------------------------------------------------------------------------

    def _environment(self, wrappers: Sequence[Field], given: dict[str, Value]) -> dict[str, Value]:
        """The variables of a command, by what stands before it; which of them it sees is decided at the end."""
        for value in given.values():
            value.exported = True
        seen = self._variables.known | given
        words = [text_of(field) for field in wrappers]
        cut_off = next((word for word in words if _base(word) in _CUTS_OFF), None)
        handed_on = dict(self._handed_on(wrappers, seen))
        if cut_off is None:
            return seen | handed_on
        for name, value in seen.items():
            if name not in handed_on and value.exported:
                why = f"`{_base(cut_off)}` starts its command in an environment of its own, without this"
                self.find("warning", value.offset, "not-exported", name, why, f"pass it on, with -e {name} for example")
        return handed_on

    def _handed_on(self, wrappers: Sequence[Field], seen: dict[str, Value]) -> Iterator[tuple[str, Value]]:
        """The variables that `env A=b`, `docker -e A=b`, `mpirun -x A=b` and `srun --export=ALL,A=b` add."""
        for offset, pair, is_env in _environment_words(wrappers):
            name, equals, value = pair.partition("=")
            if equals and name.isidentifier():
                yield name, Value(((Piece(value, offset),),), offset, exported=True)
            elif name in seen and not is_env:
                seen[name].exported = True
                yield name, seen[name]

    def chosen(self) -> _Command:
        """The command that starts the training; without any command, what the text assigns. Raises InputError."""
        if self._training is not None:
            return self._training
        if len(self._others) == 1:
            return self._others[0]
        if self._others:
            why = "there are several commands, and none of them is known to start a training"
            fix = f"name the one that starts it (train.py, pretrain_gpt.py, train_llama3.sh), or {self._captures}"
            raise self.error(self._others[1].offset, "no-training-command", why, fix)
        if not self._variables.known:
            fix = "write the command that starts the training into it"
            raise self.error(0, "empty", "there is no command in it", fix)
        for value in self._variables.known.values():
            value.exported = True
        return _Command((), self._variables.known, False)


def _is_handed_down(name: str, value: Value) -> bool:
    """True if a shell hands a variable down to those that it starts."""
    return value.exported or name in (*_SET_BY_LAUNCHERS, *_EXPORTED_BEFORE)


def _condition(words: Sequence[Word], before: str, joint: str) -> str:
    """The operator on which the next command depends; "" for none, as behind `cd … &&`: that is taken to succeed."""
    is_sure = joint == "&&" and not before and bool(words) and words[0].bare not in _TESTS
    return joint if joint in ("&&", "||") and not is_sure else ""


def _environment_words(wrappers: Sequence[Field]) -> Iterator[tuple[int, str, bool]]:
    """(offset, `A=b` or `A`, whether `env` stands before it) of each variable that wrappers pass on by an option."""
    program, before, behind_env = "", "", False
    for field in wrappers:
        word = text_of(field)
        behind_env = behind_env or _base(word) == "env"
        program = _base(word) if _base(word) in _ENVIRONMENT_FLAGS else program
        value = _value_of(word, _ENVIRONMENT_FLAGS.get(program, ()))
        if value is None and (behind_env or before in _ENVIRONMENT_FLAGS.get(program, ())):
            value = word
        if value is not None:
            pairs = value.split(",") if program in _IN_ONE_WORD else [value]
            yield from ((field[0].offset, pair, behind_env) for pair in pairs)
        before = word


def _value_of(word: str, flags: Sequence[str]) -> str | None:
    """The value in the word of an option: `--env=A`, `-eA`, `-e=A`; None for any other word."""
    for flag in flags:
        if word != flag and word.startswith(f"{flag}=" if flag.startswith("--") else flag):
            return word[len(flag) :].removeprefix("=")
    return None


def _base(word: str) -> str:
    return word.rpartition("/")[2]


# --- the tree ---------------------------------------------------------------------------------------------------------


def _build(command: _Command, reader: _Reader, builder: Builder) -> None:
    """Hands a command to the builder, and says what in it may not be what a shell would see."""
    builder.begin({}, reader.mark(0))
    builder.key("environment", reader.mark(0))
    builder.begin({}, reader.mark(0))
    for name, value in command.environment.items():
        if _is_seen(name, value, reader):
            builder.key(name, reader.mark(value.offset))
            _scalar(value.fields[0] if value.fields else (), name, value.offset, reader, builder)
    builder.end()
    start = command.offset if command.argv else 0
    builder.key("argv", reader.mark(start))
    builder.begin([], reader.mark(start))
    before = ""
    for word in command.argv:
        text = text_of(word)
        path = text.partition("=")[0] if "=" in text else before if before.startswith("--") else text
        _scalar(word, path, start, reader, builder)
        before = text
    builder.end()
    builder.end()


def _is_seen(name: str, value: Value, reader: _Reader) -> bool:
    """True if the command sees a variable; one that it probably should see is a finding."""
    if not value.exported and not value.used and name not in _SET_BY_LAUNCHERS:
        rest = ", unless it was exported before, which is assumed here" if name in _EXPORTED_BEFORE else ""
        why = f"it is assigned, but not exported, so the command does not see it{rest}"
        reader.find("warning", value.offset, "not-exported", name, why, f"write export {name}=… or remove it")
    return value.exported or (name in _EXPORTED_BEFORE and not value.used)


def _scalar(field: Field, path: str, start: int, reader: _Reader, builder: Builder) -> None:
    text = text_of(field)
    builder.scalar(text, text, reader.mark(next((piece.offset for piece in field if piece.text), start)))
    for piece in field:
        if piece.doubt == "unknown":
            why = f"{piece.text} is assigned nowhere in this text, so it stays as written"
            reader.find("warning", piece.offset, "unknown-variable", path, why, "assign it here, or write its value")
        elif piece.doubt == "hidden":
            why = f"{piece.text} is assigned outside of this shell, which does not get it, so it stays as written"
            reader.find("warning", piece.offset, "not-exported", path, why, "export it there, or pass it on")
        elif piece.doubt == "before":
            why = "what it held before this text is not known here, and is taken as nothing"
            reader.find("info", piece.offset, "assumed", path, why, "no change is needed, unless the run needs it")
        elif piece.doubt == "executable":
            shown = piece.text if len(piece.text) <= 60 else piece.text[:57] + "…"
            why = f"{shown} would have to be executed, and Seatrial executes nothing: it stays as written"
            reader.find("warning", piece.offset, "not-executed", path, why, "write its resulting value")
