"""The verbs `sense` and `generate` as functions: a policy (or its folder) and prompts in, profiles or answers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, overload

from paretune.data.prompts import as_chats
from paretune.data.rows import Messages
from paretune.errors import check_whole
from paretune.policy.engine import Sampling
from paretune.policy.folder import load_policy
from paretune.policy.head import level_index
from paretune.policy.policy import Generation, Pins, Policy, Sensed, Weights, check_condition
from paretune.profile import Profile
from paretune.progress import NO_PROGRESS, Progress


def _loaded(policy: Policy | Path | str) -> Policy:
    return policy if isinstance(policy, Policy) else load_policy(policy)


@overload
def sense(
    policy: Policy | Path | str,
    prompts: Sequence[str | Messages],
    *,
    pins: Pins | None = ...,
    intervals: Literal[False] = ...,
    level: float = ...,
    progress: Progress = ...,
) -> list[Profile]: ...


@overload
def sense(
    policy: Policy | Path | str,
    prompts: Sequence[str | Messages],
    *,
    pins: Pins | None = ...,
    intervals: Literal[True],
    level: float = ...,
    progress: Progress = ...,
) -> list[Sensed]: ...


def sense(
    policy: Policy | Path | str,
    prompts: Sequence[str | Messages],
    *,
    pins: Pins | None = None,
    intervals: bool = False,
    level: float = 0.8,
    progress: Progress = NO_PROGRESS,
) -> list[Profile] | list[Sensed]:
    """The profile that fits each prompt (text or messages).

    Pinned objectives keep their pins and the others are sensed given them; pins are the same for all prompts or one
    mapping a prompt. With `intervals` each profile comes as a `Sensed` with the interval of each objective, which holds
    a share `level` of target profiles (None where the head's intervals were never calibrated).

    Raises `InputError` for a folder that is no policy, a policy without a head, an unknown or impossible pin.
    """
    chats = as_chats(prompts)  # before the model is loaded, as all that is cheap to tell
    level_index(level)
    found = _loaded(policy).predict(chats, pins, level=level, progress=progress)
    return found if intervals else [each.profile for each in found]


def generate(
    policy: Policy | Path | str,
    prompts: Sequence[str | Messages],
    *,
    condition: str | Mapping[str, float] | Sequence[Mapping[str, float] | None] | None = None,
    pins: Pins | None = None,
    weights: Weights | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    batch_size: int = 64,
    progress: Progress = NO_PROGRESS,
) -> list[Generation]:
    """Answers guided by a condition; see `Policy.generate`. Raises `InputError` for what the user can mend."""
    chats = as_chats(prompts)  # before the model is loaded, as all that is cheap to tell
    Sampling(max_new_tokens, temperature, top_p)
    check_whole(batch_size, "batch_size", least=1)
    if isinstance(condition, str):
        check_condition(condition)
    return _loaded(policy).generate(
        chats,
        condition=condition,
        pins=pins,
        weights=weights,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        batch_size=batch_size,
        progress=progress,
    )
