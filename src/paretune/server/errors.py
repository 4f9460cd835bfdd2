"""Errors of the API: OpenAI's object for everything that can go wrong, from a broken body to a fault of our own.

    {"error": {"message": what was found and what to do, "type": ..., "param": the field or null, "code": ... or null}}

OpenAI's clients raise their exception classes by the status, so a status is what OpenAI answers in the same case.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from paretune.errors import InputError
from paretune.server.request import Busy

log = logging.getLogger("paretune.server")

JSON = "application/json"
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
"""The error's type by its status; the others are the request's fault."""
OURS = "the server failed on this request; its log says why"


class ApiError(Exception):
    """A request that is refused, or that failed: its status, and the fields of OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def to_dict(self) -> dict[str, Any]:
        """The object that is answered."""
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The whole answer."""
        return json_response(self.to_dict(), self.status, self.headers)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON of plain values. NaN and infinity are a fault of ours: they raise, and never leave the server."""
    return Response(dump(value), status, dict(headers or {}), media_type=JSON)


def dump(value: Any) -> bytes:
    """A value as JSON, in UTF-8 without unneeded spaces; a lone surrogate becomes U+FFFD."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode("utf-8")


def told(error: Exception, *, draining: bool = False, param: str | None = None) -> ApiError:
    """Any error as one of the API: the user's own in words (a context that overflows, on `param`), ours without what
    is inside."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InputError):
        if "context is" in error.message:
            return ApiError(400, error.message, param=error.field or param, code="context_length_exceeded")
        return ApiError(400, error.message, param=error.field, code="invalid_value")
    if isinstance(error, Busy):
        headers = {"Retry-After": str(max(1, error.retry_after))}
        if draining:
            return ApiError(503, "the server is stopping; ask another one", code="stopping", headers=headers)
        message = f"{error}; try again in {headers['Retry-After']} s"
        return ApiError(429, message, code="rate_limit_exceeded", headers=headers)
    log.error("a request failed", exc_info=error)
    return ApiError(500, OURS, code="internal_error")


def _unknown(request: Request, error: HTTPException) -> ApiError:
    """What the router refuses: a route that is not there, a method that it does not have."""
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return ApiError(404, f"no route {request.method} {request.url.path}", code="unknown_url")
    if error.status_code == 405:
        if "Allow" in headers:
            takes = [each.strip() for each in headers["Allow"].split(",")]
            headers["Allow"] = ", ".join(sorted({*takes, "HEAD"} if "GET" in takes else takes))
        allowed = f"; it takes {headers['Allow']}" if "Allow" in headers else ""
        message = f"{request.url.path} does not take {request.method}{allowed}"
        return ApiError(405, message, code="method_not_allowed", headers=headers)
    phrase = error.detail or HTTPStatus(error.status_code).phrase
    return ApiError(error.status_code, str(phrase), headers=headers)


def install(app: FastAPI) -> None:
    """Answer what is refused in OpenAI's form; a fault of ours is answered by the `Gate`."""

    async def refused(request: Request, error: Exception) -> Response:
        return told(error, draining=request.app.state.server.draining).response()

    async def unrouted(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _unknown(request, error).response()

    for kind in (ApiError, InputError, Busy):
        app.add_exception_handler(kind, refused)
    app.add_exception_handler(HTTPException, unrouted)
