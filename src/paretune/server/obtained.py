"""What an answer obtained: its text scored by those of the policy's objectives that need no model.

A policy's objectives carry the spec of the reward that measured them. Lexical ones cost milliseconds, so a server can
afford them on every answer, and so it can gates and ensembles made of lexical ones alone. Everything else is not scored
here: a model would slow the answers down, a `python:` spec would run code that the policy's folder names.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from paretune.data.rows import Messages
from paretune.errors import InputError
from paretune.profile import Objective
from paretune.rewards.base import Reward, check_scores
from paretune.rewards.ensemble import parse_ensemble
from paretune.rewards.gate import parse_gate
from paretune.rewards.spec import build_reward, find_kind, spec_of

log = logging.getLogger("paretune.server")

Scores = dict[str, dict[str, float] | None]
"""Objective -> its `value` in [0, 1] and raw `score`; None where it was not scored."""


def is_cheap(spec: str) -> bool:
    """Does the spec measure new texts by the text alone? False too for a spec that cannot be read.

    Not for a word list or an ensemble's file: the policy's folder names it, it might be anything on this machine, and
    scores would tell clients what stands in it.
    """
    try:
        kind, rest = find_kind(spec)
        if kind.prefix == "gate":
            return all(map(is_cheap, parse_gate(rest).specs))
        if kind.prefix == "ensemble":
            return not rest.endswith((".yaml", ".yml")) and all(map(is_cheap, parse_ensemble(rest).specs))
        kind.check(rest)
    except InputError:
        return False
    return kind.prefix == "lexical" and not rest.startswith("words:")


@dataclass(frozen=True)
class Obtained:
    """Scores texts by the rewards of some objectives; the others among `names` are not scored."""

    names: tuple[str, ...]
    rewards: tuple[tuple[Objective, Reward], ...]

    @classmethod
    def of(cls, objectives: Sequence[Objective]) -> Obtained:
        """The cheap ones among the objectives. One whose package is missing is told of in the log."""
        rewards = []
        for each in objectives:
            try:
                if each.scale is not None and is_cheap(spec_of(each)):
                    rewards.append((each, build_reward(each)))
            except Exception as error:  # a spec is text of the policy's folder: whatever it is, the server starts
                log.warning("answers are not scored by objective '%s': %s", each.name, error)
        return cls(tuple(each.name for each in objectives), tuple(rewards))

    def __call__(self, messages: Messages, text: str) -> Scores:
        """The scores of one answer to a conversation (`messages`, without the answer), of all objectives in order."""
        out: Scores = dict.fromkeys(self.names)
        for objective, reward in self.rewards:
            score = check_scores(reward([messages], [text], {}), 1, f"objective '{objective.name}'")[0]
            if score is not None:
                out[objective.name] = {"value": objective.normalise(score), "score": score}
        return out
