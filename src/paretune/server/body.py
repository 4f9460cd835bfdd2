"""A request's body: cut while it is read, and JSON by the letter of the standard.

Python's reader takes more than JSON: NaN, numbers of any length, keys said twice, half of a UTF-16 pair. What two
readers understand differently is refused here, before anything is made of it.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from paretune.data.formats import check_values
from paretune.data.records import BadRow, show
from paretune.server.errors import ApiError
from paretune.server.limits import ServerLimits

DEPTH = 64
"""Objects and lists within each other."""
AT_ONCE = 1 << 16
"""Bytes that are read in the loop itself; a larger body is made to be slow by some, and is read in a thread."""
THROWN_AWAY = 16
"""A body of up to so many times the limit is read to its end, so that the client gets to read why it was refused."""


async def read_json(request: Request, limits: ServerLimits) -> dict[str, Any]:
    """The JSON object in a request's body.

    Raises `ApiError`: 415 for another content type, 413 for a body beyond `limits.body_bytes`, 408 for one that does
    not arrive within `limits.body_seconds`, 400 for one that is no JSON object.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        found = f"found '{kind:.80}'" if kind else "there is none"
        raise ApiError(415, f"the body must be JSON with content-type application/json; {found}", code="content_type")
    data = await read(request, limits)
    return parse(data) if len(data) <= AT_ONCE else await asyncio.to_thread(parse, data)


async def read(request: Request, limits: ServerLimits) -> bytes:
    """The body's bytes; raises `ApiError` as `read_json` does."""
    try:
        async with asyncio.timeout(limits.body_seconds):
            return await _read(request, limits.body_bytes)
    except TimeoutError:
        message = f"the body did not arrive within {limits.body_seconds:g} s"
        raise ApiError(408, message, code="timeout", headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ApiError(400, "the connection was closed before the body was whole", code="disconnected") from None


async def _read(request: Request, limit: int) -> bytes:
    said = request.headers.get("content-length", "")
    refused = ApiError(
        413,
        f"the body must be at most {limit:,} bytes{f', found {int(said):,}' if said.isdecimal() else ''}",
        code="body_too_large",
        headers={"Connection": "close"},
    )
    if said.isdecimal() and int(said) > limit * THROWN_AWAY:
        raise refused
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit * THROWN_AWAY:
            raise refused
        if size > limit:
            parts.clear()
        else:
            parts.append(part)
    if size > limit:
        raise refused
    return b"".join(parts)


def parse(data: bytes) -> dict[str, Any]:
    """Bytes as a JSON object; raises `ApiError` 400 that says what is wrong and where."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad(f"the body is not UTF-8 (byte {error.start})") from None
    if not text.strip():
        raise _bad("the body is empty; a JSON object is needed")
    try:
        value = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant, parse_float=_finite)
        check_values(value, "")
    except json.JSONDecodeError as error:
        raise _bad(f"the body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise _bad(f"the body is nested deeper than {DEPTH} levels") from None
    except BadRow as bad:
        raise _bad(str(bad), bad.field) from None
    except ValueError:  # a whole number of thousands of digits
        raise _bad("the body holds a number that is too long") from None
    if not isinstance(value, dict):
        raise _bad(f"the body must be a JSON object, found {show(value)}")
    _check_depth(value)
    return value


def _bad(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_json")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _bad(f"the body says '{twice:.100}' twice in one object")
    return value


def _no_constant(name: str) -> Any:
    raise _bad(f"the body is not JSON: {name} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _bad(f"the body holds a number beyond any float: {text:.50}")
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH):
        level = [
            item
            for each in level
            if isinstance(each, (dict, list))
            for item in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise _bad(f"the body is nested deeper than {DEPTH} levels")
