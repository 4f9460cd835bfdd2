"""Sample prompts for the report: drawn by a hash of the prompt, never picked for how well they went."""

from __future__ import annotations

from typing import Any

import numpy as np

from paretune.evaluation.conditions import clean
from paretune.evaluation.control import subset
from paretune.evaluation.result import Evaluated

SHOWN = ("sensed", "none", "oracle")


def samples_of(each: Evaluated, count: int) -> list[dict[str, Any]]:
    """`count` prompts with their sensed and target profiles and their answers under sensed, none and oracle."""
    conditions = [name for name in SHOWN if name in each.answers]
    out = []
    for i in subset(each.test.prompts, count, 0):
        first = each.answers[conditions[0]].scored.generations[i] if conditions else None
        out.append(
            {
                "prompt": [{key: clean(text) for key, text in message.items()} for message in each.test.prompts[i]],
                "sensed": dict(first.sensed) if first is not None and first.sensed else None,
                "target": dict(each.test.targets[i]),
                "answers": [_answer(each, name, i) for name in conditions],
            }
        )
    return out


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
