"""The verbs `sense` and `generate` as functions: a policy (or its folder) and prompts in, profiles or answers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from paretune.data.rows import Messages
from paretune.policy.folder import load_policy
from paretune.policy.policy import Generation, Policy
from paretune.profile import Profile
from paretune.progress import NO_PROGRESS, Progress


def _loaded(policy: Policy | Path | str) -> Policy:
    return policy if isinstance(policy, Policy) else load_policy(policy)


def sense(
    policy: Policy | Path | str,
    prompts: Sequence[str | Messages],
    *,
    pins: Profile | None = None,
    progress: Progress = NO_PROGRESS,
) -> list[Profile]:
    """The profile that fits each prompt (text or messages); pinned objectives keep their pins.

    Raises `InputError` for a folder that is no policy, a policy without a head, an unknown or impossible pin.
    """
    return _loaded(policy).sense(prompts, pins, progress=progress)


def generate(
    policy: Policy | Path | str,
    prompts: Sequence[str | Messages],
    *,
    condition: str | Mapping[str, float] | Sequence[Mapping[str, float] | None] | None = None,
    pins: Mapping[str, float] | Sequence[Mapping[str, float]] | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    batch_size: int = 64,
    progress: Progress = NO_PROGRESS,
) -> list[Generation]:
    """Answers guided by a condition; see `Policy.generate`. Raises `InputError` for what the user can mend."""
    return _loaded(policy).generate(
        prompts,
        condition=condition,
        pins=pins,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        batch_size=batch_size,
        progress=progress,
    )
