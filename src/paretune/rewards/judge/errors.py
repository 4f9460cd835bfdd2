"""What can go wrong with a request: what is tried again, what is given up, and what stops the run at once."""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Mapping
from typing import Any

from paretune.errors import InputError
from paretune.rewards.judge.prompt import clean
from paretune.rewards.judge.spec import JudgeSpec

MAX_RETRY_AFTER = 600.0
"""Seconds that an endpoint may make us wait; one that asks for more is told to the user instead."""

_AGAIN = {408, 409, 425, 429}
_MALFORMED = {400, 422}
_WHAT_TO_DO = {
    401: "set PARETUNE_JUDGE_API_KEY (or OPENAI_API_KEY) to a key that it accepts",
    402: "the account has no credit left",
    403: "the key may not use this model; choose another key or model",
    404: "check that the URL is the API's base (it mostly ends in /v1) and that URL/models lists the model",
}


class Failure(Exception):
    """One request that got no reply: whether to try again and when, and whether it was the request's own fault."""

    def __init__(self, message: str, *, again: bool, retry_after: float | None = None, malformed: bool = False) -> None:
        super().__init__(message)
        self.again, self.retry_after, self.malformed = again, retry_after, malformed


def failure_of(error: Exception, spec: JudgeSpec, key: str) -> Failure:
    """What the client's error means. Raises `InputError` where no other request would fare better."""
    import openai

    if isinstance(error, (TimeoutError, openai.APITimeoutError)):
        return Failure(f"no reply within {spec.timeout:g} s", again=True)
    if isinstance(error, openai.APIStatusError):
        return _status_failure(error.status_code, error.response.headers, error.response.text, spec, key)
    cause = error.__cause__ or error
    if isinstance(error, openai.APIConnectionError):
        return Failure(f"no connection ({scrub(cause, key)})", again=True)
    if isinstance(error, openai.OpenAIError):
        return Failure(scrub(error, key), again=False)
    raise error


def _status_failure(status: int, headers: Mapping[str, str], text: str, spec: JudgeSpec, key: str) -> Failure:
    said, code = _message(text)
    what = f"answered {status}" + (f" ({scrub(said, key)})" if said else "")
    fatal = _WHAT_TO_DO.get(status)
    if code == "insufficient_quota":  # sent as a 429, but no waiting helps
        fatal = _WHAT_TO_DO[402]
    if fatal:
        raise InputError(f"{name_of(spec)} {what}: {fatal}")
    again = status in _AGAIN or status >= 500
    retry_after = _retry_after(headers) if again else None
    if retry_after is not None and retry_after > MAX_RETRY_AFTER:
        raise InputError(f"{name_of(spec)} {what} and wants to be left alone for {retry_after:.0f} s: try again then")
    return Failure(what, again=again, retry_after=retry_after, malformed=status in _MALFORMED)


def name_of(spec: JudgeSpec) -> str:
    """The judge as errors name it."""
    return f"the judge '{spec.model}' at {spec.url}"


def scrub(said: object, key: str) -> str:
    """What others said, fit for an error: one short line, without the key."""
    return hide(" ".join(clean(str(said)).split()), key)[:200]


def hide(text: str, key: str) -> str:
    """The text without the key. What is shorter than any real key ("none", "EMPTY") is a word like others."""
    return text.replace(key, "***") if len(key) >= 8 else text


def _message(text: str) -> tuple[str, str]:
    """(message, code) of an error's body: OpenAI's form, or whatever it is."""
    try:
        body: Any = json.loads(text)
    except (ValueError, RecursionError):
        return text, ""
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = body["error"]
    if isinstance(body, dict):
        said = next((body[name] for name in ("message", "error", "detail") if body.get(name)), body)
        return (said if isinstance(said, str) else json.dumps(said)), str(body.get("code") or "")
    return text, ""


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait as the endpoint says: milliseconds, seconds, or a date (RFC 9110, 10.2.3)."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "")
        try:
            seconds = float(value) * unit
        except ValueError:
            seconds = _until(value) if unit == 1.0 else -1.0
        if seconds >= 0:  # also false for NaN
            return seconds
    return None


def _until(value: str) -> float:
    """Seconds until an HTTP date; -1 where it is none."""
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return -1.0
