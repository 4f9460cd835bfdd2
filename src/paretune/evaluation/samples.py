"""Sample prompts for the report: drawn by a hash of the prompt, never picked for how well they went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paretune.evaluation.conditions import clean
from paretune.evaluation.control import subset
from paretune.evaluation.result import Evaluated

SHOWN = ("none", "oracle")


def samples_of(each: Evaluated, count: int) -> list[dict[str, Any]]:
    """`count` prompts with their sensed and target profiles and their answers: natural, none and oracle.

    `target` is what answers are measured by, `wished` the same in terms of what is sensed (weights, for some policies).
    """
    conditions = [name for name in dict.fromkeys((each.natural, *SHOWN)) if name in each.answers]
    out = []
    for i in subset(each.test.prompts, count, 0):
        first = each.answers[conditions[0]].scored.generations[i] if conditions else None
        out.append(
            {
                "prompt": [{key: clean(text) for key, text in message.items()} for message in each.test.prompts[i]],
                "sensed": dict(first.sensed) if first is not None and first.sensed else None,
                "interval": _ends(first.interval) if first is not None else None,
                "target": dict(each.test.targets[i]),
                "wished": dict(each.wished[i]),
                "answers": [_answer(each, name, i) for name in conditions],
            }
        )
    return out


def _ends(interval: Mapping[str, Sequence[float]] | None) -> dict[str, list[float]] | None:
    """Low and high ends by objective, as JSON; None for a head whose intervals are not calibrated."""
    return {name: [float(end) for end in ends] for name, ends in interval.items()} if interval else None


def _answer(each: Evaluated, condition: str, i: int) -> dict[str, Any]:
    answers = each.answers[condition]
    row = zip(each.scored, answers.scored.values[i], strict=True)
    distance = float(answers.distance[i])
    return {
        "condition": condition,
        "text": answers.scored.texts[i],
        "finished": bool(answers.scored.generations[i].finished),
        "values": {objective.name: float(value) for objective, value in row if np.isfinite(value)},
        "distance": distance if np.isfinite(distance) else None,
    }
