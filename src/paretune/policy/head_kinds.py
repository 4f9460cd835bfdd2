"""The kinds of sensing head: what the network's raw outputs [B, P] mean, and how they are taught.

`regression` (the paper's): M logits, squared error after a sigmoid. `binned`: M x K logits over K bins on [0, 1],
cross-entropy against soft labels. `gaussian`: mean and Cholesky factor in probit space, negative log-likelihood.
`simplex` senses weights that sum to one in place of values: M logits and a softmax, Kullback-Leibler divergence.

Targets are [B, G, M]: G profiles a prompt (of its good completions), NaN where one is missing. Regression learns their
mean, binned their averaged soft labels, gaussian each of them, simplex their mean (made to sum to one).
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from paretune.policy.belief import Belief, belief_of, measured, negative_log_likelihood, probit

Kind = Literal["regression", "binned", "gaussian", "simplex"]
KINDS: tuple[Kind, ...] = ("regression", "binned", "gaussian")
"""Those that sense values, each objective for itself; `simplex` senses weights."""
FLOOR = 0.05
"""Least standard deviation (on the Cholesky factor's diagonal) the gaussian head can state, in probit space."""


def grouped(targets: Tensor) -> Tensor:
    """Targets [B, M] or [B, G, M] as [B, G, M]."""
    return targets[:, None, :] if targets.dim() == 2 else targets


def mean_target(targets: Tensor) -> Tensor:
    """Targets [B, M] or [B, G, M] to their means over the present ones [B, M]; NaN where none is."""
    return grouped(targets).nanmean(dim=1)


class HeadKind(Protocol):
    """What a kind has to say; `losses` are summed over rows, one entry an objective or all in one."""

    objectives: int

    @property
    def outputs(self) -> int:
        """P, how many raw outputs the network has."""

    def group(self) -> Tensor:
        """For each raw output [P] the objective it belongs to, or M where it is of all of them."""

    def start(self, mean_M: Tensor, std_M: Tensor) -> Tensor:
        """Raw outputs [P] that say the targets' mean (and, as far as the kind can, their spread)."""

    def factor(self, raw_BP: Tensor) -> Tensor:
        """A lower triangular root [B, M, M] of the covariance that it states in probit space."""

    def belief(self, raw_BP: Tensor, residual_cov_MM: Tensor) -> Belief:
        """The belief in probit space, its covariance as `paretune.policy.belief.measured` has it."""

    def profile(self, raw_BP: Tensor, residual_cov_MM: Tensor) -> Tensor:
        """The sensed profile [B, M]: the mean of Phi(z) under the belief."""

    def total(self, raw_BP: Tensor, targets_BGM: Tensor, scale_M: Tensor) -> Tensor:
        """The loss summed over rows and objectives."""

    def each(self, raw_BP: Tensor, targets_BGM: Tensor, scale_M: Tensor) -> Tensor:
        """The loss of each objective by itself [M], summed over rows."""


class Regression:
    """M logits and a sigmoid: the paper's head."""

    def __init__(self, objectives: int, bins: int = 0) -> None:
        self.objectives = objectives

    @property
    def outputs(self) -> int:
        return self.objectives

    def group(self) -> Tensor:
        return torch.arange(self.objectives)

    def start(self, mean_M: Tensor, std_M: Tensor) -> Tensor:
        return torch.logit(mean_M.clamp(0.01, 0.99))

    def factor(self, raw_BP: Tensor) -> Tensor:
        """It states none: the identity."""
        return torch.ones_like(raw_BP).diag_embed()

    def belief(self, raw_BP: Tensor, residual_cov_MM: Tensor) -> Belief:
        return belief_of(torch.sigmoid(raw_BP), measured(self.factor(raw_BP), residual_cov_MM))

    def profile(self, raw_BP: Tensor, residual_cov_MM: Tensor) -> Tensor:
        return torch.sigmoid(raw_BP)

    def total(self, raw_BP: Tensor, targets_BGM: Tensor, scale_M: Tensor) -> Tensor:
        return self.each(raw_BP, targets_BGM, scale_M).sum()

    def each(self, raw_BP: Tensor, targets_BGM: Tensor, scale_M: Tensor) -> Tensor:
        """Squared errors in units of `scale`."""
        target_BM = mean_target(targets_BGM)
        present_BM = ~torch.isnan(target_BM)
        predicted_BM = torch.sigmoid(raw_BP)
        error_BM = (predicted_BM - torch.where(present_BM, target_BM, predicted_BM.detach())) / scale_M
        return (error_BM.square() * present_BM).sum(0)


class Binned:
    """K logits an objective over bin centres equally spaced on [0, 1]."""

    def __init__(self, objectives: int, bins: int) -> None:
        self.objectives, self.bins = objectives, bins

    @property
    def outputs(self) -> int:
        return self.objectives * self.bins

    def group(self) -> Tensor:
        return torch.arange(self.objectives).repeat_interleave(self.bins)

    def centres(self, like: Tensor) -> Tensor:
        """Bin centres [K]."""
        return torch.linspace(0, 1, self.bins, dtype=like.dtype, device=like.device)

    def start(self, mean_M: Tensor, std_M: Tensor) -> Tensor:
        """A discretised normal, tilted until its expectation is the mean."""
        centre_K, mean_M1 = self.centres(mean_M), mean_M.clamp(0.01, 0.99)[:, None]
        shape_MK = -0.5 * ((centre_K - mean_M1) / std_M.clamp_min(0.1)[:, None]).square()
        low_M1, high_M1 = torch.full_like(mean_M1, -500.0), torch.full_like(mean_M1, 500.0)
        for _ in range(60):  # the expectation rises with the tilt: bisection
            tilt_M1 = (low_M1 + high_M1) / 2
            found_M1 = ((shape_MK + tilt_M1 * centre_K).softmax(-1) * centre_K).sum(-1, keepdim=True)
            low_M1 = torch.where(found_M1 < mean_M1, tilt_M1, low_M1)
            high_M1 = torch.where(found_M1 < mean_M1, high_M1, tilt_M1)
        raw_MK = shape_MK + (low_M1 + high_M1) / 2 * centre_K
        return (raw_MK - raw_MK.mean(-1, keepdim=True)).flatten()

    def _logits(self, raw_BP: Tensor) -> Tensor:
        return raw_BP.reshape(*raw_BP.shape[:-1], self.objectives, self.bins)

    def expectation(self, raw_BP: Tensor) -> Tensor:
        """Expectation [B, M] over the bin centres."""
        return self._logits(raw_BP).softmax(-1) @ self.centres(raw_BP)

    def quantile(self, raw_BP: Tensor, q: float) -> Tensor:
        """The q-quantile [B, M] of the piecewise linear distribution with knots at the edges between bins.

        Bin k's probability lies evenly between the midpoints to its neighbours (0 and 1 at the ends).
        """
        p_BMK = self._logits(raw_BP).softmax(-1)
        centre_K = self.centres(raw_BP)
        edge_K = torch.cat([centre_K[:1], (centre_K[1:] + centre_K[:-1]) / 2, centre_K[-1:]])
        above_BMK = p_BMK.cumsum(-1)
        k_BM1 = (above_BMK < q).sum(-1, keepdim=True).clamp_max(self.bins - 1)
        p_BM1 = p_BMK.gather(-1, k_BM1)
        share_BM1 = (q - (above_BMK.gather(-1, k_BM1) - p_BM1)) / p_BM1.clamp_min(1e-12)
        low_BM1, high_BM1 = edge_K[k_BM1], edge_K[k_BM1 + 1]
        return (low_BM1 + share_BM1.clamp(0, 1) * (high_BM1 - low_BM1))[..., 0]

    def factor(self, raw_BP: Tensor) -> Tensor:
        """The spread of a prompt is its own: from the 16% and 84% quantiles, one standard deviation each way."""
        wide_BM = probit(self.quantile(raw_BP, 0.8413447)) - probit(self.quantile(raw_BP, 0.1586553))
        return (wide_BM / 2).clamp_min(FLOOR).diag_embed()

    def belief(self, raw_BP: Tensor, residual_cov_MM: Tensor) -> Belief:
        return belief_of(self.expectation(raw_BP), measured(self.factor(raw_BP), residual_cov_MM))

    def profile(self, raw_BP: Tensor, residual_cov_MM: Tensor) -> Tensor:
        return self.expectation(raw_BP)

    def soft_labels(self, values: Tensor) -> Tensor:
        """Values [...] in [0, 1] to labels [..., K]: linear between the two neighbouring centres. NaN gives NaN."""
        at = values.clamp(0, 1)[..., None] * (self.bins - 1)
        distance = (at - torch.arange(self.bins, dtype=values.dtype, device=values.device)).abs()
        return (1 - distance).clamp_min(0)

    def total(self, raw_BP: Tensor, targets_BGM: Tensor, scale_M: Tensor) -> Tensor:
        return self.each(raw_BP, targets_BGM, scale_M).sum()

    def each(self, raw_BP: Tensor, targets_BGM: Tensor, scale_M: Tensor) -> Tensor:
        """Cross-entropies; `scale` plays no part."""
        label_BMK = self.soft_labels(targets_BGM).nanmean(dim=1)
        present_BM = ~torch.isnan(label_BMK[..., 0])
        logp_BMK = self._logits(raw_BP).log_softmax(-1)
        return -(torch.where(present_BM[..., None], label_BMK, 0.0) * logp_BMK).sum(-1).sum(0)


class Gaussian:
    """Mean [M] and the lower triangle [M (M + 1) / 2] of the Cholesky factor, in probit space."""

    def __init__(self, objectives: int, bins: int = 0) -> None:
        self.objectives = objectives

    @property
    def outputs(self) -> int:
        return self.objectives + self.objectives * (self.objectives + 1) // 2

    def group(self) -> Tensor:
        m = self.objectives
        return torch.cat([torch.arange(m), torch.full((self.outputs - m,), m)])

    def start(self, mean_M: Tensor, std_M: Tensor) -> Tensor:
        """Independent objectives; the density of z at the mean turns the targets' deviation into one of z."""
        mean_M = mean_M.clamp(0.02, 0.98)
        z_M = probit(mean_M)
        slope_M = torch.exp(-0.5 * z_M.square()) / (2 * torch.pi) ** 0.5
        sigma_M = (std_M / slope_M).clamp(0.3, 1.5)
        raw_P = torch.zeros(self.outputs, dtype=mean_M.dtype, device=mean_M.device)
        raw_P[: self.objectives] = z_M * (1 + sigma_M.square()).sqrt()
        row, column = self._triangle(raw_P)
        raw_P[self.objectives :][row == column] = torch.log(torch.expm1(sigma_M - FLOOR))
        return raw_P

    def _triangle(self, like: Tensor) -> tuple[Tensor, Tensor]:
        row, column = torch.tril_indices(self.objectives, self.objectives, device=like.device)
        return row, column

    def parts(self, raw_BP: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [B, M] and Cholesky factor [B, M, M]: softplus on the diagonal, plus a floor."""
        m = self.objectives
        row, column = self._triangle(raw_BP)
        entry_BT = raw_BP[:, m:]
        entry_BT = torch.where(row == column, nn.functional.softplus(entry_BT) + FLOOR, entry_BT)
        chol_BMM = raw_BP.new_zeros(len(raw_BP), m, m)
        return raw_BP[:, :m], chol_BMM.index_put((torch.arange(len(raw_BP))[:, None], row, column), entry_BT)

    def factor(self, raw_BP: Tensor) -> Tensor:
        """The Cholesky factor itself."""
        return self.parts(raw_BP)[1]

    def belief(self, raw_BP: Tensor, residual_cov_MM: Tensor) -> Belief:
        """Its own mean: the likelihood leaves that right even where the spread it taught is too wide."""
        mu_BM, chol_BMM = self.parts(raw_BP)
        return Belief(mu_BM, measured(chol_BMM, residual_cov_MM))

    def profile(self, raw_BP: Tensor, residual_cov_MM: Tensor) -> Tensor:
        return self.belief(raw_BP, residual_cov_MM).profile()

    def total(self, raw_BP: Tensor, targets_BGM: Tensor, scale_M: Tensor) -> Tensor:
        """Negative log-likelihoods, averaged over a prompt's profiles; `scale` plays no part."""
        z_BGM = probit(targets_BGM)
        size = z_BGM.shape[1]
        mu_BM, chol_BMM = self.parts(raw_BP)
        nll_BG = negative_log_likelihood(
            mu_BM.repeat_interleave(size, 0), chol_BMM.repeat_interleave(size, 0), z_BGM.flatten(0, 1)
        ).reshape(len(z_BGM), size)
        present_BG = (~torch.isnan(z_BGM)).any(-1)
        return ((nll_BG * present_BG).sum(1) / present_BG.sum(1).clamp_min(1)).sum()

    def each(self, raw_BP: Tensor, targets_BGM: Tensor, scale_M: Tensor) -> Tensor:
        """Negative log-likelihoods of the one-dimensional marginals."""
        z_BGM = probit(targets_BGM)
        mu_BM, chol_BMM = self.parts(raw_BP)
        present_BGM = ~torch.isnan(z_BGM)
        sigma_BGM = chol_BMM.square().sum(-1).sqrt()[:, None]
        error_BGM = torch.where(present_BGM, z_BGM - mu_BM[:, None], 0.0) / sigma_BGM
        nll_BGM = (0.5 * error_BGM.square() + sigma_BGM.log() + 0.9189385332046727) * present_BGM
        return (nll_BGM.sum(1) / present_BGM.sum(1).clamp_min(1)).sum(0)


class Simplex:
    """M logits and a softmax: weights, which sum to one (Liu et al., "Preference Orchestrator", arXiv 2511.10656).

    It states no spread, and its weights have no intervals: no objective's can be moved without the others'.
    """

    def __init__(self, objectives: int, bins: int = 0) -> None:
        self.objectives = objectives

    @property
    def outputs(self) -> int:
        return self.objectives

    def group(self) -> Tensor:
        return torch.arange(self.objectives)

    def start(self, mean_M: Tensor, std_M: Tensor) -> Tensor:
        raw_M = mean_M.clamp_min(1e-3).log()
        return raw_M - raw_M.mean()

    def factor(self, raw_BP: Tensor) -> Tensor:
        """It states none: the identity."""
        return torch.ones_like(raw_BP).diag_embed()

    def belief(self, raw_BP: Tensor, residual_cov_MM: Tensor) -> Belief:
        """Weights are no independent values in [0, 1], so there is none."""
        raise NotImplementedError("a simplex head has no belief")

    def profile(self, raw_BP: Tensor, residual_cov_MM: Tensor) -> Tensor:
        return torch.softmax(raw_BP, -1)

    def pinned(self, weights_BM: Tensor, pins_BM: Tensor) -> Tensor:
        """Pinned weights [B, M] (NaN is free) are kept, and the others scaled to fill what they leave of 1."""
        free_BM = torch.isnan(pins_BM)
        left_B1 = (1 - pins_BM.nansum(-1, keepdim=True)).clamp_min(0)
        rest_BM = torch.where(free_BM, weights_BM.clamp_min(1e-12), 0.0)
        scaled_BM = left_B1 * rest_BM / rest_BM.sum(-1, keepdim=True).clamp_min(1e-12)
        return torch.where(free_BM, scaled_BM, pins_BM)

    def total(self, raw_BP: Tensor, targets_BGM: Tensor, scale_M: Tensor) -> Tensor:
        """KL(target || predicted) of each row, times the objectives that the target has; `scale` plays no part.

        A target without some objectives speaks of the others' shares among themselves.
        """
        kl_B, present_BM = self._divergence(raw_BP, targets_BGM)
        return (kl_B * present_BM.sum(-1)).sum()

    def each(self, raw_BP: Tensor, targets_BGM: Tensor, scale_M: Tensor) -> Tensor:
        """The divergence of the rows that have the objective: a weight is not right or wrong by itself."""
        kl_B, present_BM = self._divergence(raw_BP, targets_BGM)
        return (kl_B[:, None] * present_BM).sum(0)

    def _divergence(self, raw_BP: Tensor, targets_BGM: Tensor) -> tuple[Tensor, Tensor]:
        target_BM = mean_target(targets_BGM)
        present_BM = ~torch.isnan(target_BM)
        known_BM = torch.where(present_BM, target_BM, 0.0)
        known_BM = known_BM / known_BM.sum(-1, keepdim=True).clamp_min(1e-12)
        # -1e4 in place of minus infinity, for a row may have no target at all
        logp_BM = torch.where(present_BM, raw_BP, -1e4).log_softmax(-1)
        terms_BM = torch.xlogy(known_BM, known_BM) - known_BM * torch.where(present_BM, logp_BM, 0.0)
        return terms_BM.sum(-1), present_BM


def head_kind(kind: Kind, objectives: int, bins: int) -> HeadKind:
    """The kind by name."""
    made: dict[Kind, type[Regression] | type[Binned] | type[Gaussian] | type[Simplex]]
    made = {"regression": Regression, "binned": Binned, "gaussian": Gaussian, "simplex": Simplex}
    return made[kind](objectives, bins)
