"""The sensing head: reads the prompt's hidden state and predicts the preference profile, given pins and with intervals.

The default architecture is the paper's (Wang et al., "Self-Guided Alignment", ACL 2026): dropout, three hidden layers
of width 1024 with ReLU, a linear layer to the m objectives and a sigmoid. `HeadConfig` tells what goes beyond it; what
the outputs mean is in `head_kinds`, the probit-space mathematics in `belief`. The head is float32 whatever the backbone
is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from paretune.errors import InputError, check_number, check_whole, did_you_mean
from paretune.policy.belief import Belief, conformal_quantile, probit, residual_covariance, whitened
from paretune.policy.head_kinds import KINDS, Kind, Simplex, grouped, head_kind, mean_target

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Levels of intervals whose conformal quantiles are saved with a head."""
EVERYTHING = 1e4
"""The width, in standard deviations, of an interval that is the whole scale."""
SIZES = {"width": (1, 65_536), "depth": (0, 100), "bins": (2, 1_000)}
"""Least and most; a head beyond is a slip of the pen."""
FITTED = ("residual_cov", "conformal", "calibrated")
"""Buffers that heads saved before they existed do not have."""


@dataclass(frozen=True)
class HeadConfig:
    """Shape of the head; the defaults are the paper's.

    kind: what the outputs mean: `regression`, `binned` or `gaussian`; or `simplex`, which senses weights (see
        `paretune.policy.head_kinds`).
    width, depth: of the hidden layers; depth 0 is a linear head.
    dropout, hidden_dropout: on the input, and after every hidden layer.
    input_norm: a LayerNorm before the first layer.
    standardise_input: every feature is standardised by saved statistics of the training prompts.
    skip: a linear layer beside the hidden ones; the two are mixed by saved weights, fitted on held-out predictions.
    bins: how many bins a `binned` head has.
    readout, layer: what it reads: the hidden state of the prompt's `last` token, or the `mean` over the tokens of the
        last user message; after the last decoder layer and the final norm (1), or after that fraction of the layers.
    """

    kind: Kind = "regression"
    width: int = 1024
    depth: int = 3
    dropout: float = 0.1
    hidden_dropout: float = 0.0
    input_norm: bool = False
    standardise_input: bool = False
    skip: bool = False
    bins: int = 11
    readout: Literal["last", "mean"] = "last"
    layer: float = 1.0

    def __post_init__(self) -> None:
        for name, (least, most) in SIZES.items():
            check_whole(getattr(self, name), f"head: {name}", least=least)
            if getattr(self, name) > most:
                raise InputError(f"head: {name} must be at most {most}, found {getattr(self, name)}")
        for name in ("dropout", "hidden_dropout", "layer"):
            check_number(getattr(self, name), f"head: {name}")
        for name in ("input_norm", "standardise_input", "skip"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"head: {name} must be true or false, found {getattr(self, name)!r:.100}")
        kinds = (*KINDS, "simplex")
        if self.kind not in kinds:
            raise InputError(
                f"head: kind must be one of {', '.join(kinds)}, not '{self.kind}'.{did_you_mean(str(self.kind), kinds)}"
            )
        if not 0 <= self.dropout < 1 or not 0 <= self.hidden_dropout < 1:
            raise InputError("head: dropout and hidden_dropout must lie in [0, 1)")
        if self.readout not in ("last", "mean"):
            raise InputError(f"head: readout must be last or mean, not '{self.readout}'")
        if not 0 < self.layer <= 1:
            raise InputError(f"head: layer is a fraction of the decoder's layers in (0, 1], found {self.layer}")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> HeadConfig:
        """Read the JSON form back; unknown keys are errors, and keys that older versions did not know may miss."""
        if not isinstance(data, Mapping):
            raise InputError(f"head: must be an object of settings, found {data!r:.100}")
        known = set(cls.__dataclass_fields__)
        for key in data:
            if key not in known:
                raise InputError(f"head: unknown key '{key}'.{did_you_mean(key, known)}")
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    def layer_of(self, layers: int) -> int | None:
        """The decoder layer, of `layers`, after which the head reads; `None` is the last, after the final norm."""
        at = max(1, round(self.layer * layers))
        return at if at < layers else None


@dataclass(frozen=True)
class Prediction:
    """The sensed profile [B, M] and its interval's ends [B, M], which are None for a head that is not calibrated."""

    profile_BM: Tensor
    low_BM: Tensor | None
    high_BM: Tensor | None


class SensingHead(nn.Module):
    """Hidden states [B, H] of the read-out to raw outputs [B, P], and what they mean.

    Saved with the weights: `target_mean` and `target_std` [M], the training targets' statistics (the loss is measured
    in standard deviations when targets are standardised; the mean is the condition `mean`); `input_mean` and
    `input_std` [H] where inputs are standardised; `base` [P] and `mix` [2, P] where there is a skip path, whose output
    is base + mix[0] * linear + mix[1] * hidden layers; and what `calibrate` fits on held-out prompts: `residual_cov`
    [M, M], the table `conformal` [levels, M], and the flag `calibrated`.
    """

    target_mean: Tensor
    target_std: Tensor
    input_mean: Tensor
    input_std: Tensor
    base: Tensor
    mix: Tensor
    residual_cov: Tensor
    conformal: Tensor
    calibrated: Tensor

    def __init__(self, hidden_size: int, objectives: int, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.kind = head_kind(config.kind, objectives, config.bins)
        outputs = self.kind.outputs
        layers: list[nn.Module] = [nn.LayerNorm(hidden_size)] if config.input_norm else []
        layers.append(nn.Dropout(config.dropout))
        width = hidden_size
        for _ in range(config.depth):
            layers += [nn.Linear(width, config.width), nn.ReLU()]
            layers += [nn.Dropout(config.hidden_dropout)] if config.hidden_dropout else []
            width = config.width
        layers.append(nn.Linear(width, outputs))
        self.layers = nn.Sequential(*layers)
        self.linear = nn.Linear(hidden_size, outputs) if config.skip else None
        self.register_buffer("target_mean", torch.full((objectives,), 0.5))
        self.register_buffer("target_std", torch.ones(objectives))
        if config.standardise_input:
            self.register_buffer("input_mean", torch.zeros(hidden_size))
            self.register_buffer("input_std", torch.ones(hidden_size))
        if config.skip:
            self.register_buffer("base", torch.zeros(outputs))
            self.register_buffer("mix", torch.full((2, outputs), 0.5))
        self.register_buffer("residual_cov", torch.eye(objectives))
        self.register_buffer("conformal", torch.full((len(LEVELS), objectives), EVERYTHING))
        self.register_buffer("calibrated", torch.tensor(False))

    @property
    def objectives(self) -> int:
        """M, how many objectives it senses."""
        return self.kind.objectives

    def inputs(self, hidden_BH: Tensor) -> Tensor:
        """Hidden states in the head's own precision, standardised where the config says so."""
        hidden_BH = hidden_BH.to(self.target_mean.dtype)
        return (hidden_BH - self.input_mean) / self.input_std if self.config.standardise_input else hidden_BH

    def forward(self, hidden_BH: Tensor) -> Tensor:
        """Raw outputs [B, P]."""
        input_BH = self.inputs(hidden_BH)
        deep_BP: Tensor = self.layers(input_BH)
        if self.linear is None:
            return deep_BP
        mixed_BP: Tensor = self.base + self.mix[0] * self.linear(input_BH) + self.mix[1] * deep_BP
        return mixed_BP

    def profile(self, raw_BP: Tensor) -> Tensor:
        """The sensed profile [B, M] in [0, 1]."""
        return self.kind.profile(raw_BP, self.residual_cov)

    def loss(self, raw_BP: Tensor, targets: Tensor, *, standardise: bool) -> Tensor:
        """The kind's loss, averaged over the present targets, of [B, M] or [B, G, M] (NaN marks a missing one).

        For `regression` it is the paper's mean squared error when `standardise` is off and in units of the targets'
        standard deviation when it is on; the other kinds' losses do not depend on it. Times `present(targets)`, it adds
        up over the parts of a batch.
        """
        targets_BGM = grouped(targets).to(raw_BP.dtype)
        scale_M = self.target_std if standardise else torch.ones_like(self.target_std)
        return self.kind.total(raw_BP, targets_BGM, scale_M) / self.present(targets).clamp_min(1)

    @staticmethod
    def present(targets: Tensor) -> Tensor:
        """How many objectives of how many prompts have a target; the denominator of `loss`."""
        return (~torch.isnan(grouped(targets))).any(dim=1).sum()

    def belief(self, raw_BP: Tensor) -> Belief:
        """Mean [B, M] and covariance [B, M, M] of the profile in probit space.

        The covariance is what the kind states for the prompt, put right by the residuals of held-out prompts (see
        `paretune.policy.belief.measured`); the mean of Phi(z) is the sensed profile.
        """
        return self.kind.belief(raw_BP, self.residual_cov)

    def predict(self, raw_BP: Tensor, pins_BM: Tensor | None = None, *, level: float = 0.8) -> Prediction:
        """The profile, sensed given pins [B, M] where there are any (NaN is free), with its interval.

        Pinned objectives have their pin as value and as both ends. Intervals are marginal, one objective at a time:
        Phi(mu -+ q sigma) with q the conformal quantile for `level`, so that on new prompts like the held-out ones a
        share `level` of the target profiles lies inside (where a prompt has several good completions, its target is
        their mean). Given pins, mu and sigma are the conditional ones and q stays.

        A simplex head has no intervals; given pins its other weights keep their proportions and fill what is left.
        """
        at = level_index(level)
        if isinstance(self.kind, Simplex):
            weights_BM = self.profile(raw_BP)
            return Prediction(
                self.kind.pinned(weights_BM, pins_BM.to(weights_BM)) if pins_BM is not None else weights_BM, None, None
            )
        belief, profile_BM = self.belief(raw_BP), self.profile(raw_BP)
        if pins_BM is not None:
            pins_BM = pins_BM.to(profile_BM)
            pinned_BM = ~torch.isnan(pins_BM)
            belief = belief.given(pins_BM)
            # a row without pins is exactly what the network says
            profile_BM = torch.where(pinned_BM.any(-1, keepdim=True), belief.profile(), profile_BM)
            profile_BM = torch.where(pinned_BM, pins_BM, profile_BM)
        if not bool(self.calibrated):
            return Prediction(profile_BM, None, None)
        low_BM, high_BM = belief.interval(self.conformal[at])
        # the profile is a mean and the interval is about a median: a skew belief's mean may lie beyond a narrow one
        low_BM, high_BM = torch.minimum(low_BM, profile_BM), torch.maximum(high_BM, profile_BM)
        if pins_BM is not None:
            low_BM, high_BM = (torch.where(pinned_BM, pins_BM, end) for end in (low_BM, high_BM))
        return Prediction(profile_BM, low_BM, high_BM)

    @torch.no_grad()
    def set_statistics(self, mean_M: Tensor, std_M: Tensor, *, start_at_mean: bool) -> None:
        """Store the targets' mean and standard deviation; optionally let the untrained head predict the mean."""
        self.target_mean.copy_(mean_M)
        self.target_std.copy_(std_M.clamp_min(0.02))
        if start_at_mean:
            self.start_at(self.kind.start(self.target_mean, self.target_std))

    @torch.no_grad()
    def start_at(self, base_P: Tensor) -> None:
        """Let the head say nearly `base` whatever the prompt: last layers are made small."""
        deep = self.layers[-1]
        assert isinstance(deep, nn.Linear)
        deep.weight.mul_(0.1)
        if self.linear is None:
            deep.bias.copy_(base_P)
            return
        self.base.copy_(base_P)
        deep.bias.zero_()
        self.linear.weight.mul_(0.1)
        self.linear.bias.zero_()

    @torch.no_grad()
    def set_input(self, features_NH: Tensor) -> None:
        """Take the statistics by which inputs are standardised from features [N, H]; nothing where they are not."""
        if not self.config.standardise_input:
            return
        features_NH = features_NH.to(self.input_mean.dtype)
        std_H = features_NH.std(0, correction=0)
        self.input_mean.copy_(features_NH.mean(0))
        # a feature that (nearly) never changes says nothing: it is left small rather than blown up
        self.input_std.copy_(torch.where(std_H > 1e-6, std_H, 1.0))

    @torch.no_grad()
    def calibrate(self, residual_raw_NP: Tensor, score_raw_NP: Tensor, residual: Tensor, score: Tensor) -> None:
        """Fit `residual_cov` and `conformal` on raw outputs for prompts the network did not train on.

        `residual_raw` with targets `residual` gives the covariance, `score_raw` with `score` the quantiles. Targets are
        [N, M] or [N, G, M]; what is missing is left out, and an objective with too few gets the whole scale as its
        interval. A simplex head has none to calibrate.
        """
        self.residual_cov.copy_(torch.eye(self.objectives))
        if isinstance(self.kind, Simplex):
            self.calibrated.fill_(False)
            return
        z_NM = probit(mean_target(residual))
        factor_NMM = self.kind.factor(residual_raw_NP)
        for _ in range(8):  # a belief's mean depends (weakly) on its variance
            error_NM = z_NM - self.belief(residual_raw_NP).mu
            self.residual_cov.copy_(residual_covariance(whitened(factor_NMM, error_NM)))
        belief = self.belief(score_raw_NP)
        scores_NM = (probit(mean_target(score)) - belief.mu).abs() / belief.sigma
        for row, level in enumerate(LEVELS):
            for column in range(self.objectives):
                self.conformal[row, column] = conformal_quantile(scores_NM[:, column], level, EVERYTHING)
        self.calibrated.fill_(True)


def level_index(level: float) -> int:
    """Which row of the conformal table a level has."""
    check_number(level, "level")
    for index, each in enumerate(LEVELS):
        if abs(level - each) < 1e-9:
            return index
    raise InputError(f"level must be one of {', '.join(f'{each:g}' for each in LEVELS)}, found {level}")
