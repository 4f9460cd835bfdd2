"""What a pin tells each kind of head on synthetic prompts, where the best possible answer is known.

    python benchmarks/pins.py [--prompts 150 500] [--seeds 0 1 2] [--json]

Two objectives are jointly Gaussian in probit space given the prompt's features; the first is pinned to its true value
and the second sensed given it. `constant`: their correlation is .85 for every prompt. `by prompt`: it is +.9 or -.9, as
a feature says, and the spread too depends on the prompt. `best` is R2 of the true conditional mean.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass

import torch
from common import run
from torch import Tensor

from paretune.errors import check_whole
from paretune.policy.head import HeadConfig, SensingHead
from paretune.policy.head_kinds import KINDS
from paretune.training.head_fit import fit_head

FEATURES, TEST = 12, 2000
SHAPE = {"width": 16, "depth": 1, "dropout": 0.1, "hidden_dropout": 0.1, "standardise_input": True, "skip": True}


@dataclass(frozen=True)
class Prompts:
    """features [n, 12]; targets [n, 2] in [0, 1]; mu [n, 2], sigma [n], rho [n] of the Gaussian they came from."""

    features: Tensor
    targets: Tensor
    mu: Tensor
    sigma: Tensor
    rho: Tensor


@dataclass(frozen=True)
class Figures:
    """R2 of the second objective alone and given the first; coverage of its 80% interval, alone and given the first."""

    r2: float
    r2_pinned: float
    best: float
    coverage: float
    coverage_pinned: float


def draw(count: int, seed: int, by_prompt: bool) -> Prompts:
    """Prompts whose profile is Gaussian in probit space."""
    source = torch.Generator().manual_seed(seed)
    features = torch.randn(count, FEATURES, generator=source)
    rho, sigma = torch.full((count,), 0.85), torch.full((count,), 0.7)
    if by_prompt:
        rho, sigma = torch.where(features[:, 2] > 0, 0.9, -0.9), torch.where(features[:, 3] > 0, 0.9, 0.4)
    one, other = torch.randn(count, generator=source), torch.randn(count, generator=source)
    noise = torch.stack([one, rho * one + (1 - rho**2).sqrt() * other], dim=1)
    mu = 0.8 * features[:, :2]
    return Prompts(features, torch.special.ndtr(mu + sigma[:, None] * noise), mu, sigma, rho)


def measure(kind: str, train: int, seed: int, by_prompt: bool) -> Figures:
    """Fit a head of `kind` on `train` prompts and judge it on 2,000 others."""
    prompts = draw(train + TEST, seed, by_prompt)
    torch.manual_seed(0)
    head = SensingHead(FEATURES, 2, HeadConfig(kind=kind, **SHAPE))
    seen = prompts.targets[:train]
    head.set_statistics(seen.mean(0), seen.std(0, correction=0), start_at_mean=True)
    fit_head(head, prompts.features[:train], seen[:, None], None, epochs=30, lr=3e-3, seed=0, standardise=True, folds=5)
    unseen = prompts.targets[train:]
    pins = torch.stack([unseen[:, 0], torch.full((TEST,), math.nan)], dim=1)
    with torch.no_grad():
        raw = head(prompts.features[train:])
        alone, given = head.predict(raw), head.predict(raw, pins)
    return Figures(
        _r2(unseen[:, 1], alone.profile_BM[:, 1]),
        _r2(unseen[:, 1], given.profile_BM[:, 1]),
        _r2(unseen[:, 1], _best(prompts, train)),
        _coverage(unseen, alone),
        _coverage(unseen, given),
    )


def _best(prompts: Prompts, train: int) -> Tensor:
    """The true mean of the second objective given the first: E Phi(z) for a Gaussian z."""
    mu, sigma, rho = prompts.mu[train:], prompts.sigma[train:], prompts.rho[train:]
    first = torch.special.ndtri(prompts.targets[train:, 0])
    mean, variance = mu[:, 1] + rho * (first - mu[:, 0]), sigma**2 * (1 - rho**2)
    return torch.special.ndtr(mean / (1 + variance).sqrt())


def _r2(truth: Tensor, guess: Tensor) -> float:
    return float(1 - (truth - guess).square().sum() / (truth - truth.mean()).square().sum())


def _coverage(truth: Tensor, found: object) -> float:
    low, high = found.low_BM[:, 1], found.high_BM[:, 1]  # type: ignore[attr-defined]
    return float(((truth[:, 1] >= low) & (truth[:, 1] <= high)).float().mean())


def main() -> None:
    """Print a line for each kind of data, number of prompts and kind of head."""
    parser = argparse.ArgumentParser(description="what a pin tells each kind of head")
    parser.add_argument("--prompts", type=int, nargs="+", default=[150, 500])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for count in arguments.prompts:
        check_whole(count, "--prompts", least=2)
    rows = []
    for data in ("constant", "by prompt"):
        for count in arguments.prompts:
            for kind in KINDS:
                runs = [asdict(measure(kind, count, seed, data == "by prompt")) for seed in arguments.seeds]
                means = {name: sum(each[name] for each in runs) / len(runs) for name in runs[0]}
                rows.append({"correlation": data, "prompts": count, "head": kind, **means})
    if arguments.json:
        print(json.dumps(rows))
        return
    print("| correlation | prompts | head | R2 | R2 given the pin | best | 80% interval holds | given the pin |")
    print("|" + "---|" * 8)
    for row in rows:
        cells = [f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    run(main)
