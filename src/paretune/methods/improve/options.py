"""The settings of `improve`, checked."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, get_args

from paretune.errors import InputError, check_number, check_whole, did_you_mean
from paretune.methods.improve.keep import Keep
from paretune.policy.engine import Sampling

FEWEST = 4
"""Samples a prompt: what is sensed, raised and frontier profiles all have a place among them."""
DATA_SETTINGS = (
    *("validation", "test", "near_duplicates", "scale", "pairs", "pair_weights", "pair_margin", "targets", "top_k"),
)
"""Training settings that say what the data is to a policy, which rounds go on with."""


@dataclass(frozen=True)
class ImproveOptions:
    """What is done in a round, and how many there are.

    rounds, patience: at most so many; so many in a row without a gain end them.
    n: samples a prompt. prompts_per_round: so many training prompts, drawn anew each round (`None`: all).
    keep: which completions a round trains on (see `paretune.methods.improve.keep`).
    originals: the share of rows in a round's training that are the data's own.
    delta: by how much one objective is asked above what is sensed.
    settings: `key=value` texts of the method's training, in place of those the policy was trained with.
    max_new_tokens, temperature, top_p: of the samples; validation is greedy.
    validation_prompts: so many prompts of the validation part decide whether a round is kept.
    """

    rounds: int = 2
    n: int = 4
    prompts_per_round: int | None = None
    keep: Keep = "pareto"
    originals: float = 0.5
    delta: float = 0.2
    patience: int = 1
    validation_prompts: int = 128
    settings: tuple[str, ...] = ()
    max_new_tokens: int = 128
    temperature: float = 0.8
    top_p: float = 0.95
    seed: int = 0
    batch_size: int = 32

    def __post_init__(self) -> None:
        for name in ("rounds", "patience", "validation_prompts", "batch_size"):
            check_whole(getattr(self, name), name, least=1)
        check_whole(self.n, "n", least=FEWEST)
        check_whole(self.seed, "seed")
        if self.prompts_per_round is not None:
            check_whole(self.prompts_per_round, "prompts_per_round", least=1)
        if self.keep not in get_args(Keep):
            raise InputError(f"unknown rule '{self.keep}'.{did_you_mean(str(self.keep), get_args(Keep))}", field="keep")
        check_number(self.originals, "originals")
        if not 0 <= self.originals < 1:
            raise InputError(f"originals is a share in [0, 1), found {self.originals}")
        check_number(self.delta, "delta")
        if not 0 <= self.delta <= 1:
            raise InputError(f"delta must lie in [0, 1], found {self.delta}")
        Sampling(self.max_new_tokens, self.temperature, self.top_p)
        if not self.temperature:
            raise InputError("temperature must be above 0: the samples of a prompt are to differ")
        for setting in self.settings:
            key = setting.partition("=")[0].strip()
            if key in DATA_SETTINGS:
                raise InputError(
                    f"'{key}' is a setting of the data, which stays as it was when the policy was trained",
                    field="settings",
                )

    def to_dict(self) -> dict[str, Any]:
        """JSON form, of all that plays a part in what comes out."""
        return asdict(self) | {"settings": list(self.settings)}
