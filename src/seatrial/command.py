"""Commands as data: argv, environment, files. Quoting lives here and nowhere else.

Nothing in this module runs anything. A `Secret` is a value that may travel, but never be shown: it prints as `***`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from seatrial.spec import Container

# The rules read a name as capitals between underscores: HF_TOKEN, hf-token and hfToken are all _HF_TOKEN_.
_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_MAX_NAME = 200  # characters of a name that are examined
_OF_A_FILE = re.compile(r"_(FILE|FILENAME|PATH|DIR|FOLDER|DIRECTORY)_$")  # it names a secret's file, and is none
_KEYS = (
    "API ACCESS ACCOUNT ADMIN APP AUTH AZURE CLIENT COMET DEPLOY ENCRYPTION GPG HMAC KAGGLE LICENSE MASTER NGC OPENAI "
    "PRIVATE RSA SERVICE SHARED SIGNING SSH SSL STORAGE SUBSCRIPTION TLS WANDB"
)
_SERVICES = "AMQP BROKER DATABASE DB MONGO MONGODB MYSQL POSTGRES POSTGRESQL REDIS"  # their URLs hold passwords
# A token may be a piece of text, and a pass one over data.
_BEFORE_A_PASS = "BACKWARD BY FIRST FORWARD HLO MULTI NUM ONE PER SECOND SINGLE THREE TWO"
_BEFORE_A_PIECE = (
    "AUDIO BOS CLS EACH END EOD EOS IMAGE IMPLICIT MASK MIDDLE MULTI NEXT PAD PER PREFIX SEP SPECIAL START STOP SUFFIX "
    "UNK VIDEO"
)
_AFTER_A_PIECE = (
    "ID IDS COUNT LEN LENGTH LIMIT BUDGET SIZE LOSS DROP DROPPING DROPOUT DISPATCHER SHUFFLE TYPE TTL TIMEOUT "
    "EMBEDDING ALL_GATHER CHUNKS EVENTS GATHER"
)


def _any(words: str) -> str:
    return f"({'|'.join(words.split())})"


def _not_after(words: str) -> str:
    return "".join(f"(?<!_{word}_)" for word in words.split())


# Quick test: each rule below contains one of these.
_IN_A_SECRET = (
    "TOKEN", "SECRET", "PASS", "PWD", "CRED", "KEY", "AUTH", "PAT", "JWT", "DSN", "BEARER", "COOKIE", "WEBHOOK",
    "CONN", "URL", "URI",
)  # fmt: skip
_SECRET_NAME = re.compile(
    "|".join(
        (
            r"SECRET(?!AR)", r"PASSW(OR)?DS?_", "PASSPHRASE", "PASSCODE", "SSHPASS_", "CREDENTIALS?_", "_CREDS?_",
            r"_AUTH_(CONFIG_)?$", "AUTHORIZATION_", "WEBHOOK", r"CONN(ECTION)?_?STR(ING)?_", r"[A-Z]_PWD_",
            "_(PATS?|JWT|DSN|BEARER|COOKIES?)_", f"{_any(_KEYS)}_?KEYS?_", f"_{_any(_SERVICES)}_UR[IL]_",
            r"_(ACCESS|API|AUTH|GITHUB|HF)_?TOKENS_", rf"{_not_after(_BEFORE_A_PASS)}(?<=_)PASS_$",
            rf"(?<!TIK)(?<!GIGA){_not_after(_BEFORE_A_PIECE)}TOKEN_(?!{_any(_AFTER_A_PIECE)}_)",
        )
    )
)  # fmt: skip


class Secret:
    """A value that is shown only by `reveal`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"


def is_secret(name: str) -> bool:
    """True if the value of a variable, key or option of this name is a secret; of a dotted path, if any part's is.

    This is the only place that decides so. In doubt it does: a harmless value that is masked is the smaller loss. Names
    of files are none, as HF_TOKEN_FILE, nor are words about text, as EOS_TOKEN_ID and MAX_TOKENS.
    """
    return _may_name_one(name) and any(map(_is_secret_part, name.split(".")))


def _may_name_one(text: str) -> bool:
    upper = text.upper()
    return any(word in upper for word in _IN_A_SECRET)


@lru_cache(maxsize=4096)
def _is_secret_part(name: str) -> bool:
    name = f"_{'_'.join(_WORDS.findall(name[:_MAX_NAME])).upper()}_"
    name = re.sub(r"_[0-9_]+$", "_", name)  # HF_TOKEN_2
    return not _OF_A_FILE.search(name) and _SECRET_NAME.search(name) is not None


def guarded(variables: Mapping[str, str]) -> dict[str, str | Secret]:
    """The variables, with a `Secret` for each whose name says so, or whose value looks so."""
    return {
        name: Secret(value) if is_secret(name) or _LOOKS_SO.search(value) else value
        for name, value in variables.items()
    }


def shown(variables: Mapping[str, str | Secret]) -> dict[str, str]:
    """The variables as anybody may see them, secrets as ***."""
    return {name: str(value) for name, value in variables.items()}


def revealed(variables: Mapping[str, str | Secret]) -> dict[str, str]:
    """The variables as a process gets them, secrets in the open."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in variables.items()}


# --- secrets in the middle of a text ----------------------------------------------------------------------------------

MASK = "***"
# `HF_TOKEN=`, `"password": `, `--api-key `; what stands behind a slash is part of a path.
_NAMED = re.compile(
    r"""(?<![\w./-])(?P<option>--?)?(?P<name>[A-Za-z_][\w.-]*)(?P<quote>\\?["'])?\]?
    (?:[^\S\n]*(?P<sign>\+=|:=|=>|[=:])[^\S\n]*|(?(option)["']?[^\S\n]*,?[^\S\n]+(?!-)|(?!)))""",
    re.VERBOSE,
)
# A token of Hugging Face, or the password in a URL: http://user:password@host.
_LOOKS_SO = re.compile(r"""\bhf_[A-Za-z0-9]{8,}\b|(?<=://)(?P<user>[^\s/:@"']{0,200}:)[^\s/"']{1,500}(?=@)""")
_PAIR = re.compile(r"-*(?P<name>[\w.-]+)[\"']?\]?[=:](?P<value>.*)", re.DOTALL)  # a whole word
_QUOTED = re.compile(r"""(?s)(\\?)(["'])(?:(?!\1\2)(?:\\.|[^\\]))*\1\2""")
_SCHEME = re.compile(r"(?i)(?:bearer|basic|token)[^\S\n]+")
_WORD = re.compile(r"""(?:\\.|"[^"\n]*"|'[^'\n]*'|[^\s;])*""")
_IN_A_LINE = re.compile(r"[^,;}\]\n]*")
_STRUCTURE = re.compile(r"""\\.|"(?:\\.|[^"\\])*"|'[^'\n]*'|[\[\]{}()]""", re.DOTALL)


def masked(text: str, *, same_length: bool = False) -> str:
    """The text without the values of secrets that it names, whatever their kind and length.

    Each is `***`; with `same_length`, a star for each of its characters, so that columns and lines stay.
    """
    return without_looks(_without_named(text, same_length=same_length), same_length=same_length)


def _without_named(text: str, *, same_length: bool = False) -> str:
    pieces, done = [], 0
    for start, end in _spans(text):
        pieces += [text[done:start], re.sub(r"\S", "*", text[start:end]) if same_length else MASK]
        done = end
    return "".join([*pieces, text[done:]])


def without_looks(text: str, *, same_length: bool = False) -> str:
    """The text without what looks like a secret under any name."""

    def hide(match: re.Match[str]) -> str:
        user = match["user"] or ""
        return user + ("*" * (len(match[0]) - len(user)) if same_length else MASK)

    return _LOOKS_SO.sub(hide, text)


def masked_words(words: Sequence[str]) -> list[str]:
    """The words of a command without the values of secrets that they name.

    What only looks like a token stays: another word would change what the command does.
    """
    ends = {place: len(value) for place, _, value in secret_words(words) if value}
    return [
        f"{word[: -ends[place]]}{MASK}" if place in ends else _without_named(word) for place, word in enumerate(words)
    ]


def secret_words(words: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """(index of the word, name, value at its end) of each secret: in NAME=value, and in the word behind --name."""
    before = ""
    for place, word in enumerate(words):
        pair = _PAIR.fullmatch(word)
        if pair and is_secret(pair["name"]):
            yield place, pair["name"].lstrip("-"), pair["value"]
        elif before.startswith("-") and is_secret(before) and not word.startswith("--"):
            yield place, before.lstrip("-"), word
        before = "" if pair else word


def secrets_in(text: str) -> set[str]:
    """The values that `masked` hides, without quotes and YAML's signs around them."""
    return {text[start:end].strip("\"'*&! \n") for start, end in _spans(text)}


def _spans(text: str) -> Iterator[tuple[int, int]]:
    place = 0 if _may_name_one(text) else len(text)
    while named := _NAMED.search(text, place):
        place = named.end()
        if is_secret(named["name"]):
            end = _end_of_value(text, named)
            if end > place:
                yield place, end
            place = max(place, end)


def _end_of_value(text: str, named: re.Match[str]) -> int:
    """The end of the value behind a name: of its word, brackets or quotes, or of the lines that are indented below."""
    start = named.end()
    if named["quote"] and not text[start : text.find("\n", start) + 1].strip():
        start += len(text[start:]) - len(text[start:].lstrip())  # JSON's value may stand in a line of its own
    if text[start : start + 1] in ("{", "[", "("):
        return _end_of_structure(text, start)
    if quoted := _QUOTED.match(text, start):
        rest = _WORD.match(text, quoted.end()) if named["sign"] == "=" else None
        return rest.end() if rest and '"' not in rest[0] else quoted.end()  # a shell takes "a"b for one word
    scheme = _SCHEME.match(text, start)
    start = scheme.end() if scheme else start
    if named["sign"] != ":":
        found = _WORD.match(text, start)
    elif not text[text.rfind("\n", 0, named.start()) + 1 : named.start()].strip(" \t-\"'?"):
        return _end_of_block(text, named)
    else:
        found = _IN_A_LINE.match(text, start)
    return found.end() if found else start


def _end_of_structure(text: str, start: int) -> int:
    depth = 0
    for part in _STRUCTURE.finditer(text, start):
        depth += (part[0] in "[{(") - (part[0] in "]})")
        if depth == 0:
            return part.end()
    return len(text)


def _end_of_block(text: str, named: re.Match[str]) -> int:
    """The end of a value in YAML: of the lines that are indented more than its key, or are items of its list."""
    column = named.start() - text.rfind("\n", 0, named.start()) - 1
    end = _line_end(text, named.end())
    while end < len(text):
        after = _line_end(text, end + 1)
        line = text[end + 1 : after]
        indent = len(line) - len(line.lstrip(" "))
        if line.strip() and indent <= column and not (indent == column and line.lstrip(" ").startswith("-")):
            break
        end = after
    return end


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


# --- commands ---------------------------------------------------------------------------------------------------------

_REFERENCE = re.compile(r"\$(\w+|\{\w+\})", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Command:
    """The command of one process: argument vector, the variables added to its environment, and text files.

    `files` maps a path, relative to the run directory, to the content that must stand there first; `stdin` is what the
    process reads; `after` are commands that clear away what it leaves behind, however it ended, `wake` those that
    resume it, so that it can react to being stopped: they fail where it was not paused.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str | Secret] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    stdin: Secret | None = None
    after: tuple[tuple[str, ...], ...] = ()
    wake: tuple[tuple[str, ...], ...] = ()

    def shell(self) -> str:
        """The command as one line that can be pasted into a POSIX shell; secrets stay masked."""
        assignments = [f"{name}={shlex.quote(value)}" for name, value in shown(self.environment).items()]
        prefix = ["env", *assignments] if assignments else []
        return " ".join([*prefix, shlex.join(self.argv)])


LABEL = "seatrial"  # every container of ours carries it, with the run's name; nothing else is ever removed
RUNTIMES = ("docker", "podman")
# RDMA pins its buffers. docker's daemon may allow any amount; podman no more than its own limit, which the agent has
# raised as far as it could.
_PINNING = {"docker": ("--ulimit", "memlock=-1"), "podman": ("--ulimit", "host")}
_WITH_SECRETS = 'eval "$(cat)"; exec "$@" </dev/null'


def as_word(text: str) -> str:
    """A host or a rank as a word for a shell; the name of a variable that is not set here as a reference to it."""
    return f'"{text}"' if _REFERENCE.fullmatch(text) else shlex.quote(text)


def in_container(
    command: Command, container: Container, *, runtime: str, name: str, run: str, mounts: Sequence[str]
) -> Command:
    """The command, started in a container of its own that is gone when it has ended.

    `name` is the container's, `run` what its label says, `mounts` are paths that are the same inside. Variables go by
    `--env`; secrets by the standard input, so that neither a process list nor `inspect` shows them, and with them
    values whose carriage returns podman would take away.
    """
    variables = {**guarded(container.environment), **command.environment}
    apart = {key: value for key, value in variables.items() if isinstance(value, Secret) or "\r" in value}
    lists = {"--cap-add": container.cap_add, "--security-opt": container.security_opt,
             "--group-add": container.group_add}  # fmt: skip
    argv = [
        *(runtime, "run", "--rm", "--name", name, "--label", f"{LABEL}={run}", "--init"),
        *("--network", "host", "--ipc", "host"),
        *(("--pull", container.pull) if container.pull else ()),
        *(("--privileged",) if container.privileged else ()),
        *(word for flag, values in lists.items() for value in values for word in (flag, value)),
        *(_PINNING[runtime] if container.devices or container.privileged else ()),
        *(("--shm-size", container.shm_size) if container.shm_size and runtime != "podman" else ()),
        *(word for device in container.devices for word in ("--device", device)),
        *(word for path in mounts for word in ("--volume", f"{path}:{path}")),
        *(word for here, there in container.volumes for word in ("--volume", f"{here}:{there}")),
        *(word for key, value in variables.items() if key not in apart for word in ("--env", f"{key}={value}")),
        *(("--interactive",) if apart else ()),
        *("--entrypoint", "", container.image),
        *(("sh", "-c", _WITH_SECRETS, "sh") if apart else ()),
        *command.argv,
    ]
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in revealed(apart).items())
    return replace(
        command,
        argv=tuple(argv),
        environment={},
        stdin=Secret(exports) if apart else None,
        wake=((runtime, "unpause", name),),
        after=((runtime, "rm", "--force", *(("--ignore",) if runtime == "podman" else ()), name),),
    )
