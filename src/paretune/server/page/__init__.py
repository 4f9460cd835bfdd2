"""The page at `/`: a chat that shows what the policy senses, what was asked of an answer, and what it obtained.

Static files without a build step or a library, served from memory. Nothing is loaded from anywhere else, and the
content security policy lets nothing else in: no inline script or style, no frame, no request to another server.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Any

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request
from starlette.responses import Response

from paretune.server.body import read_json
from paretune.server.errors import ApiError, json_response
from paretune.server.markdown import LONGEST, render

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked again each time, answered 304 while it is the same
}
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Asset:
    """A static file in memory, and what tells it from another version of it."""

    def __init__(self, name: str, data: bytes) -> None:
        self.data = data
        self.kind = TYPES[name.rpartition(".")[2]]
        self.tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'

    def response(self, request: Request) -> Response:
        """The file, or 304 to a browser that has it."""
        headers = HEADERS | {"ETag": self.tag}
        if self.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.data, headers=headers, media_type=self.kind)


def read_assets() -> dict[str, Asset]:
    """The page's files by name."""
    folder = files("paretune.server.page").joinpath("static")
    return {each.name: Asset(each.name, each.read_bytes()) for each in folder.iterdir()}


def mount(app: FastAPI) -> None:
    """Add the page to an application whose `state.limits` are the server's: `/`, the files below `/page/`, the icon,
    and `POST /page/markdown`, which turns `{"text": ...}` into `{"html": ...}` that is safe to show."""
    assets = read_assets()

    async def page(request: Request) -> Response:
        return assets["index.html"].response(request)

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in assets:
            raise ApiError(404, f"the page has no file '{name:.100}'", code="unknown_url")
        return assets[name].response(request)

    async def icon(request: Request) -> Response:
        return assets["favicon.svg"].response(request)

    one_at_a_time = CapacityLimiter(1)  # a text made to be slow takes seconds; others keep the processor

    async def rendered(request: Request) -> Response:
        return await _markdown(request, one_at_a_time)

    for path, answer in {"/": page, "/page/{name}": file, "/favicon.svg": icon, "/favicon.ico": icon}.items():
        app.add_api_route(path, answer, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/page/markdown", rendered, methods=["POST"], include_in_schema=False)


async def _markdown(request: Request, limiter: CapacityLimiter) -> Response:
    """Markdown as sanitised HTML. Raises `ApiError` 400 without a text, and for one that is too long."""
    body: dict[str, Any] = await read_json(request, request.app.state.limits)
    text = body.get("text")
    if not isinstance(text, str):
        raise ApiError(400, "'text' must be a text", param="text", code="invalid_value")
    if len(text) > LONGEST:
        message = f"'text' must have at most {LONGEST:,} characters, found {len(text):,}"
        raise ApiError(400, message, param="text", code="invalid_value")
    return json_response({"html": await to_thread.run_sync(render, text, limiter=limiter)})
