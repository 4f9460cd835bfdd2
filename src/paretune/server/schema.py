"""The OpenAPI schema: what is answered, and this policy's own name and objectives in place of any text.

The models say what an answer looks like; answers are built as plain objects (`chat`, `completions`), and tests hold the
two together.
"""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field

from paretune import __version__
from paretune.server.requests import Body
from paretune.server.served import Served

REF = "#/components/schemas/{model}"


class ErrorFields(BaseModel):
    """What was found, and what to do."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """OpenAI's error object."""

    error: ErrorFields


class CachedTokens(BaseModel):
    """Tokens whose keys and values were at hand."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Guidance(BaseModel):
    """What was sensed from the prompt alone, its 80% intervals, and what guided the answer."""

    sensed: dict[str, float] | None
    interval: dict[str, tuple[float, float]] | None
    used: dict[str, float] | None
    weights: dict[str, float] | None
    obtained: list[dict[str, Any] | None] | None = None


class TokenLogprob(BaseModel):
    """A token and its natural log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenLogprob(TokenLogprob):
    """A token of an answer, with the likeliest in its place."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    """A log-probability a token."""

    content: list[ChosenLogprob]
    refusal: None


class ChatMessage(BaseModel):
    """An answer."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    """One of the `n` answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]


class ChatAnswer(BaseModel):
    """OpenAI's chat completion, with `paretune`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    paretune: Guidance


class CompletionLogprobs(BaseModel):
    """Log-probabilities in columns, one a token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One continuation."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class CompletionAnswer(BaseModel):
    """OpenAI's (older) completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage


class SensedProfile(BaseModel):
    """What was sensed from one prompt."""

    object: Literal["sensed"]
    index: int
    profile: dict[str, float]
    interval: dict[str, tuple[float, float]] | None


class SenseAnswer(BaseModel):
    """A profile a prompt."""

    object: Literal["list"]
    model: str
    data: list[SensedProfile]


class ModelAnswer(BaseModel):
    """OpenAI's model object."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsAnswer(BaseModel):
    """The one model."""

    object: Literal["list"]
    data: list[ModelAnswer]


class ObjectiveAnswer(BaseModel):
    """An objective: its reward, the better way, its phrases from very low to very high, its mean in training."""

    name: str
    direction: Literal["maximise", "minimise"]
    spec: str
    phrases: list[str]
    mean: float | None


class FrontPoint(BaseModel):
    """Mean normalised scores of one way of asking the policy."""

    name: str
    values: dict[str, float]
    on_front: bool


class FrontAnswer(BaseModel):
    """The points of the policy's evaluation."""

    objectives: list[str]
    points: list[FrontPoint]


class ObjectivesAnswer(BaseModel):
    """What the policy can be asked for."""

    object: Literal["list"]
    model: str
    method: str
    base: str
    senses: bool
    takes_profile: bool
    takes_weights: bool
    weights_rule: str | None
    data: list[ObjectiveAnswer]
    front: FrontAnswer | None


class HealthAnswer(BaseModel):
    """`ok`, `stopping`, or `dead`, with what the engine does now."""

    status: Literal["ok", "stopping", "dead"]
    running: int = Field(ge=0)
    waiting: int = Field(ge=0)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that a route declares."""
    return {status: {"model": ErrorAnswer} for status in statuses}


GUARDED = (400, 401, 403)
ASKED = (*GUARDED, 404, 408, 413, 415, 429, 500, 503)
"""What a route with a body may refuse with."""


def body_of(kind: type[Body]) -> dict[str, Any]:
    """A route's request body, which the route reads itself (`body.read_json`)."""
    schema = {"$ref": REF.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def install(app: FastAPI, served: Served, bodies: tuple[type[Body], ...]) -> None:
    """Make `/openapi.json` say what this server takes: the bodies, the model's name, the objectives, the key."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title="paretune", version=__version__, description=app.description, routes=app.routes)
            parts = schema.setdefault("components", {}).setdefault("schemas", {})
            for kind in bodies:
                described = kind.model_json_schema(ref_template=REF)
                parts |= described.pop("$defs", {})
                parts[kind.__name__] = _ours(described, served)
            if app.state.guard.keys:
                schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
                schema["security"] = [{"key": []}]
                schema["paths"]["/health"]["get"]["security"] = []
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _ours(described: dict[str, Any], served: Served) -> dict[str, Any]:
    """A body's schema with the names that this server knows."""
    fields = described["properties"]
    if "model" in fields:
        fields["model"] = {"type": "string", "enum": [served.name]}
    for name in ("profile", "weights"):
        if name in fields:
            values = {"type": "number", "minimum": 0, "maximum": 1}
            fields[name]["anyOf"][0] = {
                "type": "object",
                "properties": dict.fromkeys(served.names, values),
                "additionalProperties": False,
            }
    return described
