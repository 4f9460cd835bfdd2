"""What a judge's spec says: MODEL@URL and its options, parsed and checked without asking anybody."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from paretune.errors import InputError, did_you_mean
from paretune.rewards.judge.rubric import check_rubric

Mode = Literal["schema", "json", "text"]
MODES: tuple[Mode, ...] = ("schema", "json", "text")
"""How the verdict is asked for, from the strictest to what every endpoint can do."""

FORM = "judge:MODEL@URL?rubric=NAME"
_SCALE = re.compile(r"(-?\d+(?:\.\d+)?)-(-?\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class JudgeSpec:
    """A judge: who is asked, by which rubric, how, and with what patience.

    `concurrency` is how many requests may be under way at the endpoint when one of ours starts, `rate` how many may
    start in any 60 seconds (None: no limit); both count the requests of every judge at this URL in the process.
    `timeout` and `backoff` are seconds: a request in all, and the wait before the first retry, which doubles each
    time. `temperature` None leaves it to the endpoint. `cache` is a folder, "off", or "" for the default. `price` is
    dollars per million prompt and completion tokens. After `stop_after` answers in a row that the endpoint failed to
    judge, the run stops.
    """

    model: str
    url: str
    rubric: str
    scale: tuple[float, float] = (1.0, 10.0)
    concurrency: int = 8
    rate: int | None = None
    timeout: float = 60.0
    retries: int = 5
    temperature: float | None = 0.0
    mode: Mode = "schema"
    samples: int = 1
    cache: str = ""
    backoff: float = 1.0
    price: tuple[float, float] | None = None
    stop_after: int = 10


def parse_spec(rest: str) -> JudgeSpec:
    """What follows `judge:`. The URL begins at the last `@http`, so that a model's name may hold anything else.

    Values may be percent-encoded. Raises `InputError` for a missing part, an unknown option or a bad value.
    """
    where, _, query = rest.partition("?")
    model, url = _split_target(where)
    options: dict[str, Any] = {}
    for item in filter(None, query.split("&")):
        name, equals, value = item.partition("=")
        if name not in OPTIONS:
            raise InputError(f"unknown option '{name}' of a judge.{did_you_mean(name, OPTIONS)}")
        if not equals or not value:
            raise InputError(f"the judge's option '{name}' needs a value: {name}=VALUE")
        if name in options:
            raise InputError(f"the judge's option '{name}' is given twice")
        value = unquote(value)
        if not value.isprintable():
            raise _bad(name, "printable text", repr(value))
        options[name] = OPTIONS[name](name, value)
    check_rubric(options.get("rubric", ""))
    return JudgeSpec(model, url, **options)


def _split_target(where: str) -> tuple[str, str]:
    """The model's name and the API's base URL, without a slash at its end."""
    at = max(where.rfind("@http://"), where.rfind("@https://"))
    if at < 1:
        raise InputError(f"a judge is written {FORM} (the URL is an API's base, http://localhost:8000/v1)")
    model, url = where[:at], where[at + 1 :].rstrip("/")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # a bad port is told when it is asked for
    except ValueError as error:
        raise InputError(f"the judge's URL is none: {error}") from None
    if not host:
        raise InputError(f"the judge's URL '{url}' names no host")
    if parts.username is not None or parts.password is not None:
        # the spec is stored beside the rows; and the message repeats nothing of it
        raise InputError("the judge's URL holds a user or password; give the key in PARETUNE_JUDGE_API_KEY instead")
    if url.endswith("/chat/completions"):
        raise InputError(f"the judge's URL is the API's base: '{url.removesuffix('/chat/completions')}'")
    return model, url


def _bad(name: str, wanted: str, value: str) -> InputError:
    return InputError(f"the judge's option '{name}' must be {wanted}, found '{value}'")


def _whole(low: int, high: int) -> Callable[[str, str], int]:
    def read(name: str, value: str) -> int:
        if not re.fullmatch(r"\d{1,9}", value) or not low <= int(value) <= high:
            raise _bad(name, f"a whole number from {low} to {high}", value)
        return int(value)

    return read


def _number(name: str, value: str, wanted: str, low: float, high: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        raise _bad(name, wanted, value)
    return number


def _seconds(low: float) -> Callable[[str, str], float]:
    return lambda name, value: _number(name, value, f"seconds, {low} to 86400", low, 86_400)


def _temperature(name: str, value: str) -> float | None:
    return None if value == "default" else _number(name, value, "a number from 0 to 2, or 'default'", 0, 2)


def _mode(name: str, value: str) -> Mode:
    for mode in MODES:
        if value == mode:
            return mode
    raise InputError(f"unknown mode '{value}' of a judge.{did_you_mean(value, MODES)}")


def _scale(name: str, value: str) -> tuple[float, float]:
    match = _SCALE.fullmatch(value)
    low, high = map(float, match.groups()) if match else (0.0, 0.0)
    if not low < high:
        raise _bad(name, "LOW-HIGH (1-10), the lower end first", value)
    return low, high


def _price(name: str, value: str) -> tuple[float, float]:
    wanted = "IN,OUT: dollars per million prompt and completion tokens"
    parts = value.split(",")
    if len(parts) != 2:
        raise _bad(name, wanted, value)
    prompt, completion = (_number(name, part, wanted, 0, 1e6) for part in parts)
    return prompt, completion


def _text(name: str, value: str) -> str:
    return value


OPTIONS: dict[str, Callable[[str, str], Any]] = {
    "rubric": _text,
    "scale": _scale,
    "concurrency": _whole(1, 1000),
    "rate": _whole(1, 1_000_000),
    "timeout": _seconds(0.001),
    "retries": _whole(0, 100),
    "temperature": _temperature,
    "mode": _mode,
    "samples": _whole(1, 100),
    "cache": _text,
    "backoff": _seconds(0),
    "price": _price,
    "stop_after": _whole(1, 1_000_000_000),
}
"""Option -> how its value is read."""

assert {"model", "url", *OPTIONS} == {field.name for field in fields(JudgeSpec)}
