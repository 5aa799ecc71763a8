"""The folders to serve, and the token to ask for: checked before the server's packages are needed."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from seatrial.errors import InputError, reason_of

TOKEN_BYTES = 24
FEWEST_CHARACTERS = 16  # of a token that a person chose


def roots_of(given: Sequence[Path]) -> tuple[Path, ...]:
    """The folders, without those that lie in another one. Raises InputError for what is no folder."""
    found: list[Path] = []
    for path in given:
        if not path.is_dir():
            why = f"{path} is not a folder" if path.exists() else f"there is no folder {path}"
            raise InputError.single("no-root", str(path), why, "name the folder that holds the run directories")
        found.append(path.resolve())
    return tuple(root for root in dict.fromkeys(found) if not any(other in root.parents for other in found))


def token_of(file: Path | None, host: str) -> str | None:
    """The token of the file, or a new one; None for this machine alone. Raises InputError for a file without one."""
    if file is None:
        return None if _is_loopback(host) else secrets.token_urlsafe(TOKEN_BYTES)
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        why, fix = f"it cannot be read: {reason_of(error)}", "name a file with the token in it"
        raise InputError.single("token-file", str(file), why, fix) from error
    if len(text) < FEWEST_CHARACTERS or not text.isascii() or not text.isprintable() or " " in text:
        why = f"its token is not one word of {FEWEST_CHARACTERS} ASCII characters or more"
        fix = "make one: python -c 'import secrets; print(secrets.token_urlsafe())' > FILE"
        raise InputError.single("token-file", str(file), why, fix)
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
