"""The page and its requests, as a Starlette application."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from jurygcn import web
from jurygcn.app.background import Background
from jurygcn.app.exports import EXPORTS
from jurygcn.app.nodes import PICTURES
from jurygcn.app.rounds import Message, Source
from jurygcn.app.session import Caller, Gone, Session
from jurygcn.errors import DataError, JuryError, SettingError

STYLES = ("web/base.css", "label.css")
SCRIPTS = (
    *("web/elements.js", "web/axes.js", "web/picture.js", "web/theme.js"),
    *("requests.js", "node.js", "progress.js", "label.js"),
)


def page_of(*, annotator: str = "", overlap: int = 1) -> web.Page:
    """The page. Everything about the graph comes later, by requests."""
    content = {"annotator": annotator, "overlap": overlap, "version": version("jurygcn")}
    return web.render("jurygcn.app", "label.html", styles=STYLES, scripts=SCRIPTS, title="Label", content=content)


def policy_of(page: web.Page) -> str:
    """The Content-Security-Policy: the page's own script and style, and requests to this server only."""
    allowed = {
        "default-src": "'none'",
        "script-src": f"'{page.script_hash}'",
        "style-src": f"'{page.style_hash}'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


def application(session: Session, source: Source, page: web.Page, *, on_failure: Callable[[], None]) -> Starlette:
    """The application. Its worker starts and ends with it."""

    async def show(_: Request) -> Response:
        return HTMLResponse(page.text)

    async def state(request: Request) -> Response:
        return reply(lambda: {"state": session.state(Caller.of(request.query_params)), "graph": about(session)})

    async def act(request: Request) -> Response:
        asked, action = await read(request), ACTIONS.get(request.path_params["action"])
        if asked is None or action is None:
            return JSONResponse({"error": "expected an action with a JSON object; reload the page"}, 400)
        return reply(lambda: action(session, asked))

    async def export(request: Request) -> Response:
        name = request.path_params["name"]
        if session.table is None or name not in EXPORTS:
            return PlainTextResponse("There is no such file, or the graph is not loaded yet.", 404)
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        kind = "application/json" if name.endswith(".json") else "text/csv; charset=utf-8"
        return Response(EXPORTS[name](session.answers, session.table), media_type=kind, headers=headers)

    async def picture(request: Request) -> Response:
        path = session.table and session.table.picture(request.path_params["node"], request.path_params["column"])
        if not path:
            return PlainTextResponse("There is no such picture.", 404)
        return FileResponse(path, media_type=PICTURES[path.suffix.lower()])

    routes = [
        Route("/", show),
        Route("/api/state", state),
        Route("/api/{action}", act, methods=["POST"]),
        Route("/export/{name}", export),
        Route("/picture/{node:int}/{column:int}", picture),
    ]
    return Starlette(routes=routes, lifespan=with_worker(session, source, on_failure))


def with_worker(session: Session, source: Source, on_failure: Callable[[], None]) -> Any:
    """The life of an application with a worker that tells the session its results."""

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()

        def hear(message: Message) -> None:
            session.hear(message)
            if session.failed:
                on_failure()

        def pass_on(message: Message) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(hear, message)

        worker = Background(source, pass_on)
        session.submit = worker.submit
        try:
            yield
        finally:
            worker.close()

    return life


# --- requests -------------------------------------------------------------------------------------------------


def about(session: Session) -> dict[str, Any] | None:
    """The graph, as far as it is loaded."""
    if session.table is None:
        return None
    return {"name": session.table.graph, "classes": session.table.classes, "notes": list(session.notes)}


def _answer(session: Session, asked: Mapping[str, Any]) -> dict[str, Any]:
    caller = Caller.of(asked)
    saved = session.answer(caller, asked)
    return {"saved": saved.number, "page": session.next(caller), "state": session.state(caller)}


def _shown(find: Callable[[Session, Caller, Mapping[str, Any]], Any]) -> Callable[..., dict[str, Any]]:
    def act(session: Session, asked: Mapping[str, Any]) -> dict[str, Any]:
        caller = Caller.of(asked)
        return {"page": find(session, caller, asked), "state": session.state(caller)}

    return act


ACTIONS: dict[str, Callable[[Session, Mapping[str, Any]], dict[str, Any]]] = {
    "next": _shown(lambda session, caller, _: session.next(caller)),
    "undo": _shown(lambda session, caller, _: session.undo(caller)),
    "look": _shown(lambda session, caller, asked: session.look(caller, asked)),
    "answer": _answer,
}


async def read(request: Request) -> Mapping[str, Any] | None:
    """The JSON object of a request; None if it is none. Forms of other sites cannot send this content type."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return None
    try:
        asked = json.loads(await request.body())
    except (ValueError, RecursionError):
        return None
    return asked if isinstance(asked, dict) else None


def reply(find: Callable[[], dict[str, Any]]) -> Response:
    """What ``find`` returns as JSON, or its error as a sentence."""
    try:
        return JSONResponse(find())
    except Gone as error:
        return JSONResponse({"error": str(error)}, 409)
    except DataError as error:
        return JSONResponse({"error": str(error)}, 400)
    except SettingError as error:  # the answer could not be written
        return JSONResponse({"error": str(error)}, 507)
    except JuryError as error:
        return JSONResponse({"error": str(error)}, 500)
    except Exception as error:  # one request must not print pages of traceback
        if os.environ.get("JURYGCN_DEBUG", "") not in ("", "0"):
            raise
        print(f"Error: unexpected {type(error).__name__} ({error})", file=sys.stderr)
        return JSONResponse({"error": "This request failed; the terminal says why. No answer is lost."}, 500)
