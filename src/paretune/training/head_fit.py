"""Fitting the sensing head alone, on read-out features of a fixed backbone: warm-up before, refit after joint training.

It costs one prefill of the prompts; the rest is nearly free. K-fold cross-validation over the training prompts decides
all there is to decide: ridge strength of the linear path, epochs of the hidden layers, and how the two are mixed. Then
the head is fitted on all training rows. What the folds held out also tells how wrong the head is on prompts it has not
seen, which calibrates its intervals and its covariance.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paretune.errors import InputError
from paretune.policy.head import SensingHead
from paretune.policy.head_kinds import grouped, mean_target
from paretune.training.head_paths import (
    Data,
    Fold,
    Linear,
    Schedule,
    cross_layers,
    cross_linear,
    fit_constant,
    fit_layers,
    fit_linear,
    stack,
)

LARGE = 5000
"""With more training rows than this two folds do: half the rows are plenty, and every row is still held out once."""
ENOUGH = 200
"""With this many validation rows intervals are calibrated on them alone, for the head itself never saw them."""


@dataclass(frozen=True)
class HeadFit:
    """What fitting found.

    loss: the validation loss of the fitted head, or the out-of-fold loss without validation rows.
    out_of_fold: [N, M], the sensed profile of every training row by a head that did not train on it.
    r2: per objective R2 out of fold, about the training mean; None where the targets do not vary.
    epochs: chosen for the hidden layers. mix: [paths, M], each objective's weights of the linear path (where there is
    one) and the hidden layers. folds: how many. calibrated_on: how many prompts calibrated the intervals.
    """

    loss: float
    out_of_fold: Tensor
    r2: list[float | None]
    epochs: int
    mix: list[list[float]]
    folds: int
    calibrated_on: int


def fit_head(
    head: SensingHead,
    features_NH: Tensor,
    targets_NGM: Tensor,
    validation: tuple[Tensor, Tensor] | None,
    *,
    epochs: int,
    lr: float,
    seed: int,
    standardise: bool,
    weight_decay: float = 0.1,
    batch_size: int = 64,
    folds: int = 5,
    groups: Sequence[Hashable] | None = None,
) -> HeadFit:
    """Fit `head` in place, from new weights, on features [N, H] and targets [N, M] or [N, G, M] (NaN is missing).

    Rows of one group (those of one prompt, say) are held out together. At most `epochs` passes. All draws come from
    `seed`; the global random state is left as it was. The validation rows are never trained on: they measure and
    calibrate. Works from one row on; without anything held out the head says the
    targets' mean and its intervals stay uncalibrated.
    """
    if not len(features_NH) or len(features_NH) != len(targets_NGM):
        raise ValueError(f"{len(features_NH)} rows of features and {len(targets_NGM)} of targets")
    head.requires_grad_(True).eval()
    with seeded(seed, head.target_mean.device), torch.no_grad():
        head.set_input(features_NH)
        data = _data(head, features_NH, targets_NGM, standardise)
        held = _data(head, *validation, standardise) if validation is not None and len(validation[0]) else None
        with torch.enable_grad():
            schedule = Schedule(epochs, lr, weight_decay, batch_size)
            return _fit(head, data, held, schedule, seed, folds, groups or range(len(data)))


def _data(head: SensingHead, features_NH: Tensor, targets: Tensor, standardise: bool) -> Data:
    inputs_NH = head.inputs(features_NH.detach())
    if not bool(torch.isfinite(inputs_NH).all()):
        raise InputError("the model's read-outs hold NaN or infinity, so no sensing head can be fitted on them")
    return Data(inputs_NH, grouped(targets).to(inputs_NH), standardise)


def _fit(
    head: SensingHead,
    data: Data,
    validation: Data | None,
    schedule: Schedule,
    seed: int,
    count: int,
    groups: Sequence[Hashable],
) -> HeadFit:
    draw = torch.Generator().manual_seed(seed)
    parts = make_folds(groups, count, draw)
    bases = [fit_constant(head, data.targets_NGM[fold.train]) for fold in parts]
    base_P = fit_constant(head, data.targets_NGM)
    # of a row that no fold holds out (there is only one) nothing is known without itself
    unknown_P = head.kind.start(torch.full_like(head.target_mean, 0.5), torch.full_like(head.target_mean, 0.3))
    bases_NP = unknown_P.expand(len(data), -1).clone()
    for fold, own_P in zip(parts, bases, strict=True):
        bases_NP[fold.held] = own_P
    paths, linear = [], None
    if head.linear is not None:
        held_NP, strength_P = cross_linear(head, data, parts, bases) if parts else _nothing(head, base_P, data)
        linear = fit_linear(head, data, base_P, strength_P, steps=60)
        paths.append(held_NP)
    held_NP, epochs = cross_layers(head, data, parts, bases, schedule, draw)
    rows = len(parts[0].train) if parts else len(data)
    layers = fit_layers(head, data, base_P, schedule, epochs, rows, draw)
    paths.append(held_NP)
    mix_AP = stack(head, bases_NP, paths, data.targets_NGM)
    _store(head, base_P, linear, layers, mix_AP)
    raw_NP = bases_NP + (mix_AP[:, None] * torch.stack(paths)).sum(0)
    return _judge(head, data, validation, raw_NP, mix_AP, epochs, parts)


def _nothing(head: SensingHead, base_P: Tensor, data: Data) -> tuple[Tensor, Tensor]:
    """One row: no held-out outputs, and a penalty that keeps the linear path at nearly nothing."""
    return base_P.new_zeros(len(data), len(base_P)), torch.full_like(base_P, 1e6)


def make_folds(groups: Sequence[Hashable], folds: int, draw: torch.Generator) -> list[Fold]:
    """Each row held out once, with all rows of its group, in up to `folds` parts; none for a single group.

    A row whose prompt is trained on is no held-out row: the head would only have to remember it.
    """
    rows_of: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        rows_of.setdefault(group, []).append(row)
    members = list(rows_of.values())
    count = min(folds if len(groups) <= LARGE else 2, len(members))
    if count < 2:
        return []
    parts = torch.randperm(len(members), generator=draw).tensor_split(count)
    held = [torch.tensor([row for i in part.tolist() for row in members[i]]) for part in parts]
    return [Fold(torch.cat([part for j, part in enumerate(held) if j != i]), own) for i, own in enumerate(held)]


@torch.no_grad()
def _store(head: SensingHead, base_P: Tensor, linear: Linear | None, layers: nn.Sequential, mix_AP: Tensor) -> None:
    """Put the parts into the head; without a skip path the mixing weight is multiplied into the last layer."""
    head.layers.load_state_dict(layers.state_dict())
    if head.linear is not None and linear is not None:
        head.linear.weight.copy_(linear.weight_PH)
        head.linear.bias.copy_(linear.bias_P)
        head.base.copy_(base_P)
        head.mix.copy_(mix_AP)
        return
    last = head.layers[-1]
    assert isinstance(last, nn.Linear)
    last.weight.mul_(mix_AP[0][:, None])
    last.bias.mul_(mix_AP[0]).add_(base_P)


@torch.no_grad()
def _judge(
    head: SensingHead,
    data: Data,
    validation: Data | None,
    raw_NP: Tensor,
    mix_AP: Tensor,
    epochs: int,
    folds: list[Fold],
) -> HeadFit:
    """Calibrate on what was held out, and measure it; `raw` [N, P] are the out-of-fold outputs."""
    first_M = [int((head.kind.group() == m).nonzero()[0]) for m in range(head.objectives)]
    held, measured = (raw_NP, data.targets_NGM), (raw_NP, data.targets_NGM)
    if validation is not None:
        seen = (_forward(head, validation.inputs_NH), validation.targets_NGM)
        measured = seen
        if not folds:
            held = seen
        elif len(validation) < ENOUGH:
            held = _joined(held, seen)
    scored = measured if validation is not None and len(validation) >= ENOUGH else held
    if folds or validation is not None:
        everything = _joined((raw_NP, data.targets_NGM), measured) if validation is not None and folds else held
        head.calibrate(everything[0], scored[0], everything[1], scored[1])
    else:
        head.residual_cov.copy_(torch.eye(head.objectives))
        head.calibrated.fill_(False)
    profile_NM = head.profile(raw_NP)
    return HeadFit(
        loss=float(head.loss(*measured, standardise=data.standardise)),
        out_of_fold=profile_NM,
        r2=_r2(profile_NM, mean_target(data.targets_NGM)),
        epochs=epochs,
        mix=mix_AP[:, first_M].tolist(),
        folds=len(folds),
        calibrated_on=len(scored[0]) if bool(head.calibrated) else 0,
    )


def _forward(head: SensingHead, inputs_NH: Tensor) -> Tensor:
    """Raw outputs for inputs that are standardised already."""
    deep_NP: Tensor = head.layers(inputs_NH)
    return deep_NP if head.linear is None else head.base + head.mix[0] * head.linear(inputs_NH) + head.mix[1] * deep_NP


def _joined(one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Raw outputs and mean targets of both, one after the other."""
    return torch.cat([one[0], two[0]]), torch.cat([mean_target(one[1]), mean_target(two[1])])


def _r2(profile_NM: Tensor, target_NM: Tensor) -> list[float | None]:
    error_M = (profile_NM - target_NM).square().nansum(0)
    spread_M = (target_NM - target_NM.nanmean(0)).square().nansum(0)
    return [
        1 - float(error) / float(spread) if float(spread) > 1e-9 else None
        for error, spread in zip(error_M, spread_M, strict=True)
    ]


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Global random state (dropout, initial weights) seeded inside, on the CPU and the head's device, and put back."""
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_cuda else []):
        torch.default_generator.manual_seed(seed)
        if on_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
