"""A policy and a reward small enough to see through: an answer is text that spells its own scores.

Prompts are "topic <k>"; the right profile of each is drawn from its number. The policy obeys the profile it is given,
or ignores it; the reward reads the values from the answer's text.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from paretune.policy.policy import Generation
from paretune.profile import Objective, Profile, Scale

NAMES = ("warm", "short")
SPECS = ("python:evaluation.fakes:warm", "python:evaluation.fakes:short")
SPLIT = {"seed": 0, "validation": 0.1, "test": 0.5}


def right_profile(prompt: list[dict[str, str]]) -> Profile:
    """What a prompt deserves: two numbers drawn from its text."""
    draw = random.Random(prompt[-1]["content"])
    return {name: round(draw.random(), 2) for name in NAMES}


def spelled(values: dict[str, float], tail: str = "") -> str:
    """An answer that scores exactly `values`."""
    return " ".join(f"{name}={value:.3f}" for name, value in values.items()) + tail


def warm(completions: Sequence[str], **_: Any) -> list[float | None]:
    """A reward: the value of `warm` that the text spells, None where there is none."""
    return [_read(text, "warm") for text in completions]


def short(completions: Sequence[str], **_: Any) -> list[float | None]:
    """Likewise for `short`."""
    return [_read(text, "short") for text in completions]


def _read(text: str, name: str) -> float | None:
    found = re.findall(rf"{name}=([\d.]+)", text)
    return float(found[-1]) if found else None


def objectives(
    specs: Sequence[str] = SPECS,
) -> list[Objective]:
    """The two objectives on the identity scale."""
    return [
        Objective(name, spec, scale=Scale("fixed"), scale_kind="fixed") for name, spec in zip(NAMES, specs, strict=True)
    ]


@dataclass
class FakePolicy:
    """Has what evaluation asks of a policy. `answer` maps (prompt, profile) to text."""

    answer: Callable[[list[dict[str, str]], Profile | None], str]
    objectives: list[Objective] = field(default_factory=objectives)
    has_head: bool = True
    method: str = "fake"
    base: str = "tiny<base>"
    metadata: dict[str, Any] = field(default_factory=dict)
    sensing_error: float = 0.05
    calibrated: bool = True
    takes_weights: bool = False
    takes_profile: bool = False
    models_at_inference: int = 1
    peft: Any = None
    calls: list[Any] = field(default_factory=list)

    renderer = SimpleNamespace(
        echoes=lambda text: "ECHO" in text,
        profile_text=lambda profile: json.dumps(profile, sort_keys=True),
    )
    mean_profile: ClassVar[Profile] = {"warm": 0.5, "short": 0.5}

    def sense(self, prompts: Any, pins: Profile | None = None, **_: Any) -> list[Profile]:
        out = []
        for prompt in prompts:
            draw = random.Random("noise" + prompt[-1]["content"])
            own = {
                name: min(1.0, max(0.0, value + draw.gauss(0, self.sensing_error)))
                for name, value in right_profile(prompt).items()
            }
            out.append(own | (pins or {}))
        return out

    def predict(self, prompts: Any, pins: Profile | None = None, *, level: float = 0.8, **_: Any) -> list[Any]:
        """As sensed, with intervals of a width by which 80% of the sensing errors are covered."""
        width = 1.2816 * self.sensing_error
        return [
            SimpleNamespace(
                profile=own,
                interval={name: (value - width, value + width) for name, value in own.items()}
                if self.calibrated
                else None,
            )
            for own in self.sense(prompts, pins)
        ]

    def generate(
        self, prompts: Any, *, condition: Any, pins: Any = None, weights: Any = None, temperature: float = 0.0, **_: Any
    ) -> Any:
        assert temperature == 0 and (weights is None or condition is None)
        if weights is not None:
            assert self.takes_weights and len(weights) == len(prompts)
        adapted = self.peft is None or self.peft.on
        kind = condition if isinstance(condition, str) else "weights" if weights is not None else "profiles"
        self.calls.append(kind if adapted else "base")
        sensed = self.sense(prompts) if self.has_head else [None] * len(prompts)
        used: list[Profile | None] = (
            {
                "sensed": sensed,
                "mean": [self.mean_profile] * len(prompts),
                "ones": [dict.fromkeys(NAMES, 1.0)] * len(prompts),
                "none": [None] * len(prompts),
            }[condition]
            if isinstance(condition, str)
            else list(weights if weights is not None else condition)
        )
        each = [pins] * len(prompts) if isinstance(pins, dict) or not pins else pins
        used = [{**own, **more} if more and own is not None else own for own, more in zip(used, each, strict=True)]
        answer = self.answer if adapted else self.peft.base
        texts = [answer(prompt, own) for prompt, own in zip(prompts, used, strict=True)]
        return [
            Generation(text, own, sense, len(text.split()), True)
            for text, own, sense in zip(texts, used, sensed, strict=True)
        ]

    def features(self, prompts: Any, **_: Any) -> np.ndarray:
        """The right profile, linearly mixed, with some noise: what a probe can find."""
        rows = []
        for prompt in prompts:
            own, draw = right_profile(prompt), random.Random("feature" + prompt[-1]["content"])
            rows.append([own["warm"] + own["short"], own["warm"] - own["short"], draw.random(), draw.random()])
        return np.array(rows, dtype=np.float32)

    def loglik(self, prompts: Any, texts: Sequence[str], profiles: Any, **_: Any) -> list[float]:
        """A text is likelier the nearer its values are to the profile."""
        scores = [{name: _read(text, name) for name in NAMES} for text in texts]
        return [
            -sum(abs(own[name] - (profile or {}).get(name, own[name])) for name in NAMES)
            for own, profile in zip(scores, profiles, strict=True)
        ]


class Adapter:
    """An adapter that can be switched off: then the base model answers `base`."""

    def __init__(self, base: Callable[[list[dict[str, str]], Profile | None], str]) -> None:
        self.base, self.on, self.peft_config = base, True, {"default": None}

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        self.on = False
        try:
            yield
        finally:
            self.on = True


def obeys(prompt: list[dict[str, str]], profile: Profile | None) -> str:
    """Exactly what the profile says; the middle without one."""
    return spelled(profile or dict.fromkeys(NAMES, 0.5))


def ignores(prompt: list[dict[str, str]], profile: Profile | None) -> str:
    """The same answer whatever the profile."""
    return spelled(dict.fromkeys(NAMES, 0.5))


def write_data(path: Path, rows: int = 60, **extra: Any) -> Path:
    """Rows whose chosen completion scores the right profile and whose other one is far from it."""
    with path.open("w", encoding="utf-8") as file:
        for k in range(rows):
            prompt = f"topic {k}"
            right = right_profile([{"role": "user", "content": prompt}])
            wrong = {name: 1 - value if abs(value - 0.5) > 0.1 else 1.0 for name, value in right.items()}
            completions = [{"text": spelled(values), "scores": dict(values)} for values in (right, wrong)]
            file.write(json.dumps({"prompt": prompt, "completions": completions, "wanted": right, **extra}) + "\n")
    return path


def unloaded() -> tuple[Any, Any]:
    """A renderer and a model's config under which prompts of any length fit."""
    renderer = SimpleNamespace(
        prefix=lambda prompt: [], suffix=lambda prompt, profile: [], completion=lambda text: [], profile_text=str
    )
    return renderer, SimpleNamespace(get_text_config=lambda: SimpleNamespace(max_position_embeddings=2**20))


def policy_folder(path: Path, policy: FakePolicy | None = None) -> Path:
    """A folder that looks like a policy's (the loader is replaced in these tests)."""
    path.mkdir(parents=True)
    described: dict[str, Any] = {"objectives": [each.to_dict() for each in policy.objectives]} if policy else {}
    (path / "policy.json").write_text(json.dumps(described | (policy.metadata if policy else {})))
    return path
