"""Access to the server: reading only, from this machine or with the token; and the policy of every answer."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = {"localhost", "127.0.0.1", "[::1]"}
PARAMETER = "token"
COOKIE_SECONDS = 30 * 24 * 3600
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]{1,5})?", re.ASCII | re.IGNORECASE)

# The page's own files and figures, and nothing else: no script or style within the page, no other server, no frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Middleware around the whole server.

    Without a token, only requests that were addressed to this machine by one of LOOPBACK_NAMES are answered: another
    site's name that is made to lead here (DNS rebinding) is none. With one, the name does not matter.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, names: frozenset[str]) -> None:
        self._app, self._token = app, token
        self._names = LOOPBACK_NAMES | names
        self._cookie = ""
        if token is not None:  # the browser keeps what the token proves, and not the token
            self._cookie = hmac.new(token.encode(), b"seatrial serve", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a web socket
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                own = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.lower().encode() not in given]
                message["headers"] = [*message["headers"], *own]
            await send(message)

        answer = self._refusal(Request(scope))
        await (answer or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("this server only shows runs\n", 405, {"Allow": "GET, HEAD"})
        if self._token is None:
            found = _HOST.fullmatch(request.headers.get("host", ""))
            if found is None or found[1].lower() not in self._names:
                return PlainTextResponse("this server answers to localhost and 127.0.0.1 only\n", 421)
            return None
        given = parse_qsl(request.url.query, keep_blank_values=True)
        shown = next((value for name, value in given if name == PARAMETER), None)
        if shown is not None and _same(shown, self._token):
            return self._welcome(request, [pair for pair in given if pair[0] != PARAMETER])
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(bearer.strip(), self._token):
            return None
        if _same(_cookie(request, self._cookie_name(request)), self._cookie):
            return None
        why = "this needs the token: open the address that `seatrial serve` printed\n"
        return PlainTextResponse(why, 401, {"WWW-Authenticate": "Bearer"})

    def _welcome(self, request: Request, rest: list[tuple[str, str]]) -> Response:
        """Sends the reader on to the same page without the token in its address, with a cookie in its place."""
        path = re.sub(r"^[/\\]+", "/", request.url.path)  # no other server's name
        answer = RedirectResponse(f"{path}?{urlencode(rest)}" if rest else path, 303)
        answer.set_cookie(
            self._cookie_name(request), self._cookie, max_age=COOKIE_SECONDS, httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return answer

    def _cookie_name(self, request: Request) -> str:
        """By the port of the server: browsers do not tell cookies of ports apart."""
        server = request.scope.get("server") or ("", 0)
        return f"seatrial-{server[1]}"


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode())


def _cookie(request: Request, name: str) -> str:
    try:
        found = SimpleCookie(request.headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""
