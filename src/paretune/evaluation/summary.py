"""What each condition's answers amount to: distances, scores, lengths, echoes and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paretune.bootstrap import Bootstrap, Estimate, Floats
from paretune.evaluation.scoring import Scored, distances
from paretune.profile import Profile

RIVALS_AND_ORACLE = ("oracle", "shuffled", "mean", "ones", "none")


@dataclass(frozen=True)
class Answers:
    """Everything about one condition: scored answers, the seconds generation took, and the distances [n]."""

    scored: Scored
    seconds: float
    distance: Floats

    @property
    def profiles(self) -> list[Profile | None]:
        """What each answer was conditioned on."""
        return [generation.profile for generation in self.scored.generations]


def summarise(
    policy: Any, answers: Answers, targets: Floats, names: Sequence[str], bootstrap: Bootstrap
) -> dict[str, Any]:
    """The metrics of one condition as JSON; targets [n, m] of the scored objectives `names`."""
    scored = answers.scored
    words = [len(text.split()) for text in scored.texts]
    tokens = [generation.tokens for generation in scored.generations]
    gaps = np.abs(scored.values - targets)
    each = {name: bootstrap.mean(scored.values[:, column]).to_dict() for column, name in enumerate(names)}
    return {
        "distance": bootstrap.mean(answers.distance).to_dict(),
        "scores": each,
        "gaps": {name: bootstrap.mean(gaps[:, column]).to_dict() for column, name in enumerate(names)},
        "unscored_answers": {name: int(np.isnan(scored.values[:, column]).sum()) for column, name in enumerate(names)},
        "words": bootstrap.mean(words).to_dict(),
        "tokens": bootstrap.mean(tokens).to_dict(),
        "finished": bootstrap.mean([float(generation.finished) for generation in scored.generations]).to_dict(),
        "echoes": bootstrap.mean([float(policy.renderer.echoes(text)) for text in scored.texts]).to_dict(),
        "empty": int(sum(not text.strip() for text in scored.texts)),
        "cost": cost(answers.seconds, sum(tokens)),
    }


def cost(seconds: float, tokens: int) -> dict[str, float | None]:
    """Generation time: sensing, prefill and decoding of all answers."""
    return {"seconds": seconds, "tokens": float(tokens), "tokens_per_second": tokens / seconds if seconds > 0 else None}


def differences(answers: Mapping[str, Answers], bootstrap: Bootstrap) -> dict[str, Estimate]:
    """Paired differences of distance, other minus sensed: positive where sensed is closer to the target."""
    if "sensed" not in answers:
        return {}
    own = answers["sensed"].distance
    return {name: bootstrap.mean(answers[name].distance - own) for name in RIVALS_AND_ORACLE if name in answers}


def distances_of(scored: Scored, targets: Floats, seconds: float) -> Answers:
    """A condition's answers with their distances to targets [n, m]."""
    return Answers(scored, seconds, distances(scored.values, targets))
