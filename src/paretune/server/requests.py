"""Bodies of requests: their fields as OpenAI names them, each with its bounds, and what is refused in words.

Fields that are not named here are ignored, as OpenAI does. Fields that ask for what this server cannot do
(`UNSUPPORTED`) are refused: an answer without the tool that was asked for would be a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from paretune.data.records import show
from paretune.server.errors import ApiError

INT64 = 1 << 63
MOST_TOKENS = 1 << 31
MOST_MESSAGES = 10_000
"""Messages that are looked at, whatever a server's own limit."""


def _wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{said}", {"said": message})


def _joined(content: Any) -> Any:
    """Content parts of type text as one text; other parts are refused."""
    if content is None:
        raise _wrong("a message needs its content as text (tool calls are not supported)")
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            found = f"a part of type {show(kind)}" if kind not in (None, "text") else show(part)
            raise _wrong(f"content is text, or a list of parts {{'type': 'text', 'text': ...}}; found {found}")
        texts.append(part["text"])
    return "".join(texts)


def _listed(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


def _texts(prompt: Any) -> Any:
    listed = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(listed, list) or not listed:
        raise _wrong("must be a text, or a list of texts")
    if any(isinstance(each, (int, list)) and not isinstance(each, bool) for each in listed):
        raise _wrong("arrays of tokens are not supported; give the text")
    if not all(isinstance(each, str) for each in listed):
        raise _wrong("must be a text, or a list of texts")
    return listed


_TEXT = {"type": "string"}
_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": _TEXT},
    "required": ["type", "text"],
}
Content = Annotated[
    str, BeforeValidator(_joined), WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _PART, "minItems": 1}]})
]
Stop = Annotated[
    list[str] | None,
    BeforeValidator(_listed),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT}, {"type": "null"}]}),
]
Texts = Annotated[
    list[str],
    BeforeValidator(_texts),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]}),
]
Values = dict[str, Annotated[float, Field(ge=0, le=1)]]


class Body(BaseModel):
    """A body: types by the letter, `"1"` is no number."""

    model_config = ConfigDict(strict=True)


class Message(Body):
    """A message of a conversation; `developer` is another word for `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class StreamOptions(Body):
    """How a stream ends."""

    include_usage: bool | None = None


class Common(Body):
    """What both completions take."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MOST_TOKENS)
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    stop: Stop = None
    seed: int | None = Field(None, ge=-INT64, lt=INT64)


class ChatBody(Common):
    """`POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    profile: Values | None = Field(None, description="Pins: objectives that keep this value; the others are sensed.")
    weights: Values | None = Field(None, description="Preference weights that sum to 1, in place of sensing.")
    sense: bool | None = Field(None, description="False: nothing is sensed; the pins alone guide the answer.")


class CompletionBody(Common):
    """`POST /v1/completions`: a text is continued as it stands, without template and profile."""

    prompt: Texts
    logprobs: int | None = Field(None, ge=0, le=5)


class SenseBody(Body):
    """`POST /v1/sense`: one conversation (`messages`), or texts (`input`)."""

    model: str | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=MOST_MESSAGES)
    input: Annotated[Texts | None, Field(default=None)] = None
    profile: Values | None = Field(None, description="Pins: the other objectives are sensed given them.")


Kind = TypeVar("Kind", bound=Body)


def _empty(value: Any) -> bool:
    return not value and not isinstance(value, bool)


def _text_only(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") == "text"


UNSUPPORTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tools": (_empty, "tools are not supported"),
    "functions": (_empty, "functions are not supported"),
    "tool_choice": (lambda value: value in ("none", "auto"), "tools are not supported"),
    "function_call": (lambda value: value in ("none", "auto"), "functions are not supported"),
    "response_format": (_text_only, "answers are text; JSON formats are not supported"),
    "modalities": (lambda value: value in ([], ["text"]), "answers are text; other modalities are not supported"),
    "audio": (_empty, "audio is not supported"),
    "logit_bias": (_empty, "logit_bias is not supported"),
    "presence_penalty": (lambda value: value == 0, "penalties are not supported; leave it out or give 0"),
    "frequency_penalty": (lambda value: value == 0, "penalties are not supported; leave it out or give 0"),
    "prediction": (_empty, "predicted outputs are not supported"),
    "web_search_options": (lambda value: False, "web search is not supported"),
    "echo": (lambda value: value is False, "echo is not supported"),
    "suffix": (lambda value: value == "", "a text after the completion is not supported"),
    "best_of": (lambda value: value == 1, "best_of is not supported; use n"),
}
"""Field -> (is its value as good as none?, why it is refused)."""


def read_body(kind: type[Kind], raw: Mapping[str, Any]) -> Kind:
    """A JSON object as a body of `kind`; raises `ApiError` 400 that names the field."""
    for name, (harmless, why) in UNSUPPORTED.items():
        if raw.get(name) is not None and not harmless(raw[name]):
            raise ApiError(400, why, param=name, code="unsupported_parameter")
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        param = _path(first["loc"])
        if first["type"] == "missing":
            raise ApiError(400, f"'{param}' is needed", param=param, code="missing_required_parameter") from None
        said = first["msg"][:1].lower() + first["msg"][1:]
        found = "" if first["type"] == "refused" else f", found {show(first['input'])}"
        raise ApiError(400, f"'{param}': {said}{found}", param=param, code="invalid_value") from None


def _path(places: tuple[int | str, ...]) -> str:
    """("messages", 0, "content") to messages[0].content."""
    path = ""
    for place in places:
        path += f"[{place}]" if isinstance(place, int) else f".{place:.80}" if path else f"{place:.80}"
    return path
