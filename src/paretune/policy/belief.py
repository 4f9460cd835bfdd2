"""What a head believes about a prompt: a Gaussian over the profile in probit space, and what follows from it.

A profile value s is z = Phi^-1(s), with s clipped to [0.01, 0.99] first, so that a value at the end of its scale is a
finite z. In that space a belief is a mean and a covariance, and sensing given pins is the conditional Gaussian in
closed form (Bishop, "Pattern Recognition and Machine Learning", 2.3.1): with S pinned and U free,

    mu_U|S    = mu_U + Sigma_US Sigma_SS^-1 (z_S - mu_S)
    Sigma_U|S = Sigma_UU - Sigma_US Sigma_SS^-1 Sigma_SU

Which objectives are pinned, or missing, differs from row to row. All rows are solved in one batch all the same: what
does not count is replaced by the identity's rows and columns, which add nothing to a solution nor to a determinant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

CLIP = 0.01
"""Targets and pins nearer to 0 or 1 than this are taken to be this near."""
_TINY = 1e-6  # keeps the probit of a network's own profile finite in float32


def probit(value: Tensor, clip: float = CLIP) -> Tensor:
    """Phi^-1 of values in [0, 1], clipped to [clip, 1 - clip]; NaN stays NaN."""
    z: Tensor = torch.special.ndtri(value.clamp(clip, 1 - clip))
    return z


@dataclass(frozen=True)
class Belief:
    """Mean mu [B, M] and covariance [B, M, M] of a profile in probit space."""

    mu: Tensor
    cov: Tensor

    @property
    def sigma(self) -> Tensor:
        """Standard deviations [B, M]."""
        return self.cov.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()

    def profile(self) -> Tensor:
        """The mean of Phi(z), which is Phi(mu / sqrt(1 + var)), [B, M]."""
        value_BM: Tensor = torch.special.ndtr(self.mu / (1 + self.sigma.square()).sqrt())
        return value_BM

    def given(self, pins_BM: Tensor) -> Belief:
        """The belief once some objectives are known; NaN in pins [B, M] is free. Pinned ones get no variance."""
        pinned_BM = ~torch.isnan(pins_BM)
        z_BM = torch.where(pinned_BM, probit(pins_BM.to(self.mu)), self.mu)
        known_BMM = only(self.cov, pinned_BM)
        across_BMM = self.cov * pinned_BM[:, None, :]  # Sigma_.S, with zeros in the free columns
        gain_BMM = torch.linalg.solve(known_BMM, across_BMM.mT).mT  # Sigma_.S Sigma_SS^-1
        mu_BM = self.mu + (gain_BMM @ (z_BM - self.mu)[..., None])[..., 0]
        cov_BMM = self.cov - gain_BMM @ across_BMM.mT
        free_BMM = ~(pinned_BM[:, :, None] | pinned_BM[:, None, :])
        return Belief(torch.where(pinned_BM, z_BM, mu_BM), (cov_BMM + cov_BMM.mT) / 2 * free_BMM)

    def interval(self, width_M: Tensor) -> tuple[Tensor, Tensor]:
        """Low and high [B, M] of Phi(mu -+ width * sigma).

        An end within the clipped part of the scale is the scale's end, for the values there are all one z.
        """
        low_BM = torch.special.ndtr(self.mu - width_M * self.sigma)
        high_BM = torch.special.ndtr(self.mu + width_M * self.sigma)
        edge = CLIP * (1 + 1e-4)
        return torch.where(low_BM <= edge, 0.0, low_BM), torch.where(high_BM >= 1 - edge, 1.0, high_BM)


def measured(factor_BMM: Tensor, residual_cov_MM: Tensor) -> Tensor:
    """The covariance [B, M, M] that a network states for its prompts, put right by what held-out prompts showed.

    `factor` F is a lower triangular root of the stated covariance (the identity where a network states none), and
    `residual_cov` C the covariance of held-out residuals, each whitened by its own prompt's F: the identity for a
    network that states what is true. In F C F' a spread or correlation that is wrong on the average is put right, and
    what tells one prompt from another stays.
    """
    return factor_BMM @ residual_cov_MM @ factor_BMM.mT


def belief_of(profile_BM: Tensor, cov_BMM: Tensor) -> Belief:
    """The Gaussian of a given covariance whose mean of Phi(z) is a network's own profile [B, M].

    Without pins, and with pins on objectives that do not correlate with it, an objective keeps exactly the network's
    value.
    """
    variance_BM = cov_BMM.diagonal(dim1=-2, dim2=-1)
    return Belief(probit(profile_BM, _TINY) * (1 + variance_BM).sqrt(), cov_BMM)


def only(cov_BMM: Tensor, kept_BM: Tensor) -> Tensor:
    """The covariance with the rows and columns that are not kept replaced by those of the identity."""
    both_BMM = kept_BM[:, :, None] & kept_BM[:, None, :]
    return torch.where(both_BMM, cov_BMM, torch.eye(cov_BMM.shape[-1], dtype=cov_BMM.dtype, device=cov_BMM.device))


def factor_of(factor_BMM: Tensor, kept_BM: Tensor) -> Tensor:
    """The Cholesky factor of the marginal L L' of what is kept: L itself where that is all."""
    if bool(kept_BM.all()):
        return factor_BMM
    # in float64, as a product L L' squares L's condition number
    exact = torch.float64 if factor_BMM.device.type != "mps" else factor_BMM.dtype
    wide_BMM = factor_BMM.to(exact)
    root_BMM: Tensor = torch.linalg.cholesky(only(wide_BMM @ wide_BMM.mT, kept_BM))
    return root_BMM.to(factor_BMM.dtype)


def whitened(factor_BMM: Tensor, error_BM: Tensor) -> Tensor:
    """L^-1 error [B, M], L the factor of the marginal of what is present; NaN where the error is missing (NaN)."""
    present_BM = ~torch.isnan(error_BM)
    known_BM1 = torch.where(present_BM, error_BM, 0.0)[..., None]
    white_BM1 = torch.linalg.solve_triangular(factor_of(factor_BMM, present_BM), known_BM1, upper=False)
    return torch.where(present_BM, white_BM1[..., 0], torch.nan)


def negative_log_likelihood(mu_BM: Tensor, chol_BMM: Tensor, z_BM: Tensor) -> Tensor:
    """-log N(z; mu, L L') [B] of the objectives that are present (NaN in z is missing): the exact marginal."""
    present_BM = ~torch.isnan(z_BM)
    error_BM = torch.where(present_BM, z_BM - mu_BM, 0.0)
    chol_BMM = factor_of(chol_BMM, present_BM)
    white_BM: Tensor = torch.linalg.solve_triangular(chol_BMM, error_BM[..., None], upper=False)[..., 0]
    log_det_B: Tensor = chol_BMM.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return 0.5 * (white_BM.square().sum(-1) + present_BM.sum(-1) * math.log(2 * math.pi)) + log_det_B


def residual_covariance(residual_NM: Tensor, prior_rows: float = 10.0) -> Tensor:
    """Covariance [M, M] of residuals about zero, NaN where one is missing; positive definite whatever the rows.

    Pairs are counted where both are present. Correlations are shrunk towards 0, and variances towards 1, as if by
    `prior_rows` more rows; the correlation matrix's eigenvalues are kept above 0.02.
    """
    present_NM = ~torch.isnan(residual_NM)
    r_NM = torch.where(present_NM, residual_NM, 0.0).double()
    w_NM = present_NM.double()
    rows_MM = w_NM.T @ w_NM
    sums_MM = r_NM.T @ r_NM
    # shared rows only, so that a pair's correlation never leaves [-1, 1]
    squares_MM = (r_NM.square().T @ w_NM).clamp_min(1e-12)
    correlation_MM = sums_MM / (squares_MM * squares_MM.T).sqrt() * rows_MM / (rows_MM + prior_rows)
    correlation_MM.fill_diagonal_(1.0)
    values_M, vectors_MM = torch.linalg.eigh(correlation_MM)
    correlation_MM = vectors_MM @ torch.diag(values_M.clamp_min(0.02)) @ vectors_MM.T
    scale_M = correlation_MM.diagonal().sqrt()
    correlation_MM = correlation_MM / scale_M[:, None] / scale_M[None, :]
    few = 1.0  # a variance is known from far fewer rows than a correlation
    variance_M = (sums_MM.diagonal() + few) / (rows_MM.diagonal() + few)
    deviation_M = variance_M.clamp_min(1e-4).sqrt()
    covariance_MM: Tensor = correlation_MM * deviation_M[:, None] * deviation_M[None, :]
    return covariance_MM.to(residual_NM.dtype)


def conformal_quantile(scores_N: Tensor, level: float, otherwise: float) -> float:
    """The split-conformal quantile of held-out scores: the ceil((n + 1) level)-th smallest of the n that are present.

    A new score, exchangeable with these, is at most this with a probability of at least `level` (Vovk et al.,
    "Algorithmic Learning in a Random World"; Angelopoulos and Bates 2021). `otherwise` where too few scores tell.
    """
    known_N = scores_N[~torch.isnan(scores_N)].sort().values
    rank = math.ceil((len(known_N) + 1) * level - 1e-9)
    return min(float(known_N[rank - 1]), otherwise) if rank <= len(known_N) else otherwise
