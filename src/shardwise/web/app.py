"""The routes: each hands its request to a child process and its answer back."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from shardwise.web import assets
from shardwise.web import guard as bodies
from shardwise.web.guard import Guard, Refusal, Shield, error_data
from shardwise.web.searches import Searches
from shardwise.web.stream import Event, EventStream
from shardwise.web.workers import Workers

_LIMITS = {"model": bodies.LARGEST_MODEL, "script": bodies.LARGEST_MODEL}
_LASTING = ("catalog", "first")


class App:
    """One server's state and its routes."""

    def __init__(self, *, host: str, port: int, token: str = "", searches: int = 1) -> None:
        self.workers = Workers()
        self.searches = Searches(workers=self.workers, most=searches)
        self.kept: dict[str, bytes] = {}
        """Answers that stay the same while the server runs."""
        inner = Starlette(routes=self._routes(), exception_handlers=_HANDLERS)
        self.asgi: ASGIApp = Shield(Guard(app=inner, host=host, port=port, token=token))

    def _routes(self) -> list[Route]:
        return [
            Route("/", self._page),
            Route("/assets/{name:path}", self._asset),
            *(Route(f"/api/{name}", self._lasts(name)) for name in _LASTING),
            *(
                Route(f"/api/{name}", self._answered(name), methods=["POST"])
                for name in ("model", "script", "step", "view", "why", "export")
            ),
            Route("/api/report", self._report, methods=["POST"]),
            Route("/api/plan", self._plan, methods=["POST"]),
            Route("/api/plan/{name}/stop", self._stop, methods=["POST"]),
        ]

    async def _page(self, request: Request) -> Response:
        return assets.serve(request, "index.html")

    async def _asset(self, request: Request) -> Response:
        return assets.serve(request, request.path_params["name"])

    async def warm_up(self) -> None:
        """Start a child, and have ready what every page asks first."""
        await self.workers.warm_up()
        for name in _LASTING:
            with contextlib.suppress(Refusal):
                await self._lasting(name)

    async def _lasting(self, name: str) -> Response:
        if name not in self.kept:
            frame = await self.workers.answer(Event(name))
            if frame.word != "200":
                return _answer(frame)
            self.kept[name] = frame.body
        return Response(self.kept[name], media_type="application/json", headers={"Cache-Control": "no-cache"})

    def _lasts(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            del request
            return await self._lasting(name)

        return endpoint

    def _answered(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            body = await bodies.read(request, _LIMITS.get(name, bodies.LARGEST))
            return _answer(await self.workers.answer(Event(name, body)))

        return endpoint

    async def _report(self, request: Request) -> Response:
        frame = await self.workers.answer(Event("report", await bodies.read(request)))
        if frame.word != "200":
            return _answer(frame)
        headers = {"Content-Disposition": 'attachment; filename="shardwise-report.html"', **_NO_STORE}
        headers["Content-Security-Policy"] = "sandbox; default-src 'none'"  # it is a file to save, not a page of ours
        return Response(frame.body, media_type="text/html; charset=utf-8", headers=headers)

    async def _plan(self, request: Request) -> Response:
        question = await bodies.read(request)
        checked = await self.workers.answer(Event("question", question))
        if checked.word != "200":
            return _answer(checked)

        async def work(emit: Callable[[Event | None], Awaitable[None]]) -> None:
            async with self.searches.enter() as search:
                await self.searches.follow(search, question, emit)

        return EventStream(work)

    async def _stop(self, request: Request) -> Response:
        if not await self.searches.stop(request.path_params["name"]):
            raise Refusal(404, "there is no such search; it may have ended")
        return JSONResponse({"stopped": True}, headers=_NO_STORE)


_NO_STORE = {"Cache-Control": "no-store"}


def _answer(frame: Event) -> Response:
    return Response(frame.body, int(frame.word), media_type="application/json", headers=_NO_STORE)


async def _refused(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, Refusal)  # noqa: S101 - registered for it
    return JSONResponse(error_data(error.message), error.status, headers={**error.headers, **_NO_STORE})


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    said = {
        404: "there is nothing at this address; the page is at /",
        405: f"this address does not take {request.method[:20]}; see the Allow header",
    }
    message = said.get(error.status_code, error.detail)
    return JSONResponse(error_data(message), error.status_code, headers={**(error.headers or {}), **_NO_STORE})


_HANDLERS = {Refusal: _refused, HTTPException: _http}
