"""What one request, one connection and all of them together may take: every bound of the API in one place."""

from __future__ import annotations

from dataclasses import dataclass, fields

from paretune.errors import InputError, check_number

_MIB = 1 << 20


@dataclass(frozen=True)
class ServerLimits:
    """Bounds on requests; beyond one of them a request is refused in words, and never computed in part.

    body_bytes: of a request's body, while it is read. messages: in a conversation. prompts: texts in one request to
    `/v1/completions` or `/v1/sense`. n: answers a request, over all its prompts. output_tokens: longest answer that can
    be asked for. default_tokens: longest answer to a conversation whose request names no length. stops: stop texts, of
    `stop_chars` characters at most. deadline: seconds after which an answer ends with what it has. body_seconds: for a
    body to arrive. header_seconds: for a request's head to arrive. idle_seconds: a connection is kept without a
    request. connections: open at a time. heartbeat: seconds of silence after which a stream tells that it lives.
    """

    body_bytes: int = 4 * _MIB
    messages: int = 1000
    prompts: int = 64
    n: int = 32
    output_tokens: int = 4096
    default_tokens: int = 1024
    stops: int = 4
    stop_chars: int = 256
    deadline: float = 600.0
    body_seconds: float = 30.0
    header_seconds: float = 20.0
    idle_seconds: float = 65.0
    connections: int = 2000
    heartbeat: float = 15.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            check_number(value, f"limit {each.name}")
            if value <= 0:
                raise InputError(f"limit {each.name} must be above 0, found {value}")
