"""Awaits a coroutine from plain code, also where an event loop runs already (a notebook).

One loop a thread serves all calls: clients of web services stay tied to the loop they were first used in, so a loop of
its own for every batch would break them at the second.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
_LOCAL = threading.local()
_ASIDE: list[ThreadPoolExecutor] = []
"""The thread whose loop is used where this one's is running; made when it is needed first."""


async def _wait(awaitable: Awaitable[T]) -> T:
    return await awaitable


def finish(awaitable: Awaitable[T]) -> T:
    """The awaitable's result."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(awaitable)
    if not _ASIDE:
        _ASIDE.append(ThreadPoolExecutor(1, thread_name_prefix="paretune-await"))
    return _ASIDE[0].submit(_run, awaitable).result()


def _run(awaitable: Awaitable[T]) -> T:
    runner: asyncio.Runner | None = getattr(_LOCAL, "runner", None)
    if runner is None:
        runner = _LOCAL.runner = asyncio.Runner()
        atexit.register(runner.close)
    return runner.run(_wait(awaitable))
