"""Changes that people, editors and disks make to a configuration: bytes, tokens, lines, and its tree."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import yaml

Mutation = Callable[[bytes, str, random.Random], bytes]  # (content, suffix, rng) → content

HOSTILE_BYTES = (
    b"\x00", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\t", b"\r", b"\r\n", b"\x1b[2J", b"\x7f", b"\xe2\x80\xae",
    b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xc2\xa0", b"\xe2\x80\xa8", b'"', b"'", b"\\", b"{", b"}", b"[", b"]",
    b",", b":", b"#", b"//", b"&a ", b"*a", b"!!int ", b"<<: ", b"---\n", b"$(", b"${", b"`", b"<(", b";", b"|",
    b">", b"%", b"@", b"\\\n", b"<<EOF\n", b"  ", b"\n\n",
)  # fmt: skip
HOSTILE_WORDS = (
    "", "null", "~", "true", "yes", "NaN", ".nan", "inf", "-.inf", "-1", "0", "-0", "1e999", "1e-999", "1e3", "4k",
    "8 GB", "0x10", "0o17", "1_000", "9" * 30, "9" * 5000, "-" + "9" * 400, "0.1", "1/3", "1,000", "${X}", "${X:-8}",
    "${oc.env:HOME}", "${..a}", "${multiply:2,3}", "${", "$((1+1))", "$(id)", "`id`", "{{ x }}", "<changeme>",
    "{user-id}", "{nobody}", "../../etc/passwd", "/dev/zero", "C:\\x", "ä", "\u202e", "\ud83d\ude00", "x" * 10_000,
    "[]", "{}", "[1, 2]", "{a: 1}", "'", '"', "a b", "*", "=", "--", "-", "#", "\\", "llama3.1-70b", "bf16", "fp8",
)  # fmt: skip
HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, -7, 3, 0.5, 1e-30, 1e30, 10**12, 10**13, -(10**15), 10**400, float("nan"),
    float("inf"), [], {}, [[]], [None], [1, 2, 3], {"": 1}, {"a": {"b": []}}, *HOSTILE_WORDS,
)  # fmt: skip
_TOKEN = re.compile(rb'"[^"\n]*"|[\w.+/$-]+')


# --- bytes ------------------------------------------------------------------------------------------------------------


def flip_bits(content: bytes, suffix: str, rng: random.Random) -> bytes:
    flipped = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def truncate(content: bytes, suffix: str, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def cut_out(content: bytes, suffix: str, rng: random.Random) -> bytes:
    start = rng.randrange(len(content))
    return content[:start] + content[start + rng.choice((1, 1, 2, 10, 200)) :]


def insert_bytes(content: bytes, suffix: str, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(content) + 1)
        content = content[:at] + rng.choice(HOSTILE_BYTES) * rng.choice((1, 1, 1, 3, 300)) + content[at:]
    return content


def re_encode(content: bytes, suffix: str, rng: random.Random) -> bytes:
    text = content.decode("utf-8", "replace")
    return rng.choice((
        text.encode("utf-16"), text.encode("utf-8-sig"), text.replace("\n", "\r\n").encode(),
        text.replace("\n", "\r").encode(), text.replace("  ", "\t").encode(), text.replace('"', "“").encode(),
        text.replace(" ", "\xa0").encode("latin-1", "replace"), text.upper().encode(), text.replace("\n", " ").encode(),
    ))  # fmt: skip


# --- lines and tokens -------------------------------------------------------------------------------------------------


def move_lines(content: bytes, suffix: str, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    here, there = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.choice(("delete", "repeat", "swap", "indent", "comment out", "many"))
    if kind == "delete":
        del lines[here]
    elif kind == "repeat":
        lines.insert(there, lines[here])
    elif kind == "swap":
        lines[here], lines[there] = lines[there], lines[here]
    elif kind == "indent":
        lines[here] = rng.choice((b" ", b"    ", b"\t")) + lines[here]
    elif kind == "comment out":
        lines[here] = rng.choice((b"#", b"// ", b"# ")) + lines[here]
    else:
        lines[here] = lines[here] * rng.choice((10, 1000))
    return b"".join(lines)


def change_tokens(content: bytes, suffix: str, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 4))):
        tokens = list(_TOKEN.finditer(content))
        if not tokens:
            return content
        token, other = rng.choice(tokens), rng.choice(tokens)
        word = rng.choice(HOSTILE_WORDS).encode("utf-8", "surrogatepass")
        new = rng.choice((b"", token[0] * 2, other[0], word, b'"' + word + b'"', b"'" + word + b"'"))
        content = content[: token.start()] + new + content[token.end() :]
    return content


def mistype(content: bytes, suffix: str, rng: random.Random) -> bytes:
    """A letter of a word is left out, doubled, swapped or replaced."""
    tokens = [token for token in _TOKEN.finditer(content) if len(token[0]) > 3]
    if not tokens:
        return content
    token = rng.choice(tokens)
    at = token.start() + 1 + rng.randrange(len(token[0]) - 2)
    new = rng.choice((b"", content[at : at + 1] * 2, content[at : at + 2][::-1], rng.choice(b"abcxyz_-.0").to_bytes()))
    return content[:at] + new + content[at + (2 if len(new) == 2 else 1) :]


# --- the tree ---------------------------------------------------------------------------------------------------------


def change_tree(content: bytes, suffix: str, rng: random.Random) -> bytes:
    """Values swapped, of the wrong type or size, keys deleted, renamed, moved or nested; of a shell text, its words."""
    if suffix == ".sh":
        return _change_words(content, rng)
    try:
        tree = json.loads(content) if suffix == ".json" else yaml.safe_load(content)
    except (ValueError, yaml.YAMLError):
        return change_tokens(content, suffix, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 10))):
        places = list(_places(tree))
        if not places:
            break
        _change(rng.choice(places), rng.choice(places), rng)
    if suffix == ".json":
        return json.dumps(tree, indent=rng.choice((None, 2))).encode("utf-8", "surrogatepass")
    dumped: str = yaml.dump(tree, sort_keys=False, default_flow_style=rng.choice((None, False, True)))
    return dumped.encode("utf-8", "surrogatepass")


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value."""
    found, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        found += [(node, key) for key in keys]
        waiting += [node[key] for key in keys]
    return found


def _change(place: tuple[Any, Any], other: tuple[Any, Any], rng: random.Random) -> None:
    (container, key), (container_2, key_2) = place, other
    kind = rng.choice(("replace", "replace", "replace", "swap", "delete", "rename", "nest", "as text", "copy", "list"))
    if kind == "replace":
        container[key] = rng.choice(HOSTILE_VALUES)
    elif kind == "swap":
        if not _holds(container[key], container_2) and not _holds(container_2[key_2], container):
            container[key], container_2[key_2] = container_2[key_2], container[key]
    elif kind == "delete":
        del container[key]
    elif kind == "rename" and isinstance(container, dict):
        value = container.pop(key)
        container[rng.choice((f"{key}s", str(key)[1:], str(key).upper(), f"{key}.x", str(key_2), "", "é"))] = value
    elif kind == "nest":
        for _ in range(rng.choice((1, 2, 100))):
            container[key] = rng.choice(([container[key]], {str(key): container[key]}))
    elif kind == "as text":
        container[key] = json.dumps(container[key], default=str)
    elif kind == "copy":
        text = json.dumps(container_2[key_2], default=str)
        container[key] = json.loads(text)
    else:
        container[key] = [container[key]] * rng.choice((1, 2, 50))


def _holds(tree: Any, part: Any) -> bool:
    """True if a container is a tree, or within it."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if node is part:
            return True
        waiting += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return False


def _change_words(content: bytes, rng: random.Random) -> bytes:
    words = re.findall(rb"\s+|\S+", content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        places = [place for place, word in enumerate(words) if word.strip()]
        here, there = rng.choice(places), rng.choice(places)
        hostile = rng.choice(HOSTILE_WORDS).encode("utf-8", "surrogatepass")
        name, equals, _ = words[here].partition(b"=")
        kind = rng.choice(("delete", "repeat", "swap", "value", "value", "replace", "quote", "nest"))
        if kind == "delete" and len(places) > 1:
            words[here] = b""
        elif kind == "repeat":
            words.insert(there, b" " + words[here] + b" ")
        elif kind == "swap":
            words[here], words[there] = words[there], words[here]
        elif kind == "value":
            words[here] = name + b"=" + hostile if equals else hostile
        elif kind == "replace":
            words[here] = b"--" + hostile
        elif kind == "quote":
            words[here] = rng.choice((b'"', b"'", b'\\"', b"$'", b"(")) + words[here]
        else:
            depth = rng.choice((1, 3, 500))
            words[here] = b"${A:-" * depth + words[here] + b"}" * depth
    return b"".join(words)


BYTES: tuple[Mutation, ...] = (flip_bits, truncate, cut_out, insert_bytes, re_encode)
WORDS: tuple[Mutation, ...] = (move_lines, change_tokens, mistype)
TREE: tuple[Mutation, ...] = (change_tree,)


def mutate(content: bytes, suffix: str, rng: random.Random) -> tuple[str, bytes]:
    """One mutation, half of them structural; its name, and what it leaves."""
    mutation = rng.choice(rng.choice((BYTES, WORDS, TREE, TREE)))
    return mutation.__name__, mutation(content, suffix, rng)
