"""The console as a Starlette application: routes, access, files.

Each module of `routes/` has `routes(console)`; the session's also gets the rules of access. The
pages' own paths are matched last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pkgutil import iter_modules

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from hightide import control
from hightide.client.broker_connection import ConnectionFailed
from hightide.console import routes as package
from hightide.console.access import Access, AccessMiddleware, is_loopback
from hightide.console.context import Console
from hightide.console.group_watch import watch_of
from hightide.console.logins import Logins
from hightide.console.pages import page_routes
from hightide.console.password import Password
from hightide.console.replies import on_failure
from hightide.console.routes import session
from hightide.wire.errors import KafkaError

ROUTES = sorted(
    module.name for module in iter_modules(package.__path__) if module.name != "session"
)
FAILURES = (
    KafkaError,
    ConnectionFailed,
    control.Refused,
    control.NotRunning,
    TimeoutError,
    HTTPException,
    ValueError,
    OSError,
    Exception,
)


def create_app(console: Console, password: Password | None = None) -> Starlette:
    """The application; it observes the cluster from its start to its end."""
    options = console.options
    names = {*options.allowed_hosts} | ({options.host} if not is_loopback(options.host) else set())
    access = Access(Logins(password), port=options.port, read_only=options.read_only, names=names)
    routes: list[BaseRoute] = [*session.routes(console, access)]
    for name in ROUTES:
        routes += import_module(f"{package.__name__}.{name}").routes(console)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with console.admin, console.observer, watch_of(console):
            yield
            for close in console.at_close:
                await close()

    return Starlette(
        routes=[*routes, *page_routes()],
        middleware=[Middleware(AccessMiddleware, access=access)],
        exception_handlers=dict.fromkeys(FAILURES, on_failure),
        lifespan=lifespan,
    )
