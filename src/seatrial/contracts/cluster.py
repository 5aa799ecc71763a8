"""Cluster files: the native form, and that of ROCm CVS.

Their reader is more lenient: it takes numbers that are written as text, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.contracts.types import Json
from seatrial.dialects.clusters import CVS_HOST_KEYS, CVS_KEYS, HOST, NATIVE_HOST_KEYS, NATIVE_KEYS
from seatrial.dialects.schema import NOTES
from seatrial.dialects.table.keys import Key

_RANGE = r"[A-Za-z0-9._:-]*(\[[0-9][0-9, /-]*\][A-Za-z0-9._:-]*)+"
_HOST: Json = {"type": "string", "pattern": f"^({HOST})$"}
_WORD = f"({HOST}|{_RANGE})"
_HOSTS: Json = {"type": "string", "pattern": f"^{_WORD}$"}
_LIST: Json = {"type": "string", "pattern": rf"^\s*{_WORD}(\s*,\s*{_WORD})*\s*$"}
_USER = "[A-Za-z0-9_][A-Za-z0-9._-]{0,63}"
_FILE: Json = {"type": "string", "pattern": "^[^-]"}
_COUNT: Json = {"type": "integer", "minimum": 1}
_PORT: Json = {"type": "integer", "minimum": 1, "maximum": 65_535}


def schema() -> Json:
    """A cluster file of either form."""
    return {
        "description": "The hosts of a run in the order of their ranks, and how they are reached.",
        "anyOf": [{"$ref": "#/$defs/Native"}, {"$ref": "#/$defs/CVS"}],
        "$defs": {"Native": _native(), "CVS": _cvs()},
    }


def _native() -> Json:
    host = _strict(
        "A host.", NATIVE_HOST_KEYS, {"name": _HOST, "address": _HOST, "devices": _COUNT, "port": _PORT}, ["name"]
    )
    listed: Json = {"type": "array", "minItems": 1, "items": {"anyOf": [_HOSTS, host]}}
    made = _strict(
        "The native form: a list of hosts. Only Slurm and this machine need none.",
        NATIVE_KEYS,
        {
            "hosts": {"anyOf": [_LIST, listed]},
            "user": {"type": "string", "pattern": f"^{_USER}$"},
            "key_file": _FILE,
            "transport": {"enum": ["ssh", "slurm", "local"]},
            "devices": _COUNT,
        },
        [],
    )
    elsewhere: Json = {"required": ["transport"], "properties": {"transport": {"enum": ["slurm", "local"]}}}
    return made | {"anyOf": [{"required": ["hosts"]}, elsewhere]}


def _cvs() -> Json:
    host = _strict("A host.", CVS_HOST_KEYS, {"vpc_ip": _HOSTS}, [])
    nodes: Json = {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": f"^(_.*|{_WORD})$"},
        "patternProperties": NOTES,
        "additionalProperties": host,
    }
    head: Json = {"anyOf": [_HOST, {"type": "object", "properties": {"mgmt_ip": _HOST}}]}
    made = _strict(
        "The form of ROCm CVS: hosts by the name that SSH reaches them by.",
        CVS_KEYS,
        {
            "username": {"type": "string", "pattern": rf"^({_USER}|\{{user-id\}})$"},
            "priv_key_file": _FILE,
            "node_dict": nodes,
            "nodes": nodes,
            "head_node_dict": head,
            "head_node": head,
        },
        [],
    )
    return made | {"anyOf": [{"required": ["node_dict"]}, {"required": ["nodes"]}]}


def _strict(about: str, keys: Mapping[str, Key], values: Mapping[str, Json], required: list[str]) -> Json:
    """An object with these keys and notes only; a key that has no value here may have any."""
    properties = {name: {"description": _sentence(key.meaning), **values.get(name, {})} for name, key in keys.items()}
    return {
        "type": "object", "description": about, "properties": properties, "required": required,
        "patternProperties": NOTES, "additionalProperties": False,
    }  # fmt: skip


def _sentence(meaning: str) -> str:
    return meaning[:1].upper() + meaning[1:] + "." if meaning else ""
