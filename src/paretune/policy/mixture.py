"""Multi-objective decoding: the next token drawn from a mix of several models' distributions.

    p(y_t | x, y_<t) is proportional to prod_i p_i(y_t | x, y_<t) ^ w_i          w_i >= 0, summing to 1

(Shi et al., "Decoding-Time Language Model Alignment with Multiple Objectives", NeurIPS 2024, for policies tuned under a
reverse KL penalty.) Every model reads the same tokens on a KV cache of its own: one pass of each a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from paretune.policy.backbone import project

if TYPE_CHECKING:
    from paretune.policy.engine import Prefilled


@dataclass(frozen=True)
class Voice:
    """One of the models that answer together: its rows, its weight, and what switches it on before it computes."""

    state: Prefilled
    weight: float = 1.0
    switch: Callable[[], None] | None = None

    def enter(self) -> None:
        """Make the model compute as this voice."""
        if self.switch is not None:
            self.switch()


def mixed_logits(causal: Any, voices: Sequence[Voice]) -> Tensor:
    """[B, V]: logits of the mixed distribution.

    The sum of weighted logits: each model's normaliser is the same for all tokens, and goes with the mix's own. The LM
    head is the base model's, which no adapter touches.
    """
    logits = [project(causal, voice.state.last_BH) for voice in voices]
    if len(voices) == 1:
        return logits[0]
    total_BV = logits[0] * voices[0].weight
    for each_BV, voice in zip(logits[1:], voices[1:], strict=True):
        total_BV = total_BV + each_BV * voice.weight
    return total_BV
