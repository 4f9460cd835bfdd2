"""Several policies side by side: on the objectives all of them score, over the prompts all of them were tested on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paretune.bootstrap import Bootstrap
from paretune.evaluation.result import Evaluated
from paretune.evaluation.scoring import normalised
from paretune.evaluation.summary import front_of


def compare(done: Mapping[str, Evaluated], bootstrap: Bootstrap) -> dict[str, Any]:
    """The policies' mean scores and their common front, each at `sensed` (`none` without a head), as JSON.

    An objective is shared when all policies score it by the same reward; all are put on the first policy's scales.
    """
    first = next(iter(done.values()))
    shared = [
        objective
        for objective in first.scored
        if all((objective.name, objective.spec) in [(o.name, o.spec) for o in each.scored] for each in done.values())
    ]
    places = [{pair.row.id: i for i, pair in enumerate(each.test.pairs)} for each in done.values()]
    common = [key for key in places[0] if all(key in own for own in places)]
    values, used = {}, {}
    for (name, each), own in zip(done.items(), places, strict=True):
        condition = "sensed" if "sensed" in each.answers else next(iter(each.answers))
        raw = each.answers[condition].scored.raw
        values[name] = normalised([raw[own[key]] for key in common], shared)
        used[name] = condition
    names = [objective.name for objective in shared]
    return {
        "objectives": names,
        "prompts": len(common),
        "same_prompts": all(len(own) == len(common) for own in places),
        "conditions": used,
        "front": front_of(values, names, bootstrap) if common else None,
    }
