"""The head apart from joint training: read-outs of prompts, the warm-up before it and the refit after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paretune.data import prompt_key
from paretune.methods.examples import Example
from paretune.methods.pairwise import padded
from paretune.methods.prepare import Encoded
from paretune.methods.requests import SensedRows
from paretune.methods.settings import SensingConfig
from paretune.policy import Policy
from paretune.policy.backbone import decoder_layers
from paretune.policy.engine import by_length, prefill
from paretune.policy.head import SensingHead
from paretune.progress import Progress
from paretune.training.head_fit import HeadFit, fit_head
from paretune.training.module import TrainModule

READOUT_BATCH = 32


def target_matrix(examples: Sequence[Example], names: Sequence[str]) -> Tensor:
    """Mean targets [N, M], NaN where one is missing."""
    return torch.tensor(
        [[target.get(name, math.nan) for name in names] for target in (each.target for each in examples)],
        dtype=torch.float32,
    )


def good_profiles(examples: Sequence[Example], names: Sequence[str]) -> Tensor:
    """Good profiles [N, G, M], NaN where one is missing."""
    return padded([[[good.get(name, math.nan) for name in names] for good in each.goods] for each in examples])


def readouts(
    causal: Any, examples: Sequence[Example], pad_id: int, progress: Progress, layer: int | None = None
) -> Tensor:
    """Read-out hidden states [N, H] of the examples' prompts after `layer`, float32."""
    out: list[Tensor | None] = [None] * len(examples)
    with progress("read out prompts", len(examples)) as task:
        for index in by_length([len(each.prefix) for each in examples], READOUT_BATCH):
            spans = [examples[i].span for i in index]
            state = prefill(causal, [examples[i].prefix for i in index], pad_id, layer=layer, spans=spans)
            for i, row_H in zip(index, state.readout_BH.float(), strict=True):
                out[i] = row_H
            task.advance(len(index))
    return torch.stack([row for row in out if row is not None])


def warm_up(
    module: TrainModule, encoded: Encoded, names: Sequence[str], config: SensingConfig, pad_id: int, progress: Progress
) -> SensedRows | None:
    """Fit the head on the base model's read-outs before joint training; what it senses of the training rows.

    The profiles are out-of-fold: each is predicted by a head that was fitted without that row, because that is what a
    policy meets when it serves. `None` when `head_warmup` is 0; a head that standardises its inputs still takes their
    statistics.
    """
    assert module.head is not None
    module.eval()
    if not config.head_warmup:
        if config.head.standardise_input:
            layer = config.head.layer_of(len(decoder_layers(module.causal)))
            module.head.set_input(readouts(module.causal, encoded.train, pad_id, progress, layer))
        return None
    fit = _fit(module.head, module.causal, encoded, names, config.head_warmup, config, pad_id, progress)
    return SensedRows.of(names, fit.out_of_fold.cpu(), target_matrix(encoded.train, names))


def refit(policy: Policy, encoded: Encoded, config: SensingConfig, progress: Progress) -> dict[str, float]:
    """Fit the head alone on the trained backbone's read-outs; {} when `head_epochs` is 0."""
    assert policy.head is not None
    if not config.head_epochs:
        policy.head.calibrated.fill_(False)  # what the warm-up measured is not true of the jointly trained head
        return {}
    pad_id = policy.tokenizer.pad_token_id
    fit = _fit(policy.head, policy.causal, encoded, policy.names, config.head_epochs, config, pad_id, progress)
    return {"head_validation_loss": fit.loss}


def _fit(
    head: SensingHead,
    causal: Any,
    encoded: Encoded,
    names: Sequence[str],
    epochs: int,
    config: SensingConfig,
    pad_id: int,
    progress: Progress,
) -> HeadFit:
    layer = head.config.layer_of(len(decoder_layers(causal)))

    def data(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
        features_NH = readouts(causal, examples, pad_id, progress, layer)
        return features_NH, good_profiles(examples, names).to(features_NH.device)

    train = data(encoded.train)
    with progress("fit the head", 1) as task:
        fit = fit_head(
            head,
            *train,
            data(encoded.validation) if encoded.validation else None,
            epochs=epochs,
            lr=config.head_lr,
            seed=config.seed,
            standardise=config.standardise,
            groups=[prompt_key(each.row.prompt) for each in encoded.train],
        )
        task.advance()
    return fit
