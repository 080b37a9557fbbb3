"""Which requests are answered, and the headers of every reply.

    every request     Host is an address, localhost or a name of this server (DNS rebinding)
    with a password   a session's cookie, but for the page itself and for logging in
    every change      Origin is this server, the token of the session is there, not read-only
    every reply       a policy that loads nothing from elsewhere and runs no inline script

A page of another site can neither read a reply (no CORS headers) nor know the token.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hightide.console.logins import Logins
from hightide.console.replies import failed

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "form-action 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
READS = {"GET", "HEAD"}
API = "/api/"
SESSION, LOGIN, LOGOUT = "/api/v1/session", "/api/v1/login", "/api/v1/logout"
OF_MACHINES = {"/metrics", "/livez", "/readyz"}
TOKEN = "x-hightide-token"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; a name may be anything but `localhost`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Access:
    """The rules of one console."""

    def __init__(
        self, logins: Logins, *, port: int = 0, read_only: bool = False, names: Iterable[str] = ()
    ) -> None:
        self.logins = logins
        self.read_only = read_only
        self.token = secrets.token_urlsafe(32)
        # A browser sends the cookies of a host to all of its ports.
        self.cookie = f"hightide_{port}"
        self._names = {"localhost", *(name.lower() for name in names)}

    def is_host(self, host: str) -> bool:
        """Whether a Host header names this server."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def is_logged_in(self, headers: Headers) -> bool:
        return not self.logins.are_needed or self.logins.is_valid(self.key_of(headers))

    def key_of(self, headers: Headers) -> str:
        """The key of the session in the request's cookies; "" if there is none."""
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    def refusal(self, method: str, path: str, headers: Headers) -> tuple[int, str, str] | None:
        """Why a request is refused: status, sentence and a word for programs."""
        host = headers.get("host", "")
        if not self.is_host(host):
            return 421, "This is not a name of the console; --allow-host names one.", "host"
        is_public = not path.startswith(API) or path in (SESSION, LOGIN)
        if path in OF_MACHINES:
            is_public = path != "/metrics"
        if not is_public and not self.is_logged_in(headers):
            return 401, "Log in first.", "login"
        return None if method in READS else self._refusal_of_change(path, host, headers)

    def _refusal_of_change(
        self, path: str, host: str, headers: Headers
    ) -> tuple[int, str, str] | None:
        origin = headers.get("origin")
        if origin is not None and not is_same_origin(origin, host):
            return 403, "A page of another site may not change anything here.", "origin"
        if headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            return 403, "A page of another site may not change anything here.", "origin"
        if path == LOGIN:
            return None  # before it there is no token
        if not hmac.compare_digest(headers.get(TOKEN, "").encode(), self.token.encode()):
            return 403, f"The request has no valid {TOKEN} header; GET {SESSION} gives it.", "token"
        if self.read_only and path != LOGOUT:
            return 403, "The console is read-only.", "read_only"
        return None


def is_same_origin(origin: str, host: str) -> bool:
    try:
        given = urlsplit(origin)
    except ValueError:
        return False
    return given.scheme in {"http", "https"} and given.netloc.lower() == host.lower()


class AccessMiddleware:
    """Refuses what `Access` refuses, and adds the headers to every reply."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # there are no web sockets here

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if scope["path"].startswith(API):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._access.refusal(scope["method"], scope["path"], Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, guarded)
        else:
            status, sentence, code = refusal
            await failed(status, sentence, code=code)(scope, receive, guarded)
