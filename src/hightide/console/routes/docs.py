"""The documentation in the console.

GET /api/v1/docs/{name}        a page: its title and its HTML
GET /api/v1/pictures/{name}    a picture of a page
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from hightide.console.context import Console
from hightide.console.documents import documents
from hightide.console.replies import failed, ok


def routes(_console: Console) -> list[Route]:
    async def page(request: Request) -> Response:
        name = request.path_params["name"]
        found = documents().document(name)
        if found is None:
            return failed(404, f"There is no page {name!r} in the documentation.")
        return ok({"name": found.name, "title": found.title, "html": found.html})

    async def picture(request: Request) -> Response:
        file = documents().pictures.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        return FileResponse(file, headers={"Cache-Control": "no-cache"})

    return [
        Route("/api/v1/docs/{name:path}", page),
        Route("/api/v1/pictures/{name:path}", picture),
    ]
