"""`seatrial serve`: checks what is asked for and that the server is installed, then starts it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seatrial.console import Say
from seatrial.publish import require_package
from seatrial.serve.arguments import roots_of, token_of


def serve(folders: Sequence[Path], *, host: str, port: int, token_file: Path | None, say: Say) -> None:
    """Serves the runs below the folders until it is interrupted. Raises InputError, also without the extra."""
    roots, token = roots_of(folders), token_of(token_file, host)
    for package in ("starlette", "uvicorn"):
        require_package("serve", package, "serve")
    from seatrial.serve.server import serve as start

    start(roots, host, port, token=token, say=say)
