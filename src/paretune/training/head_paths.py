"""The parts a sensing head is fitted in: the constant, the linear path, the hidden layers, and how they are mixed.

Each part is fitted apart on the folds' training rows and predicts the rows held out, so that everything that is chosen
(ridge strength, number of epochs, mixing weights) is chosen on prompts the part did not train on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paretune.policy.head import SensingHead
from paretune.policy.head_kinds import mean_target

STRENGTHS = 10.0 ** torch.arange(1.5, -1.25, -0.5)
"""Ridge strengths tried for the linear path, strongest first, in units of one per feature."""


@dataclass(frozen=True)
class Data:
    """Inputs [N, H] as the head's layers see them, targets [N, G, M], and whether errors are standardised."""

    inputs_NH: Tensor
    targets_NGM: Tensor
    standardise: bool

    def __len__(self) -> int:
        return len(self.inputs_NH)

    def rows(self, index: Tensor) -> Data:
        """Some of the rows."""
        return Data(self.inputs_NH[index], self.targets_NGM[index], self.standardise)


@dataclass(frozen=True)
class Fold:
    """Row numbers to train on, and row numbers held out."""

    train: Tensor
    held: Tensor


def minimise(loss: Callable[[], Tensor], parameters: Sequence[Tensor], steps: int) -> None:
    """L-BFGS with line search, on parameters that require gradients, in place."""
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=steps, line_search_fn="strong_wolfe", tolerance_grad=1e-5, tolerance_change=1e-6
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]


def fit_constant(head: SensingHead, targets_NGM: Tensor) -> Tensor:
    """The raw outputs [P] that fit best when the prompt is not known; one row's worth of pull to a broad guess."""
    target_NM = mean_target(targets_NGM)
    mean_M = target_NM.nanmean(0).nan_to_num(0.5)
    std_M = (target_NM - mean_M).square().nanmean(0).sqrt().nan_to_num(0.25).clamp_min(0.05)
    start_P = head.kind.start(mean_M, std_M)
    raw_P = start_P.clone().requires_grad_()
    n = len(targets_NGM)

    def loss() -> Tensor:
        fit = head.kind.total(raw_P.expand(n, -1), targets_NGM, std_M)
        return (fit + 0.5 * (raw_P - start_P).square().sum()) / n

    minimise(loss, [raw_P], 50)
    return raw_P.detach() if bool(torch.isfinite(raw_P).all()) else start_P


# --- the linear path ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Linear:
    """Weights [P, H] and biases [P], beside a constant."""

    weight_PH: Tensor
    bias_P: Tensor

    def __call__(self, inputs_NH: Tensor) -> Tensor:
        return inputs_NH @ self.weight_PH.T + self.bias_P


def fit_linear(
    head: SensingHead, data: Data, base_P: Tensor, strength_P: Tensor, start: Linear | None = None, steps: int = 20
) -> Linear:
    """The kind's loss of base + W x + b, plus a ridge penalty of `strength` per raw output on W.

    Outputs that belong to no objective by themselves (a covariance) are left to the hidden layers.
    """
    own_P = (head.kind.group() < head.objectives).to(base_P)
    zero = torch.zeros(len(base_P), data.inputs_NH.shape[1], dtype=base_P.dtype, device=base_P.device)
    first = start if start is not None else Linear(zero, torch.zeros_like(base_P))
    weight_PH, bias_P = (each.clone().requires_grad_() for each in (first.weight_PH, first.bias_P))
    scale_M, n, ridge_P1 = head.target_std, len(data), strength_P[:, None] * data.inputs_NH.shape[1]

    def loss() -> Tensor:
        raw_NP = base_P + own_P * (data.inputs_NH @ weight_PH.T + bias_P)
        fit = head.kind.total(raw_NP, data.targets_NGM, scale_M)
        return (fit + 0.5 * (ridge_P1 * weight_PH.square()).sum() + 0.5 * bias_P.square().sum()) / n

    minimise(loss, [weight_PH, bias_P], steps)
    found = Linear(weight_PH.detach() * own_P[:, None], bias_P.detach() * own_P)
    finite = bool(torch.isfinite(found.weight_PH).all() and torch.isfinite(found.bias_P).all())
    return found if finite else first


def cross_linear(
    head: SensingHead, data: Data, folds: Sequence[Fold], bases: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Held-out outputs of the linear path [N, P] and the ridge strengths [P] that suit each objective best."""
    group_P = head.kind.group()
    held_SNP = data.inputs_NH.new_zeros(len(STRENGTHS), len(data), len(group_P))
    losses_SM = data.inputs_NH.new_zeros(len(STRENGTHS), head.objectives)
    for fold, base_P in zip(folds, bases, strict=True):
        train, held, found = data.rows(fold.train), data.rows(fold.held), None
        for s, strength in enumerate(STRENGTHS.tolist()):
            found = fit_linear(head, train, base_P, torch.full_like(base_P, strength), found)
            held_SNP[s, fold.held] = found(held.inputs_NH)
            losses_SM[s] += head.kind.each(base_P + held_SNP[s, fold.held], held.targets_NGM, head.target_std)
    best_M = losses_SM.argmin(0)
    best_P = torch.cat([best_M, best_M.new_zeros(1)])[group_P.to(best_M.device)]
    columns = torch.arange(len(group_P), device=best_P.device)
    return held_SNP[best_P, :, columns].T.contiguous(), STRENGTHS.to(base_P)[best_P]


# --- the hidden layers --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """How the hidden layers are trained: AdamW, the learning rate falling by half a cosine over `epochs`."""

    epochs: int
    lr: float
    weight_decay: float
    batch_size: int


class Learner:
    """The hidden layers of one copy of the head, trained beside a constant; an epoch draws `rows` of the rows."""

    def __init__(
        self, layers: nn.Sequential, head: SensingHead, data: Data, base_P: Tensor, schedule: Schedule, rows: int
    ) -> None:
        self.layers, self.head, self.data, self.base_P = layers, head, data, base_P
        self.batch_size, self.rows = schedule.batch_size, rows
        groups = [
            {"params": [p for p in layers.parameters() if p.dim() > 1], "weight_decay": schedule.weight_decay},
            {"params": [p for p in layers.parameters() if p.dim() <= 1], "weight_decay": 0.0},
        ]
        fused = base_P.device.type in ("cpu", "cuda")
        self.optimizer = torch.optim.AdamW(groups, lr=schedule.lr, fused=fused)
        self.decay = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, max(1, schedule.epochs))

    def epoch(self, draw: torch.Generator) -> None:
        """One pass over drawn rows in a drawn order."""
        self.layers.train()
        order = torch.randperm(len(self.data), generator=draw)[: self.rows].to(self.base_P.device)
        for index in torch.split(order, self.batch_size):
            part = self.data.rows(index)
            self.optimizer.zero_grad()
            raw_BP = self.base_P + self.layers(part.inputs_NH)
            loss = self.head.loss(raw_BP, part.targets_NGM, standardise=part.standardise)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.layers.parameters(), 10.0 * len(index) ** 0.5)
            self.optimizer.step()
        self.decay.step()

    @torch.no_grad()
    def outputs(self, inputs_NH: Tensor) -> Tensor:
        """What the layers add to the constant [N, P], with dropout off."""
        self.layers.eval()
        return torch.cat([self.layers(part) for part in torch.split(inputs_NH, 4096)])


def fresh_layers(head: SensingHead) -> nn.Sequential:
    """A copy of the head's hidden layers with new weights, drawn from global random state, that says nearly nothing."""
    layers = copy.deepcopy(head.layers)
    for each in layers:
        if isinstance(each, (nn.Linear, nn.LayerNorm)):
            each.reset_parameters()
    last = layers[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight.mul_(0.1)
        last.bias.zero_()
    return layers


def cross_layers(
    head: SensingHead,
    data: Data,
    folds: Sequence[Fold],
    bases: Sequence[Tensor],
    schedule: Schedule,
    draw: torch.Generator,
) -> tuple[Tensor, int]:
    """Held-out outputs of the hidden layers [N, P] and the number of epochs, both where the folds' mean loss is lowest.

    The folds go side by side, so that training can stop once all of them together have got no better for long.
    """
    learners = [
        Learner(fresh_layers(head), head, data.rows(fold.train), base_P, schedule, len(fold.train))
        for fold, base_P in zip(folds, bases, strict=True)
    ]
    patience = max(8, schedule.epochs // 5)
    now_NP = data.inputs_NH.new_zeros(len(data), head.kind.outputs)
    kept_NP, best, chosen = now_NP.clone(), float("inf"), 0
    for epoch in range(schedule.epochs + 1):
        total = 0.0
        for learner, fold, base_P in zip(learners, folds, bases, strict=True):
            if epoch:
                learner.epoch(draw)
                now_NP[fold.held] = learner.outputs(data.inputs_NH[fold.held])
            held = data.targets_NGM[fold.held]
            loss = head.loss(base_P + now_NP[fold.held], held, standardise=data.standardise)
            total += float(loss) * int(head.present(held))
        if total < best:
            kept_NP, best, chosen = now_NP.clone(), total, epoch
        elif not total < float("inf") or epoch - chosen >= patience:
            break
    return kept_NP, chosen


def fit_layers(
    head: SensingHead, data: Data, base_P: Tensor, schedule: Schedule, epochs: int, rows: int, draw: torch.Generator
) -> nn.Sequential:
    """The hidden layers after `epochs` of the schedule on all the data; they add exactly nothing after none.

    An epoch draws only as many rows as a fold trained on: as many steps as the folds took make a head as sure of itself
    as theirs were, which is what its intervals are calibrated for.
    """
    layers = fresh_layers(head)
    if not epochs:
        last = layers[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
    learner = Learner(layers, head, data, base_P, schedule, rows)
    for _ in range(epochs):
        learner.epoch(draw)
    return layers.eval()


# --- mixing -------------------------------------------------------------------------------------------------------


def stack(head: SensingHead, bases_NP: Tensor, paths: Sequence[Tensor], targets_NGM: Tensor) -> Tensor:
    """Non-negative mixing weights [paths, P] that minimise the held-out loss; one weight an objective and path.

    Stacking (Wolpert 1992) with Breiman's non-negativity (1996), around the constant: the weights need not sum to 1, so
    an objective that cannot be sensed shrinks to its mean. A slight pull to 0 decides where a handful of rows cannot.
    """
    group_P = head.kind.group().to(bases_NP.device)
    path_ANP = torch.stack(list(paths))
    weights = torch.full((len(paths), int(group_P.max()) + 1), 1.0 / len(paths)).to(bases_NP).requires_grad_()
    optimizer = torch.optim.Adam([weights], lr=0.05)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    n = max(1, len(targets_NGM))
    for _ in range(200):
        optimizer.zero_grad()
        raw_NP = bases_NP + (weights[:, None, group_P] * path_ANP).sum(0)
        loss = (head.kind.total(raw_NP, targets_NGM, head.target_std) + 2 * weights.square().sum()) / n
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        decay.step()
        with torch.no_grad():
            weights.clamp_(0, 2)
    return weights.detach()[:, group_P]
