"""Settings of a reward model's training."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from paretune.errors import InputError
from paretune.training.config import TrainConfig

Sources = Literal["pairs", "ratings", "both"]


@dataclass(frozen=True)
class RewardHeadConfig:
    """Shape of the head on the hidden state of an answer's last token.

    depth: hidden layers; 0 is a LayerNorm and a linear layer. width: of the hidden layers. dropout: on the input.
    """

    depth: int = 0
    width: int = 256
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.depth <= 16:
            raise InputError(f"must lie between 0 and 16, found {self.depth}", field="depth")
        if not 1 <= self.width <= 1 << 16:
            raise InputError(f"must lie between 1 and 65536, found {self.width}", field="width")
        if not 0 <= self.dropout < 1:
            raise InputError(f"must lie in [0, 1), found {self.dropout}", field="dropout")


@dataclass(frozen=True)
class RewardConfig(TrainConfig):
    """The shared settings, and what a reward model learns from. `batch_size` counts prompts, as everywhere.

    source: which supervision of the data is used: `pairs` (preferences), `ratings` (scores), or `both`.
    preference: the objective that the labels chosen and rejected are about.
    loss: of ratings: `mse` on standardised ratings, or `ordinal` (CORAL) over the distinct ratings, at most ten.
    rating_weight: weight of the ratings' loss beside the pairs'.
    margin: `ratings` asks of a pair's rewards a difference of `margin_scale` times that of its ratings, in their
        standard deviations, where both completions have one (Llama 2); `none` asks for none.
    center: coefficient of the squared sum of a pair's rewards, which keeps their mean near zero.
    pairs_from_ratings: prompts' completions whose ratings differ by more than `pair_margin` (in the ratings' unit) are
        pairs too; at most `max_pairs` of a prompt and objective, drawn by the seed (0: all).
    bootstrap: resamples behind the intervals of the validation.
    """

    lr: float = 1e-4
    lr_head: float = 1e-3
    batch_size: int = 16
    test: float = 0.0
    # of policies, whose pairs follow from whole profiles and whose scales are fitted where they are trained
    pairs: Literal["mean", "weights", "pareto", "best-random"] = field(default="mean", init=False)
    pair_weights: dict[str, float] = field(default_factory=dict, init=False)
    scale: Literal["quantile", "minmax", "zscore", "sigmoid", "fixed"] = field(default="quantile", init=False)
    source: Sources = "both"
    preference: str = "preference"
    loss: Literal["mse", "ordinal"] = "mse"
    rating_weight: float = 1.0
    margin: Literal["none", "ratings"] = "none"
    margin_scale: float = 1.0
    center: float = 0.0
    pairs_from_ratings: bool = False
    max_pairs: int = 16
    bootstrap: int = 1000
    head: RewardHeadConfig = field(default_factory=RewardHeadConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rating_weight", "margin_scale", "center", "max_pairs"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"must be 0 or more, found {getattr(self, name)}", field=name)
        if not 1 <= self.bootstrap <= 100_000:
            raise InputError(f"must lie between 1 and 100000, found {self.bootstrap}", field="bootstrap")
        if not self.preference.strip():
            raise InputError("must name an objective", field="preference")
        if self.pairs_from_ratings and self.source == "pairs":
            raise InputError("pairs_from_ratings needs ratings, and source=pairs leaves them out", field="source")

    def to_dict(self) -> dict[str, Any]:
        """JSON form, of what plays a part."""
        used = {each.name for each in fields(self) if each.init}
        return {key: value for key, value in super().to_dict().items() if key in used}
