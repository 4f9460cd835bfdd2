"""An endpoint that judges are asked at: its limits, its one client, and what is known of it.

All judges of a process at one URL share one `Endpoint`, so that together they keep to its limits. Endpoints live in an
event loop of their own, in a thread of its own: rewards are called from anywhere, also from a running loop (Jupyter),
and from several threads at once.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from paretune.errors import InputError
from paretune.rewards.judge.errors import Failure, failure_of
from paretune.rewards.judge.prompt import response_format
from paretune.rewards.judge.spec import MODES, JudgeSpec, Mode

T = TypeVar("T")
Write = Callable[[Mode], str]
"""The text of a request, by the mode it is asked in."""
MINUTE = 60.0
KEY_VARIABLES = ("PARETUNE_JUDGE_API_KEY", "OPENAI_API_KEY")


class Clock:
    """Time, in seconds; tests put one in its place that does not wait."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Let others run for so long."""
        await asyncio.sleep(seconds)


class Formats:
    """Which of the modes a model at an endpoint is known to take or to refuse."""

    def __init__(self) -> None:
        self.taken: set[Mode] = set()
        self.refused: set[Mode] = set()
        self.tried = False
        self.first = asyncio.Lock()
        self.stopped = ""

    def open_from(self, wanted: Mode) -> list[Mode]:
        """The modes to try in turn: the wanted one and the looser ones, less those refused, up to one that works."""
        modes = [mode for mode in MODES[MODES.index(wanted) :] if mode not in self.refused]
        known = next((at for at, mode in enumerate(modes) if mode in self.taken), len(modes))
        return modes[: known + 1]


class Endpoint:
    """Sends requests to one URL within its limits.

    `failures` counts the answers in a row that could not be had; whoever gives verdicts resets it. Everything but the
    constructor belongs to the event loop's thread.
    """

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.url = url
        self.clock = clock or Clock()
        self.failures = 0
        self.answered = False
        self._formats: dict[str, Formats] = {}
        self._clients: dict[str, Any] = {}
        self._under_way = 0
        self._freed = asyncio.Event()
        self._starts: deque[float] = deque()
        self._closed_until = 0.0

    async def ask(self, spec: JudgeSpec, key: str, write: Write, counts: Counter[str]) -> tuple[str, Mode]:
        """The body of the endpoint's reply, and the mode it was asked in: the strictest one that the model takes.

        The first request of all goes alone, so that a mode which the endpoint does not know, or a key that it refuses,
        is refused once and not once for each request under way. Raises `Failure` for this one request, `InputError` for
        all there would be.
        """
        formats = self._formats.setdefault(spec.model, Formats())
        if not formats.tried:
            behind = formats.first.locked()
            async with formats.first:
                if behind and formats.stopped:
                    raise InputError(formats.stopped)
                if not formats.tried:
                    return await self._first(formats, spec, key, write, counts)
        return await self._in_modes(formats, spec, key, write, counts)

    async def _first(
        self, formats: Formats, spec: JudgeSpec, key: str, write: Write, counts: Counter[str]
    ) -> tuple[str, Mode]:
        """The first request. Whatever comes of it, the others may go, unless they would be stopped just the same."""
        formats.stopped = ""
        try:
            result = await self._in_modes(formats, spec, key, write, counts)
        except InputError as error:
            formats.stopped = str(error)  # for those in the queue; a later call may bring another key
            raise
        except Failure:
            formats.tried = True
            raise
        formats.tried = True
        return result

    async def _in_modes(
        self, formats: Formats, spec: JudgeSpec, key: str, write: Write, counts: Counter[str]
    ) -> tuple[str, Mode]:
        refused: list[Mode] = []
        modes = formats.open_from(spec.mode)
        for mode in modes:
            try:
                body = await self._send(spec, key, write(mode), mode, counts)
            except Failure as failure:
                if not failure.malformed or mode == modes[-1]:
                    raise
                refused.append(mode)
                continue
            # only now is it known that it was the mode that was refused, and not this request in any mode
            formats.refused.update(refused)
            formats.taken.add(mode)
            return body, mode
        raise AssertionError("the last mode returns or raises")

    async def _send(self, spec: JudgeSpec, key: str, text: str, mode: Mode, counts: Counter[str]) -> str:
        options: dict[str, Any] = {"model": spec.model, "messages": [{"role": "user", "content": text}]}
        if spec.temperature is not None:
            options["temperature"] = spec.temperature
        if (form := response_format(mode)) is not None:
            options["response_format"] = form
        create = self._client(key).chat.completions.with_raw_response.create
        async with self._place(spec.concurrency):
            await self._turn(spec.rate)
            counts["requests"] += 1
            try:
                async with asyncio.timeout(spec.timeout):  # all of it; the client's own is for each read
                    response = await create(**options, timeout=spec.timeout)
            except Exception as error:
                failure = failure_of(error, spec, key)
                if failure.retry_after is not None:
                    self._closed_until = max(self._closed_until, self.clock.now() + failure.retry_after)
                raise failure from None  # the client's error holds the request, and that the key
        return str(response.text)

    def _client(self, key: str) -> Any:
        if key not in self._clients:
            from openai import AsyncOpenAI

            self._clients[key] = AsyncOpenAI(base_url=self.url, api_key=key, max_retries=0)
        return self._clients[key]

    @asynccontextmanager
    async def _place(self, concurrency: int) -> AsyncIterator[None]:
        """Wait until fewer than `concurrency` requests are under way, whoever sent them."""
        while self._under_way >= concurrency:
            await self._freed.wait()
        self._under_way += 1
        try:
            yield
        finally:  # nothing is awaited here, so a request that is cancelled wakes the others all the same
            self._under_way -= 1
            self._freed.set()
            self._freed = asyncio.Event()

    async def _turn(self, rate: int | None) -> None:
        """Wait until the endpoint is open and fewer than `rate` requests were started in the last 60 seconds.

        A window that slides, not a bucket that fills: a full bucket would let twice the rate through in one minute.
        """
        while True:
            now = self.clock.now()
            while self._starts and self._starts[0] <= now - MINUTE:
                self._starts.popleft()
            wait = self._closed_until - now
            if rate is not None and len(self._starts) >= rate:
                wait = max(wait, self._starts[-rate] + MINUTE - now)
            if wait <= 0:
                self._starts.append(now)
                return
            await self.clock.sleep(wait)


class _Home:
    """The loop, its thread and the endpoints in it; made when the first judge is built."""

    def __init__(self) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None

    def running(self) -> asyncio.AbstractEventLoop:
        with self.lock:
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                threading.Thread(target=self.loop.run_forever, name="paretune-judges", daemon=True).start()
            return self.loop


_home = _Home()


def _leave_home() -> None:
    """A forked child has the parent's memory but not its thread: it starts anew."""
    global _home
    _home = _Home()


os.register_at_fork(after_in_child=_leave_home)


def endpoint_at(url: str) -> Endpoint:
    """The process's one endpoint of a URL."""
    with _home.lock:
        return _home.endpoints.setdefault(url, Endpoint(url))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do asynchronous work in the endpoints' loop and wait for it; an interrupt here cancels it there."""
    future = asyncio.run_coroutine_threadsafe(work, _home.running())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def api_key() -> str:
    """The key from the environment, or "none": endpoints of one's own often want none."""
    for name in KEY_VARIABLES:
        key = os.environ.get(name, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise InputError(f"the key in {name} holds characters that no request can carry")
        if key:
            return key
    return "none"


def check_client() -> None:
    """Raises `InputError` when the package that talks to endpoints is missing."""
    try:
        import openai  # noqa: F401
    except ImportError:
        raise InputError("a judge needs the package openai; run: pip install 'paretune[judge]'") from None
