"""The fields that records may have: a table → its prompts and answers, or its prompts with two answers each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from seatrial.records import DataError, chat
from seatrial.records.rows import WHOLE, Limits, names_of, numbered_rows, numbered_texts

# Under which names a record may hold a prompt with its answer, or a conversation: NxDT's, then TRL's.
ANSWERS = (("input", "output"), ("prompt", "completion"), chat.FORM)
PREFERENCES = (("prompt", "chosen", "rejected"),)

Texts = Iterator[tuple[str, tuple[str, ...]]]


def form_of(path: Path, forms: tuple[tuple[str, ...], ...], limits: Limits = WHOLE) -> tuple[str, ...]:
    """The form that a table has, or of which it has a part. Raises DataError where it has nothing of any."""
    where, names = names_of(path, limits)
    for is_meant in (all, any):
        for form in forms:
            if not names or is_meant(name in names for name in form):
                return form
    wanted = ", or ".join(" and ".join(form) for form in forms)
    raise DataError(f"{where}: there are {', '.join(names)[:200]}, and a record needs {wanted}", "rename its fields")


def answers(path: Path, template: chat.Template | None, limits: Limits = WHOLE) -> tuple[bool, Texts]:
    """True if a table holds conversations, and (file and row, (prompt, answer)) of each of its records.

    Without a template at hand, the texts of a conversation are empty. Raises DataError for what is none of ANSWERS.
    """
    form = form_of(path, ANSWERS, limits)
    if form != chat.FORM:
        return False, numbered_texts(path, form, limits)
    return True, _conversations(path, template, limits)


def _conversations(path: Path, template: chat.Template | None, limits: Limits) -> Texts:
    render = chat.renderer(template) if template else None
    for where, row in numbered_rows(path, chat.FORM, limits):
        if render:
            yield where, render(where, row.get(chat.FORM[0]))
        else:
            chat.check_messages(where, row.get(chat.FORM[0]))
            yield where, ("", "")


def preferences(path: Path, limits: Limits = WHOLE) -> Texts:
    """(file and row, (prompt, chosen answer, rejected answer)) of each record. Raises DataError for what is none."""
    form = form_of(path, PREFERENCES, limits)
    return numbered_texts(path, form, limits)
