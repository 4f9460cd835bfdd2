"""From a body to what the engine is asked: defaults, the server's limits, and the policy's objectives."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paretune.data.formats import parse_row
from paretune.data.records import BadRow
from paretune.data.rows import Messages
from paretune.errors import InputError
from paretune.policy.weights import check_weights
from paretune.profile import Profile, check_profile
from paretune.server.errors import ApiError
from paretune.server.limits import ServerLimits
from paretune.server.request import Ask
from paretune.server.requests import ChatBody, Common, CompletionBody, Message
from paretune.server.served import Served

COMPLETION_TOKENS = 16
"""The length of a completion whose request names none: OpenAI's."""
GREEDY = 1e-6
"""A nucleus that holds the likeliest token alone: what `top_p` 0 means."""


@dataclass(frozen=True)
class Rules:
    """What bodies are held against. `temperature` is that of a request that names none. `queue`: requests that may wait
    in the engine, where each prompt is one."""

    served: Served
    limits: ServerLimits
    temperature: float = 1.0
    queue: int | None = None


def check_model(name: str, served: Served) -> None:
    """Raises `ApiError` 404 for another model than the one that is served."""
    if name != served.name:
        message = f"the model '{name:.100}' is not served here; the one that is: '{served.name}'"
        raise ApiError(404, message, param="model", code="model_not_found")


def conversation(messages: Sequence[Message], limits: ServerLimits) -> Messages:
    """Checked messages as the renderer takes them. Raises `ApiError` for what is no conversation."""
    if len(messages) > limits.messages:
        raise _beyond("messages", f"a conversation may have {limits.messages:,} messages, found {len(messages):,}")
    chat = [{"role": "system" if each.role == "developer" else each.role, "content": each.content} for each in messages]
    try:
        return parse_row({"prompt": chat}).prompt
    except BadRow as bad:
        param = "messages" + (bad.field or "").removeprefix("prompt")
        raise ApiError(400, f"'{param}': {bad}", param=param, code="invalid_value") from None


def pins_of(profile: Mapping[str, float] | None, served: Served) -> Profile:
    """Pins, checked against the objectives. Raises `ApiError`."""
    try:
        pins = check_profile(profile or {}, served.names, partial=True, what="profile")
    except InputError as error:
        raise ApiError(400, error.message, param="profile", code="invalid_value") from None
    if pins and not served.takes_profile:
        said = "takes preference weights" if served.rule is not None else "takes no profile"
        raise ApiError(400, f"a policy trained by '{served.method}' {said}, not pins", param="profile")
    return pins


def _weights_of(weights: Mapping[str, float] | None, served: Served) -> Profile | None:
    if weights is None:
        return None
    if served.rule is None:
        message = f"a policy trained by '{served.method}' takes no preference weights"
        raise ApiError(400, message, param="weights", code="invalid_value")
    try:
        return check_weights(weights, served.names)
    except InputError as error:
        raise ApiError(400, error.message, param="weights", code="invalid_value") from None


def chat_ask(body: ChatBody, rules: Rules) -> Ask:
    """A chat body as one ask."""
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs", code="invalid_value")
    wanted = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    param = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    pins, weights = pins_of(body.profile, rules.served), _weights_of(body.weights, rules.served)
    sense = rules.served.senses and body.sense is not False and weights is None
    if body.sense and not rules.served.senses:
        message = f"a policy trained by '{rules.served.method}' has no sensing head, so it cannot sense"
        raise ApiError(400, message, param="sense", code="invalid_value")
    if body.sense and weights is not None:
        raise ApiError(400, "weights stand in place of sensing; give one of the two", param="sense")
    return Ask(
        messages=conversation(body.messages, rules.limits),
        pins=pins,
        sense=sense,
        weights=weights,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        **_common(body, rules, 1, wanted, param),
    )


def completion_asks(body: CompletionBody, rules: Rules) -> list[Ask]:
    """A completion body as an ask a prompt."""
    if len(body.prompt) > rules.limits.prompts:
        raise _beyond("prompt", f"a request may have {rules.limits.prompts:,} prompts, found {len(body.prompt):,}")
    if rules.queue is not None and len(body.prompt) > rules.queue:  # it would be told to come back for ever
        message = f"a request may have {rules.queue:,} prompts, the length of this server's queue; found"
        raise _beyond("prompt", f"{message} {len(body.prompt):,}")
    for number, text in enumerate(body.prompt):
        if not text:
            raise ApiError(400, "the prompt is empty", param=f"prompt[{number}]", code="invalid_value")
    wanted = body.max_tokens if body.max_tokens is not None else COMPLETION_TOKENS
    common = _common(body, rules, len(body.prompt), wanted, "max_tokens")
    seed = common.pop("seed")
    return [
        Ask(text=text, sense=False, logprobs=body.logprobs, seed=_int64(seed + number), **common)
        for number, text in enumerate(body.prompt)
    ]


def _int64(value: int) -> int:
    """Wrapped into the 64 bits of a seed."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _common(body: Common, rules: Rules, prompts: int, wanted: int | None, param: str) -> dict[str, Any]:
    limits, n = rules.limits, body.n if body.n is not None else 1
    if n * prompts > limits.n:
        raise _beyond("n", f"a request may have {limits.n:,} answers, found {n * prompts:,}")
    if wanted is not None and wanted > limits.output_tokens:
        raise _beyond(param, f"an answer may have {limits.output_tokens:,} tokens, found {wanted:,}")
    top_p = body.top_p if body.top_p is not None else 1.0
    return {
        "n": n,
        "max_new_tokens": wanted if wanted is not None else min(limits.default_tokens, limits.output_tokens),
        "fit": wanted is None,
        "temperature": body.temperature if body.temperature is not None else rules.temperature,
        "top_p": max(top_p, GREEDY),
        "seed": body.seed if body.seed is not None else secrets.randbits(62),
        "stop": _stops(body.stop, limits),
        "deadline": limits.deadline,
    }


def _stops(stop: Sequence[str] | None, limits: ServerLimits) -> tuple[str, ...]:
    stops = tuple(stop or ())
    if len(stops) > limits.stops:
        raise _beyond("stop", f"a request may have {limits.stops} stop texts, found {len(stops)}")
    for number, text in enumerate(stops):
        if not text:
            raise ApiError(400, "a stop text must not be empty", param=f"stop[{number}]", code="invalid_value")
        if len(text) > limits.stop_chars:
            message = f"a stop text may have {limits.stop_chars} characters, found {len(text):,}"
            raise _beyond(f"stop[{number}]", message)
    return stops


def _beyond(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param, code="limit_exceeded")
