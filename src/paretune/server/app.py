"""The application: the routes of OpenAI's API and ours, the page, and what guards them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from paretune.server import errors, page, schema
from paretune.server.asking import Rules
from paretune.server.guard import Gate, Guard
from paretune.server.limits import ServerLimits
from paretune.server.metrics import Metrics
from paretune.server.obtained import Obtained
from paretune.server.request import Engine
from paretune.server.requests import ChatBody, CompletionBody, SenseBody
from paretune.server.routes import router
from paretune.server.served import Served
from paretune.server.state import State

ABOUT = "Self-guided answers of one policy, by OpenAI's API with the extra fields `profile`, `weights` and `sense`."


def create_app(
    engine: Engine,
    served: Served,
    *,
    limits: ServerLimits | None = None,
    keys: Sequence[bytes] = (),
    origins: Sequence[str] = (),
    hosts: Sequence[str] | None = None,
    temperature: float = 1.0,
) -> FastAPI:
    """The ASGI application over an engine, which it closes at its own end.

    keys: digests of API keys (`guard.read_keys`), empty for none. origins: web origins whose pages may ask (CORS).
    hosts: names that a Host header may have, None for any. temperature: of requests that name none.
    """
    limits = limits or ServerLimits()
    guard = Guard(tuple(keys), tuple(hosts) if hosts is not None else None)
    metrics = Metrics(engine)
    rules = Rules(served, limits, temperature, engine.load().queue)
    state = State(engine, rules, metrics, Obtained.of(served.objectives))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        state.close()
        engine.close()

    app = FastAPI(
        title="paretune",
        description=ABOUT,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.server, app.state.limits, app.state.guard = state, limits, guard
    app.include_router(router)
    page.mount(app)
    errors.install(app)
    schema.install(app, served, (ChatBody, CompletionBody, SenseBody))
    app.add_middleware(Gate, guard=guard, metrics=metrics)
    if origins:  # outside the gate: a browser asks whether it may without a key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
    return app
