"""The files of the pages: `index.html` for every path of a page, the rest under /static.

A browser asks again for each file and gets 304 if it has not changed, so that a new version is
seen at once and nothing is loaded twice.
"""

from __future__ import annotations

import mimetypes
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

STATIC = Path(__file__).parent / "static"
NEEDED = "vendor/preact.js"
MISSING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Hightide</title>
<h1>The console's libraries are missing</h1>
<p>They are fetched with npm when Hightide is installed, and npm was missing or failed then.</p>
<p>Install npm, and install Hightide again: <code>make setup</code> in a checkout, else
<code>pip install --force-reinstall hightide</code>.</p>
<p>The command line needs nothing of this: <code>hightide cluster health</code>.</p>
</html>
"""
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class Files(StaticFiles):
    """The files of a folder, which browsers ask for again each time."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


def page_routes(folder: Path = STATIC) -> list[BaseRoute]:
    """The last routes: they take every path that is no other's."""
    for suffix, kind in TYPES.items():  # the system's table may have others
        mimetypes.add_type(kind, suffix)

    async def page(request: Request) -> Response:
        path = request.url.path
        is_file = path.count("/") == 1 and "." in path  # such as /favicon.ico
        if is_file or path.startswith("/api/"):
            raise HTTPException(404)
        if not (folder / NEEDED).exists():
            return HTMLResponse(MISSING, 503, {"Cache-Control": "no-store"})
        return FileResponse(folder / "index.html", headers={"Cache-Control": "no-cache"})

    return [
        Mount("/static", Files(directory=folder)),
        Route("/{path:path}", page, methods=["GET"]),
    ]
