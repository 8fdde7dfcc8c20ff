"""The pages of ``florilegium ui``, as an ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from jinja2 import PackageLoader
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from florilegium.apps.origins.package import version
from florilegium.apps.reports.html import templates
from florilegium.apps.runs.run_list import ListedRun
from florilegium.common.errors import FlorilegiumError, RunError
from florilegium.common.foreign import printable
from florilegium.common.pages import Table
from florilegium.strategies.folder.results import read_clients
from florilegium.ui.folders import Folders, GoneError, mark_of
from florilegium.ui.guard import COOKIE, ENTRY, MOST, Access, Guard, TooLargeError
from florilegium.ui.parts import PARTS, Pages
from florilegium.ui.predicting import KINDS, MOST_ROWS, fields, predict

MOST_LISTED = 500
"""Runs that the list shows at first."""
MOST_COMPARED = 50
_SUGGESTED = 500
"""Clients that the form for predictions suggests."""
Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(root: Path, access: Access, *, own_code: bool = False) -> ASGIApp:
    """Return the application that shows the runs in folder ``root``.

    Args:
        root: the folder of runs.
        access: who may see them.
        own_code: whether code of one's own that runs name is imported, to compare runs and to predict.
    """
    site = _Site(root, access, own_code)
    routes = [
        Route("/", site.runs),
        Route("/runs/{name}", site.run),
        Route("/runs/{name}/parts", site.parts),
        Route("/runs/{name}/predict", site.predict, methods=["GET", "POST"]),
        Route("/runs/{name}/fields", site.fields, methods=["POST"]),
        Route("/compare", site.compare),
        Route(ENTRY, site.enter, methods=["GET", "POST"]),
        Route("/page.css", site.file("ui.css.j2", "text/css")),
        Route("/page.js", site.file("page.js.j2", "text/javascript")),
        Route("/ui.js", site.file("ui.js.j2", "text/javascript")),
    ]
    handlers: Mapping[Any, Any] = {
        GoneError: site.problem(404),
        RunError: site.problem(422),
        FlorilegiumError: site.problem(422),
        TooLargeError: site.problem(413),
        HTTPException: site.problem(404),
        Exception: site.problem(500),
    }
    return Guard(Starlette(routes=routes, exception_handlers=handlers), access)


class _Site:
    def __init__(self, root: Path, access: Access, own_code: bool) -> None:
        self._folders, self._access, self._own_code = Folders(root), access, own_code
        self._templates = templates(PackageLoader("florilegium.ui", ""))
        self._templates.globals["version"] = version()
        self._pages = Pages(self._templates, own_code=own_code)

    # ------------------------------------------------------------------------------------------ pages

    async def runs(self, request: Request) -> Response:
        """Show the list of runs."""
        everything = request.query_params.get("all") == "1"
        found = await run_in_threadpool(self._folders.listed)
        shown = found if everything else found[:MOST_LISTED]
        table = Table("", ["run", "state", "method", "dataset", "seed", "rounds", "figure"], [*map(_row, shown)])
        return self._page("runs", runs=table, number=len(found), folder=str(self._folders.root))

    async def run(self, request: Request) -> Response:
        """Show a run."""
        path = self._find(request)
        made = await run_in_threadpool(lambda: {name: self._pages.part(path, name) for name in PARTS})
        return self._page("run", run=path.name, parts=made)

    async def parts(self, request: Request) -> Response:
        """Return the parts of a run's page that are not of the versions that the query names, as JSON."""
        path, query = self._find(request), request.query_params
        names = [name for name in PARTS if name in query]
        made = await run_in_threadpool(lambda: {name: self._pages.part(path, name, query[name]) for name in names})
        changed = {name: {"version": part.version, "html": part.html} for name, part in made.items() if part}
        return JSONResponse(changed)

    async def compare(self, request: Request) -> Response:
        """Show a report on the runs that the query names."""
        names = [*dict.fromkeys(request.query_params.getlist("run"))]
        if not 1 <= len(names) <= MOST_COMPARED:
            raise RunError(f"choose 1 to {MOST_COMPARED} runs (found: {len(names)})")
        paths = [self._folders.find(name) for name in names]
        report = await run_in_threadpool(self._pages.compared, paths)
        return self._page("compare", names=names, report=report)

    async def predict(self, request: Request) -> Response:
        """Show the form for predictions; return what is predicted for the rows that were sent."""
        path = self._find(request)
        if request.method == "GET":
            clients = await run_in_threadpool(_clients_of, path)
            return self._page("predict", run=path.name, clients=clients, kinds=KINDS, most=MOST >> 20)
        query = request.query_params
        rows = await request.body()
        found = await predict(path, query.get("client", "")[:200], query.get("kind", ""), rows, own_code=self._own_code)
        return self._page("predicted", found=found, most=MOST_ROWS)

    async def fields(self, request: Request) -> Response:
        """Return a field for each column of a run's data, for the form for predictions."""
        found = await fields(self._find(request), own_code=self._own_code)
        return self._page("fields", fields=found)

    async def enter(self, request: Request) -> Response:
        """Ask for the token; give the cookie to whoever knows it."""
        if request.method == "GET":
            return self._page("enter", wrong=False)
        given = parse_qs((await request.body())[:4096].decode("utf-8", "replace")).get("token", [""])[0]
        if not self._access.knows(given.strip()):
            return self._page("enter", 403, wrong=True)
        reply = RedirectResponse("/", 303)
        reply.set_cookie(COOKIE, self._access.seal, httponly=True, samesite="strict")
        return reply

    # ------------------------------------------------------------------------------------------- parts

    def file(self, name: str, kind: str) -> Endpoint:
        """Return what serves a template without values as a file."""
        content = self._templates.get_template(name).render()

        async def serve(request: Request) -> Response:
            return Response(content, media_type=kind)

        return serve

    def problem(self, status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
        """Return what shows an error as a page."""

        async def show(request: Request, error: Exception) -> Response:
            code, why = status, "there is no such page"
            if isinstance(error, HTTPException):
                code = error.status_code
            elif isinstance(error, TooLargeError):
                why = f"at most {MOST >> 20} MB can be sent"
            elif isinstance(error, FlorilegiumError):
                why = printable(error, 2000)
            else:
                why = f"{type(error).__name__}: {printable(error)}"
            return self._page("error", code, why=why)

        return show

    def _find(self, request: Request) -> Path:
        return self._folders.find(request.path_params["name"])

    def _page(self, name: str, status: int = 200, **content: Any) -> Response:
        return HTMLResponse(self._templates.get_template(f"{name}.html.j2").render(**content), status)


def _row(run: ListedRun) -> list[str]:
    """Return a run's line of the list."""
    value = "" if run.value is None else f"{printable(run.figure, 40)} {run.value:.4f}"
    facts = (run.state, run.method, run.dataset, run.seed, run.rounds)
    return [run.name, *("" if fact is None else printable(fact, 200) for fact in facts), value]


def _clients_of(run: Path) -> list[tuple[str, str]]:
    """Return numbers and names of a run's first clients; [] if the file cannot be read, since it only suggests."""
    try:
        mark_of(run, ["clients.csv"])
        lines = read_clients(run)[:_SUGGESTED]
    except RunError:
        return []
    return [(printable(line["client"], 200), printable(line.get("name", ""), 200)) for line in lines]
