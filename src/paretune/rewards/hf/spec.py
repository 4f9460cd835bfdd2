"""What is written after `hf:`: MODEL[#label|#index|#*][?option=value&option=value]."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from paretune.errors import InputError, did_you_mean
from paretune.rewards.encoder import TOKENS_A_BATCH
from paretune.rewards.hf.inputs import INPUTS

DTYPES = ("float32", "bfloat16", "float16", "auto")
ALL = "*"
"""The label that stands for every output."""


@dataclass(frozen=True)
class HfSpec:
    """A parsed spec; "" and 0 are what was not said."""

    model: str
    label: str = ""
    input: str = ""
    dtype: str = ""
    device: str = ""
    tokens: int = TOKENS_A_BATCH
    max_length: int = 0

    @property
    def loaded(self) -> tuple[str, str, str]:
        """What tells one loaded model from another; the other options only say what it reads."""
        return self.model, self.dtype, self.device


def parse_spec(rest: str) -> HfSpec:
    """Read a spec; nothing is loaded. Raises `InputError` for an unknown option or value (the nearest is offered)."""
    where, question, tail = rest.rpartition("?")
    if not question or ("=" not in tail and "#" in where):  # a label may hold a question mark
        where, question, tail = rest, "", ""
    model, _, label = where.partition("#")
    if not model:
        raise InputError("hf: needs a model folder or hub id: hf:MODEL[#label]")
    options: dict[str, str] = {}
    for part in tail.split("&") if question else []:
        name, equals, value = part.partition("=")
        if name not in _READ:
            raise InputError(f"unknown option '{name}' in 'hf:{rest}'.{did_you_mean(name, _READ)}")
        if not equals or not value or name in options:
            raise InputError(f"an option is written once, name=value; found '{part}' in 'hf:{rest}'")
        options[name] = value
    read = {name: _READ[name](name, value) for name, value in options.items()}
    return HfSpec(model, label, **read)  # type: ignore[arg-type]


def written(rest: str, label: str) -> str:
    """The spec with its label replaced."""
    spec = parse_spec(rest)
    head = f"{spec.model}#"
    place = rest.index("#", len(spec.model)) + 1 + len(spec.label)
    return f"{head}{label}{rest[place:]}"


def _one_of(known: tuple[str, ...]) -> Callable[[str, str], str]:
    def read(name: str, value: str) -> str:
        if value not in known:
            raise InputError(f"unknown {name} '{value}' in an hf: spec.{did_you_mean(value, known)}")
        return value

    return read


def _device(name: str, value: str) -> str:
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", value):
        raise InputError(f"unknown device '{value}' in an hf: spec; known: cpu, cuda, cuda:0, cuda:1, ..., mps")
    return value


def _count(name: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise InputError(f"{name} is a number of tokens, at least 1; found '{value}' in an hf: spec")
    return int(value)


_READ: dict[str, Callable[[str, str], str | int]] = {
    "input": _one_of(INPUTS),
    "dtype": _one_of(DTYPES),
    "device": _device,
    "tokens": _count,
    "max_length": _count,
}
