"""Engines on small policies, closed when the test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from paretune.policy import Policy
from paretune.server.engine import BatchEngine, EngineLimits
from server.engine.listening import make


@pytest.fixture
def engine_of() -> Iterator[Callable[..., BatchEngine]]:
    """Builds engines, and closes them at the end."""
    made: list[BatchEngine] = []

    def build(policy: Policy, **limits: Any) -> BatchEngine:
        made.append(BatchEngine(policy, EngineLimits(**limits)))
        return made[-1]

    yield build
    for engine in made:
        engine.close()


@pytest.fixture(scope="session")
def policy_of() -> Callable[..., Policy]:
    """The session's policy on a tiny model: nothing changes it."""
    return cache(make)
