"""The way of one request through the engine: admitted, followed, cancelled when its client leaves.

What both completions share. How an answer is written (`Form`) is theirs: `chat` and `completions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paretune.server.errors import ApiError, dump, json_response, told
from paretune.server.events import Inbox
from paretune.server.metrics import Stopwatch
from paretune.server.request import Ask, Begun, Ended, Engine, Event, Failed, Logprob, Reason, Ticket, Token

Result = TypeVar("Result")


class Gone(Exception):
    """The client left."""


@dataclass
class Piece:
    """What is new of answer `index` of a request: text, the log-probabilities of its tokens, why it ended."""

    index: int
    texts: list[str] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    reason: Reason | None = None

    @property
    def text(self) -> str:
        """All its text."""
        return "".join(self.texts)


class Form(Protocol):
    """How the answers of a request are written."""

    async def settle(self, answer: Piece) -> None:
        """An answer ended: do what takes a while."""

    def opening(self, run: Run) -> list[dict[str, Any]]:
        """Chunks that begin a stream, once the prompt is computed."""

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """What is new of one answer."""

    def closing(self, run: Run) -> list[dict[str, Any]]:
        """Chunks after the last answer's end."""

    def whole(self, run: Run) -> dict[str, Any]:
        """All answers at once."""


class Run:
    """One request in the engine: `asks` of `n` answers each; answer k of ask i is the request's i * n + k."""

    def __init__(self, engine: Engine, asks: Sequence[Ask], watch: Stopwatch) -> None:
        self.asks, self.n = asks, asks[0].n
        self.begun: dict[int, Begun] = {}
        self.answers = [Piece(index) for index in range(len(asks) * self.n)]
        self.completion_tokens = 0
        self._engine, self._watch = engine, watch
        self._inbox = Inbox()
        self._tickets: list[Ticket] = []
        self._failure: ApiError | None = None

    @property
    def over(self) -> bool:
        """Has every answer ended?"""
        return all(answer.reason is not None for answer in self.answers)

    async def start(self, pool: Executor) -> None:
        """Admit the request, all of it or nothing. Raises what `Engine.submit` does.

        In a thread: a long prompt takes a while to be tokenised.
        """
        loop = asyncio.get_running_loop()
        try:
            for number, ask in enumerate(self.asks):
                admitted = loop.run_in_executor(pool, self._engine.submit, ask, partial(self._inbox.tell, number))
                try:
                    self._tickets.append(await asyncio.shield(admitted))
                except asyncio.CancelledError:
                    admitted.add_done_callback(_cancel_late)
                    raise
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Free what the request holds, if it is not over."""
        if not self.over:
            for ticket in self._tickets:
                ticket.cancel()

    async def news(self, patience: float | None = None) -> list[Piece] | None:
        """What came since the last time, an entry an answer; None if nothing does for `patience` seconds.

        Raises `ApiError` for a request that fails, or that is given up before it began, once what came before is told.
        """
        if self._failure is not None:
            raise self._failure
        try:
            async with asyncio.timeout(patience):
                batch = await self._inbox.batch()
        except TimeoutError:
            return None
        pieces: dict[int, Piece] = {}
        try:
            for number, event in batch:
                self._take(number, event, pieces)
        except ApiError as error:
            self._failure = error
            if not pieces:
                raise
        return list(pieces.values())

    def _take(self, number: int, event: Event, pieces: dict[int, Piece]) -> None:
        if isinstance(event, Begun):
            self.begun[number] = event
            self._watch.began(event.prompt_tokens, event.cached_tokens)
            return
        if isinstance(event, Failed):
            raise told(event.error)
        index = number * self.n + event.index
        piece, answer = pieces.setdefault(index, Piece(index)), self.answers[index]
        piece.texts.append(event.text)
        if isinstance(event, Token):
            self._watch.token(index)
            if event.logprob is not None:
                piece.logprobs.append(event.logprob)
                answer.logprobs.append(event.logprob)
        else:
            self._end(number, event, piece)
        answer.texts.append(event.text)

    def _end(self, number: int, event: Ended, piece: Piece) -> None:
        if event.reason == "cancelled":  # not by us: nobody would be listening
            raise ApiError(
                503, "the server is stopping; ask another one", code="stopping", headers={"Retry-After": "5"}
            )
        if event.reason == "deadline" and number not in self.begun:
            raise ApiError(503, "no place came free in time", code="deadline", headers={"Retry-After": "30"})
        piece.reason = self.answers[piece.index].reason = event.reason
        self.completion_tokens += event.tokens
        self._watch.ended(piece.index, event.tokens)

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        prompt = sum(begun.prompt_tokens for begun in self.begun.values())
        cached = sum(begun.cached_tokens for begun in self.begun.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def _cancel_late(admitted: asyncio.Future[Ticket]) -> None:
    """A request admitted after its client left."""
    if not admitted.cancelled() and admitted.exception() is None:
        admitted.result().cancel()


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of `work`, or `Gone` as soon as the client leaves; `work` is cancelled then."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        for each in (task, leaving):
            each.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)


async def answer(run: Run, form: Form, receive: Receive, pool: Executor) -> Response:
    """The answers as one JSON object. Raises `Gone`."""

    async def follow() -> None:
        await run.start(pool)
        while not run.over:
            await run.news()
        for each in run.answers:
            await form.settle(each)

    try:
        await unless_gone(receive, follow())
    finally:
        run.cancel()
    return json_response(form.whole(run))


async def open_stream(
    run: Run, form: Form, receive: Receive, pool: Executor, *, heartbeat: float, left: Callable[[], None]
) -> Response:
    """The answers as a stream of events.

    Its status is held back until the prompt is computed (or `heartbeat` seconds have passed), so that what fails till
    then is told by its status. Raises `Gone`.
    """

    async def first() -> list[Piece]:
        await run.start(pool)
        pieces: list[Piece] = []
        while not run.begun:
            came = await run.news(heartbeat)
            if came is None:
                break
            pieces += came
        return pieces

    try:
        pieces = await unless_gone(receive, first())
    except BaseException:
        run.cancel()
        raise
    return Stream(_written(run, form, pieces, heartbeat), run, left)


async def _written(run: Run, form: Form, pieces: list[Piece] | None, heartbeat: float) -> AsyncIterator[bytes]:
    """The stream's bytes."""
    opened = False
    try:
        while True:
            if pieces is None:
                yield b": waiting\n\n"  # a comment, which clients skip
            elif run.begun:
                chunks = [] if opened else form.opening(run)
                opened = True
                for piece in pieces:
                    if piece.reason is not None:
                        await form.settle(run.answers[piece.index])
                chunks += [form.chunk(piece) for piece in pieces if piece.text or piece.logprobs or piece.reason]
                if chunks:
                    yield b"".join(map(_event, chunks))
            if run.over:
                break
            pieces = await run.news(heartbeat)
        for chunk in form.closing(run):
            yield _event(chunk)
        yield b"data: [DONE]\n\n"
    except Exception as error:
        yield _event(told(error).to_dict())


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + dump(value) + b"\n\n"


class Stream(Response):
    """Server-sent events, which end the request in the engine whenever and however they end."""

    def __init__(self, chunks: AsyncIterator[bytes], run: Run, left: Callable[[], None]) -> None:
        """`left` is called when the client leaves."""
        self.status_code, self.background = 200, None
        self.init_headers(
            {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        )
        self._chunks, self._run, self._left = chunks, run, left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send(send))
        except Gone:
            self._left()
        finally:
            self._run.cancel()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
