"""The last line of a traceback → the exception that it names, and the kind of fault that this is."""

from __future__ import annotations

import re

from seatrial.logs.fault_table import WINDOW, classify

CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_EXCEPTION = re.compile(
    r"(?P<name>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt|Failure|Fault|Warning|Timeout|Found)"
    # The last: struct.error and many more of C, socket.gaierror
    r"|(?:[A-Za-z_]\w*\.)+(?:[A-Z]\w*|error|timeout|gaierror|herror))(?::|\s*$)"
)
# What follows on the source code in a traceback.
_ANY_EXCEPTION = re.compile(
    r"(?!(?:INFO|WARNING|WARN|ERROR|DEBUG|CRITICAL|FATAL|NOTE|Traceback)\b)(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?::\s|\s*$)"
)
# Of several ranks that raise at once: their names, then what each says, "KeyErrorKeyError: : 'a''a'".
_GLUED = re.compile(
    r"(?:[A-Za-z_][\w.]*?\.)??(?P<name>[A-Z]\w*?(?:Error|Exception|Interrupt))(?:[\s:]*(?P=name))+[\s:]*(?P<says>.*?)[\s:]*$"
)
# Exceptions of clients of some server, many of which retry; one of the next lines says so.
OF_CLIENTS = re.compile(
    r"(?:requests|urllib3|httpx|httpcore|aiohttp|http|socket|ssl|wandb|comet_ml|mlflow|neptune|clearml)\."
    r"|(?:\w*Timeout|\w*TimeoutError|Connection\w*Error|MlflowException|CommError)$"
)
# A server that is out of reach is no peer of the training.
OF_HTTP = re.compile(r"(?:requests|urllib3|httpx|httpcore|aiohttp|http|huggingface_hub)\.")
# What NumPy prints of an import that goes on; where it does not, another traceback follows.
_PRINTED = "AttributeError: _ARRAY_API not found"
_KINDS_OF_NAME = {"KeyboardInterrupt": "interrupted", "SystemExit": ""}


def exception_in(text: str, *, after_code: bool) -> str | None:
    """The name of the exception that a line begins with, with its module; None if it is none.

    `after_code`: the line follows on the source code of a traceback, so that any class may be an exception.
    """
    found = _EXCEPTION.match(text) or (_ANY_EXCEPTION.match(text) if after_code else None)
    return found["name"] if found else None


def kind_of(name: str, text: str) -> str:
    """The kind of fault that the last line of a traceback is, by the name of its exception; "" if it is none."""
    if text.startswith(_PRINTED):
        return ""
    kind = _KINDS_OF_NAME.get(name.rpartition(".")[2], classify(text, fatal=True) or "exception")
    return "exception" if kind == "peer_lost" and OF_HTTP.match(name) else kind


def unglued(text: str) -> str:
    """The last line of a traceback, said once: several ranks that raise at once print into each other."""
    found = _GLUED.match(text) if len(text) <= WINDOW else None
    if found is None or found["name"] * 2 not in text:
        return text
    says = found["says"]
    size = next((n for n in range(1, len(says) // 2 + 1) if says == says[:n] * (len(says) // n)), len(says))
    return f"{found['name']}: {says[:size].strip()}"
