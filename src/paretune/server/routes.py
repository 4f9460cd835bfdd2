"""The routes: each reads its body, asks the engine, and writes what it tells."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from paretune.errors import InputError
from paretune.server import schema
from paretune.server.answering import Form, Gone, Run, answer, open_stream, unless_gone
from paretune.server.asking import chat_ask, check_model, completion_asks, conversation, pins_of
from paretune.server.body import read_json
from paretune.server.chat import ChatForm
from paretune.server.completions import CompletionForm
from paretune.server.errors import ApiError, json_response, told
from paretune.server.request import Ask, Busy, Load
from paretune.server.requests import ChatBody, Common, CompletionBody, SenseBody, read_body
from paretune.server.state import State

router = APIRouter()
LEFT = Response(status_code=499)
"""For a client that left: nobody reads it, but the log says it."""
STREAM = {"text/event-stream": {"schema": {"description": "Chunks of OpenAI's, an event each; then [DONE]."}}}


def state_of(request: Request) -> State:
    """What the application holds."""
    state = request.app.state.server
    assert isinstance(state, State)
    return state


@router.post(
    "/v1/chat/completions",
    responses={200: {"model": schema.ChatAnswer, "content": STREAM}, **schema.refusals(*schema.ASKED)},
    openapi_extra=schema.body_of(ChatBody),
    response_class=Response,
)
async def chat_completions(request: Request) -> Response:
    """Answer a conversation, guided by what is sensed from it, by pins (`profile`) or by `weights`."""
    state = state_of(request)
    body = read_body(ChatBody, await read_json(request, state.rules.limits))
    check_model(body.model, state.rules.served)
    ask = chat_ask(body, state.rules)
    form = ChatForm(
        state.rules.served.name,
        ask.messages,
        logprobs=ask.logprobs is not None,
        include_usage=_wants_usage(body),
        score=state.score,
        pool=state.pool,
    )
    return await _answered(request, state, body, [ask], form)


@router.post(
    "/v1/completions",
    responses={200: {"model": schema.CompletionAnswer, "content": STREAM}, **schema.refusals(*schema.ASKED)},
    openapi_extra=schema.body_of(CompletionBody),
    response_class=Response,
)
async def completions(request: Request) -> Response:
    """Continue texts as they stand: no template, no profile."""
    state = state_of(request)
    raw = await read_json(request, state.rules.limits)
    for name in ("profile", "weights", "sense"):
        if raw.get(name):
            raise ApiError(400, f"'{name}' is for /v1/chat/completions; a text is continued as it stands", param=name)
    body = read_body(CompletionBody, raw)
    check_model(body.model, state.rules.served)
    asks = completion_asks(body, state.rules)
    name, logprobs = state.rules.served.name, body.logprobs is not None
    form = CompletionForm(name, logprobs=logprobs, include_usage=_wants_usage(body))
    return await _answered(request, state, body, asks, form)


def _wants_usage(body: Common) -> bool:
    """Is the usage to be told at a stream's end?"""
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream to be true", param="stream_options", code="invalid_value")
    return bool(body.stream_options and body.stream_options.include_usage)


async def _answered(request: Request, state: State, body: Common, asks: list[Ask], form: Form) -> Response:
    run = Run(state.engine, asks, state.metrics.watch())
    left, limits, pool = state.metrics.cancelled.inc, state.rules.limits, state.admitting(asks)
    try:
        if body.stream:
            return await open_stream(run, form, request.receive, pool, heartbeat=limits.heartbeat, left=left)
        return await answer(run, form, request.receive, pool)
    except Gone:
        left()
        return LEFT
    except Busy:
        state.metrics.rejected.inc()
        raise
    except InputError as error:  # an engine knows no field's name
        raise told(error, param="prompt" if asks[0].text is not None else "messages") from None


@router.post(
    "/v1/sense",
    responses={200: {"model": schema.SenseAnswer}, **schema.refusals(*schema.ASKED)},
    openapi_extra=schema.body_of(SenseBody),
    response_class=Response,
)
async def sense(request: Request) -> Response:
    """What is sensed from prompts, given pins: a profile each."""
    state = state_of(request)
    served, limits = state.rules.served, state.rules.limits
    body = read_body(SenseBody, await read_json(request, limits))
    if body.model is not None:
        check_model(body.model, served)
    if (body.messages is None) == (body.input is None):
        raise ApiError(400, "give either 'messages' (one conversation) or 'input' (texts)", param="input")
    if not served.senses:
        message = f"a policy trained by '{served.method}' has no sensing head, so it cannot sense"
        raise ApiError(400, message, code="unsupported")
    if body.messages is not None:
        chats = [conversation(body.messages, limits)]
    elif len(texts := body.input or []) > limits.prompts:
        message = f"a request may have {limits.prompts:,} texts, found {len(texts):,}"
        raise ApiError(400, message, param="input", code="limit_exceeded")
    else:
        chats = [[{"role": "user", "content": text}] for text in texts]
        for number, text in enumerate(texts):
            if not text.strip():
                raise ApiError(400, "the prompt is empty", param=f"input[{number}]", code="invalid_value")
    pins = pins_of(body.profile, served)
    try:
        found = await unless_gone(request.receive, state.sense(chats, pins))
    except Gone:
        state.metrics.cancelled.inc()
        return LEFT
    except Busy:
        state.metrics.rejected.inc()
        raise
    except InputError as error:
        raise told(error, param="input" if body.messages is None else "messages") from None
    data = [
        {"object": "sensed", "index": index, "profile": each.profile, "interval": each.interval}
        for index, each in enumerate(found)
    ]
    return json_response({"object": "list", "model": served.name, "data": data})


@router.get("/v1/models", responses={200: {"model": schema.ModelsAnswer}, **schema.refusals(401, 403)})
async def models(request: Request) -> Response:
    """The one model that is served."""
    return json_response({"object": "list", "data": [state_of(request).rules.served.model()]})


@router.get("/v1/models/{model:path}", responses={200: {"model": schema.ModelAnswer}, **schema.refusals(401, 403, 404)})
async def model(request: Request, model: str) -> Response:
    """The model, by its name."""
    served = state_of(request).rules.served
    check_model(model, served)
    return json_response(served.model())


@router.get("/v1/objectives", responses={200: {"model": schema.ObjectivesAnswer}, **schema.refusals(401, 403)})
async def objectives(request: Request) -> Response:
    """What the policy can be asked for, and the front of its evaluation."""
    return json_response(state_of(request).rules.served.describe())


@router.get("/health", responses={200: {"model": schema.HealthAnswer}, 503: {"model": schema.HealthAnswer}})
async def health(request: Request) -> Response:
    """Does the server take requests? Needs no key."""
    state = state_of(request)
    status = "stopping" if state.draining else "ok"
    try:
        now = state.engine.load()
    except RuntimeError:
        status, now = "dead", Load(0, 0, 0, 0)
    told: dict[str, Any] = {"status": status, "running": now.running, "waiting": now.waiting}
    return json_response(told, 200 if status == "ok" else 503)


@router.get(
    "/metrics",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **schema.refusals(401, 403)},
    response_class=Response,
)
async def metrics(request: Request) -> Response:
    """Counters in Prometheus' text format."""
    text = await asyncio.to_thread(generate_latest, state_of(request).metrics.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
