"""What a page needs to know first, logging in, and whether the console works.

    GET  /api/v1/session   token, read_only, owner, foreign, bootstrap, title, version, login
    POST /api/v1/login     password; sets a cookie that scripts cannot read
    POST /api/v1/logout
    GET  /livez, /readyz   200 while the process runs; 200 while it sees the cluster

Without a session, where one is needed, `GET session` says only that: `{"login": true}`.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hightide import __version__
from hightide.console.access import LOGIN, LOGOUT, SESSION, Access
from hightide.console.context import Console
from hightide.console.json_body import json_body
from hightide.console.logins import SESSION_S, TooManyTries
from hightide.console.replies import failed, ok


def routes(console: Console, access: Access) -> list[Route]:
    api = SessionRoutes(console, access)
    return [
        Route(SESSION, api.show, methods=["GET"]),
        Route(LOGIN, api.log_in, methods=["POST"]),
        Route(LOGOUT, api.log_out, methods=["POST"]),
        Route("/livez", api.live, methods=["GET"]),
        Route("/readyz", api.ready, methods=["GET"]),
    ]


class SessionRoutes:
    def __init__(self, console: Console, access: Access) -> None:
        self._console = console
        self._access = access

    async def show(self, request: Request) -> Response:
        if not self._access.is_logged_in(request.headers):
            return ok({"login": True})
        options = self._console.options
        frame = self._console.observer.frame
        found: dict[str, Any] = {
            "login": False,
            "token": self._access.token,
            "read_only": options.read_only,
            "owner": self._console.owner is not None,
            "foreign": bool(frame and frame.overview["is_foreign"]),
            "bootstrap": options.bootstrap,
            "title": options.title or options.bootstrap,
            "version": __version__,
            "password": self._access.logins.are_needed,
            "banner": options.banner_file is not None,
        }
        return ok(found)

    async def log_in(self, request: Request) -> Response:
        if not self._access.logins.are_needed:
            return failed(409, "This console has no password.")
        given = (await json_body(request)).get("password")
        if not isinstance(given, str):
            raise ValueError("The password should be a text.")
        address = request.client.host if request.client else ""
        try:
            key = await self._access.logins.log_in(given, address)
        except TooManyTries as error:
            reply = failed(429, str(error))
            reply.headers["Retry-After"] = str(round(error.wait_s) + 1)
            return reply
        if key is None:
            return failed(403, "The password is wrong.")
        reply = ok({"login": False})
        reply.set_cookie(
            self._access.cookie,
            key,
            max_age=round(SESSION_S),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return reply

    async def log_out(self, request: Request) -> Response:
        self._access.logins.log_out(self._access.key_of(request.headers))
        reply = ok({"login": self._access.logins.are_needed})
        reply.delete_cookie(self._access.cookie, httponly=True, samesite="strict")
        return reply

    async def live(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(self, _: Request) -> Response:
        frame = self._console.observer.frame
        if frame is None or not any(broker["alive"] for broker in frame.overview["brokers"]):
            return PlainTextResponse("no broker of the cluster answers\n", 503)
        return PlainTextResponse("ok\n")
