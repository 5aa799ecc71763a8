"""`seatrial serve`: checks what is asked for and that the server is installed, then starts it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seatrial.console import Say
from seatrial.publish import require_package
from seatrial.serve.asked import Serving, roots_of, token_of


def serve(roots: Sequence[Path], *, host: str, port: int, token_file: Path | None, say: Say) -> None:
    """Serves the runs below the folders until it is interrupted. Raises InputError, also without the extra."""
    asked = Serving(roots=roots_of(roots), host=host, port=port, token_file=token_file)
    token = token_of(asked)
    for package in ("starlette", "uvicorn"):
        require_package("serve", package, "serve")
    from seatrial.serve.server import serve as start

    start(asked, token, say)
