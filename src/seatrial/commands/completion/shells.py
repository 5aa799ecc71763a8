"""Answers a shell that completes a command line, and prints the script by which it asks.

The scripts beside this file give the command line up to the cursor, as it was typed, in COMP_LINE. The answer is a line
for each offer: its type (plain, file, dir: the shell completes these itself), the word, and its meaning, with tabs
between. Click finds the parameter that the cursor is at; words and quotes are the same to all shells here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

VARIABLE = "_SEATRIAL_COMPLETE"  # SHELL_complete, or SHELL_source for the script
SHELLS = ("bash", "zsh", "fish")
_OPTION = re.compile(r"--[\w-]+=")


def script(shell: str) -> str:
    """The script that a shell reads once."""
    return Path(__file__).with_name(f"seatrial.{shell}").read_text(encoding="utf-8")


def answer(app: click.Group, environment: Mapping[str, str] = os.environ) -> str:
    """The answer to a shell that asks by its environment. Raises KeyError for a shell that is none of SHELLS."""
    shell, _, asked = environment[VARIABLE].partition("_")
    if shell not in SHELLS:
        raise KeyError(shell)
    if asked == "source":
        return script(shell)
    words, word = _words(environment.get("COMP_LINE", ""))
    # A shell completes the value behind `--option=` alone, or the whole word; bash says which part it has in hand.
    head = found[0] if (found := _OPTION.match(word)) else ""
    before = {"bash": _not_in_hand(word, environment.get("COMP_CUR", "")), "zsh": head, "fish": ""}[shell]
    items = ShellComplete(app, {"obj": words}, "seatrial", VARIABLE).get_completions(words, word)
    return "".join(_line(item, head, before) for item in items)


def _words(line: str) -> tuple[list[str], str]:
    """(the words behind the command, the word at the cursor), without their quotes."""
    words = split_arg_string(line)[1:]
    # A blank that belongs to the last word, in quotes or behind a backslash, is still there when a letter follows it.
    goes_on = len(split_arg_string(f"{line}x")) == len(words) + 1
    return (words[:-1], words[-1]) if goes_on and words else (words, "")


def _not_in_hand(word: str, in_hand: str) -> str:
    """The part of a word before the one that bash replaces, which begins behind one of COMP_WORDBREAKS."""
    part = "" if in_hand in ("=", ":") else "".join(split_arg_string(in_hand)[-1:])
    return word[: len(word) - len(part)] if word.endswith(part) else ""


def _line(item: CompletionItem[str], head: str, before: str) -> str:
    """One offer as a line; control characters, which names of files may have, would be read as its end."""
    value = str(item.value)
    if item.type == "plain" and not value.startswith("-"):
        value = f"{head}{value}".removeprefix(before)
    if not value.isprintable():
        return ""
    about = re.sub(r"\s+", " ", item.help or "")
    return f"{item.type}\t{value}\t{about if about.isprintable() else ''}\n"
