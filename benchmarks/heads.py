"""How well the sensing head senses, by kind and by what it reads, against a linear probe and a constant.

    python benchmarks/heads.py SCORED.jsonl [--targets chosen|wanted|pareto|top-k] [--model M] [--folds 5] [--json]

Read-outs are the base model's. Every prompt is held out once (`--folds` parts; fitting a head holds out more within the
rest), so figures are over all prompts: R2 about the mean of the truth, the probe a ridge regression from the same
read-out whose strength is chosen by leave-one-out, coverage the share of targets inside the head's 80% interval.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import run
from torch import Tensor

from paretune.bootstrap import weighted_r2
from paretune.data import build_pairs, fit_objectives, prompt_key, read_rows
from paretune.demo import demo_model
from paretune.errors import InputError
from paretune.evaluation.head import linear_probe
from paretune.methods.examples import Dropped, Example, encode
from paretune.methods.prepare import choose_objectives
from paretune.methods.sensing import good_profiles, readouts, target_matrix
from paretune.methods.sga.config import SgaConfig
from paretune.policy import Renderer
from paretune.policy.backbone import decoder_layers, load_backbone
from paretune.policy.head import HeadConfig, SensingHead
from paretune.progress import NO_PROGRESS
from paretune.training import resolve
from paretune.training.head_fit import fit_head, make_folds

PAPER = HeadConfig()


def robust() -> SgaConfig:
    """The settings of the preset `robust`."""
    from paretune.methods.registry import get_method

    how = get_method("sga")
    return resolve(SgaConfig, presets=how.presets, default_preset=how.default_preset)


def arms(config: HeadConfig) -> dict[str, HeadConfig]:
    """The heads compared: the paper's, `robust`'s, and `robust`'s with one thing changed."""
    last = {"readout": "last", "layer": 1.0}
    return {
        "paper's shape": PAPER,
        "robust": config,
        "robust, last token": replace(config, **last),
        "robust, no linear path": replace(config, skip=False),
        "robust, binned": replace(config, kind="binned"),
        "robust, gaussian": replace(config, kind="gaussian"),
    }


def held_out(
    config: HeadConfig,
    settings: SgaConfig,
    features_NH: Tensor,
    targets_NGM: Tensor,
    mean_NM: Tensor,
    folds: int,
    prompts: list[str],
) -> dict[str, list[float]]:
    """R2 of head and probe and coverage and width of intervals per objective, every prompt held out once."""
    names = [str(m) for m in range(mean_NM.shape[1])]
    parts = make_folds(prompts, folds, torch.Generator().manual_seed(0))
    guess, probe, low, high = (torch.full_like(mean_NM, float("nan")) for _ in range(4))
    for part in parts:
        train, held = part.train, part.held
        torch.manual_seed(0)
        head = SensingHead(features_NH.shape[1], len(names), config)
        known = mean_NM[train]
        mean_M = known.nanmean(0)
        head.set_statistics(mean_M, (known - mean_M).square().nanmean(0).sqrt(), start_at_mean=True)
        fit_head(
            head,
            features_NH[train],
            targets_NGM[train],
            None,
            epochs=settings.head_epochs,
            lr=settings.head_lr,
            seed=0,
            standardise=settings.standardise,
            groups=[prompts[i] for i in train.tolist()],
        )
        with torch.no_grad():
            found = head.predict(head(features_NH[held]))
        guess[held] = found.profile_BM
        assert found.low_BM is not None and found.high_BM is not None
        low[held], high[held] = found.low_BM, found.high_BM
        ridge = linear_probe(features_NH[train].numpy(), known.double().numpy(), features_NH[held].numpy(), names)
        probe[held] = torch.tensor(ridge.predictions, dtype=torch.float32)
    inside = ((mean_NM >= low) & (mean_NM <= high)).float().masked_fill(torch.isnan(mean_NM), float("nan"))
    return {
        "head_r2": r2(mean_NM, guess),
        "probe_r2": r2(mean_NM, probe),
        "coverage": inside.nanmean(0).tolist(),
        "width": (high - low).mean(0).tolist(),
    }


def r2(truth_NM: Tensor, guess_NM: Tensor) -> list[float]:
    """Per objective, about the mean of the truth."""
    out = []
    for truth, guess in zip(truth_NM.T.double().numpy(), guess_NM.T.double().numpy(), strict=True):
        known = np.isfinite(truth) & np.isfinite(guess)
        out.append(float(weighted_r2(truth[known], guess[known], np.ones((1, known.sum())))[0]))
    return out


def examples_of(arguments: argparse.Namespace, tokenizer: Any, readout: str) -> tuple[list[Example], list[str]]:
    """The rows as training sees them."""
    rows = read_rows(arguments.data)
    if arguments.targets == "wanted" and not any(row.wanted for row in rows):
        raise InputError("no row has a 'wanted' profile, which --targets wanted needs", file=arguments.data)
    chosen = choose_objectives(arguments.data, rows, ())
    if not chosen:
        raise InputError("the rows have no scores; run `paretune score` first", file=arguments.data)
    objectives = fit_objectives(rows, chosen)
    pairs, _ = build_pairs(rows, objectives)
    renderer = Renderer(tokenizer, objectives)
    options = {"targets": arguments.targets, "readout": readout, "max_length": 1024}
    examples = encode(pairs, renderer, dropped=Dropped(), **options)
    prompts = len({prompt_key(each.row.prompt) for each in examples})
    if prompts < 2 * arguments.folds:
        raise InputError(
            f"{prompts} {'prompt has' if prompts == 1 else 'prompts have'} two scored completions that differ; "
            f"--folds {arguments.folds} needs {2 * arguments.folds}",
            file=arguments.data,
        )
    return examples, [each.name for each in objectives]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="quality of sensing heads")
    parser.add_argument("data", type=Path)
    parser.add_argument("--targets", default="chosen", choices=["chosen", "wanted", "pareto", "top-k"])
    parser.add_argument("--model", help="base model (default: the demo's)")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.folds < 2:
        parser.error("--folds must be at least 2")
    causal, tokenizer = load_backbone(arguments.model or str(demo_model()))
    settings = robust()
    found: dict[str, Any] = {}
    names: list[str] = []
    for arm, config in arms(settings.head).items():
        examples, names = examples_of(arguments, tokenizer, config.readout)
        layer = config.layer_of(len(decoder_layers(causal)))
        features_NH = readouts(causal, examples, tokenizer.pad_token_id, NO_PROGRESS, layer)
        targets = good_profiles(examples, names), target_matrix(examples, names)
        found[arm] = held_out(
            config, settings, features_NH, *targets, arguments.folds, [prompt_key(each.row.prompt) for each in examples]
        )
    if arguments.json:
        print(json.dumps({"objectives": names, "targets": arguments.targets, "heads": found}))
        return
    print(f"targets {arguments.targets}; objectives {', '.join(names)}")
    print("| head | R2 | linear probe's R2 | coverage of the 80% interval | its width |\n|---|---|---|---|---|")
    for arm, each in found.items():
        print(f"| {arm} | {' | '.join(' / '.join(f'{value:.2f}' for value in each[key]) for key in each)} |")


if __name__ == "__main__":
    run(main)
