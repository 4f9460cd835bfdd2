"""`paretune train`: data and a base model in, a policy folder out. One pipeline for every method."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paretune.errors import InputError
from paretune.files import check_target_folder, left_by_ended, writing
from paretune.methods.base import Method
from paretune.methods.prepare import Prepared, encode_split, prepare, renderer_settings
from paretune.methods.registry import get_method
from paretune.methods.setup import Setup, fit_one
from paretune.policy import Policy, Renderer, load_policy, save_policy
from paretune.policy.backbone import context_length, load_backbone
from paretune.policy.folder import versions
from paretune.policy.tokenizer import check_vocabulary
from paretune.progress import NO_PROGRESS, Progress
from paretune.rewards.encoder import locate_model
from paretune.tracking import STATE, check_trackers, reporting
from paretune.training import Checkpoints, Journal, TrainConfig, identity, resolve
from paretune.training.guards import missing_rates, told_missing
from paretune.training.journal import Follow


@dataclass(frozen=True)
class TrainResult:
    """What was trained: the folder, counts, seconds, the last and the validation figures, rows dropped by cause."""

    folder: str
    method: str
    rows: int
    pairs: int
    steps: int
    seconds: float
    metrics: dict[str, Any]
    dropped: dict[str, int]


def train(
    method: str,
    data: Path | str,
    model: str | None,
    out: Path | str,
    *,
    start: Path | str | None = None,
    config: Path | str | None = None,
    settings: Sequence[str] = (),
    objectives: Sequence[str] = (),
    overwrite: bool = False,
    restart: bool = False,
    force: bool = False,
    skip_bad_rows: bool = False,
    strict: bool = False,
    seed: int | None = None,
    report_to: str | Sequence[str] = (),
    progress: Progress = NO_PROGRESS,
    note: Callable[[str], None] | None = None,
) -> TrainResult:
    """Train a policy by `method` on scored rows and save it to the folder `out`.

    `start` is a policy folder by the same method whose training goes on, in place of a base `model`: with its adapter,
    head, objectives and scales.

    `config` is a YAML file of settings, `settings` are `key=value` texts that go before it; `objectives` names the
    objectives to use (default: all). Raises `InputError` for what the user can mend, and writes nothing then; also
    while another process trains into the same folder.

    A training that was killed goes on from its last checkpoint when it is called again in the same way, and ends in the
    same policy; called in another way it raises `InputError`, unless `restart` discards what there is or,
    where it is the code alone that differs, `force` goes on. `note` is told in words what a person should know on the
    way.

    `report_to` names trackers that every logged number is passed to (see `paretune.tracking`).
    """
    out = check_target_folder(out, overwrite=overwrite)
    trackers = check_trackers(report_to)
    how = get_method(method)
    chosen = [*settings, *([f"seed={seed}"] if seed is not None else [])]
    if (model is None) == (start is None):
        raise InputError("give the base model, or the policy whose training goes on: one of the two")
    before = _start(start, how, objectives) if start is not None else None
    cfg = resolve(
        how.config,
        presets=how.presets,
        default_preset=how.default_preset,
        file=config,
        settings=chosen,
        before=before.metadata.get("config", {}) if before is not None else None,
    )
    if before is not None:
        _check_same(before, cfg, start)
    # a local one by its absolute path, so that the policy finds it from any folder
    model = locate_model(model) if model is not None else None
    with writing(out, f"training into {out}"):
        check_target_folder(out, overwrite=overwrite)  # another run may have ended between the check and the lock
        fitted = before.objectives if before is not None else ()
        prepared = prepare(how, cfg, data, objectives, skip_bad_rows=skip_bad_rows, strict=strict, fitted=fitted)
        return _into(
            out,
            (how, cfg, prepared, model, before),
            start,
            overwrite=overwrite,
            restart=restart,
            force=force,
            strict=strict,
            trackers=trackers,
            progress=progress,
            note=note,
        )


def train_on(
    method: str,
    prepared: Prepared,
    out: Path,
    *,
    start: Path,
    settings: Sequence[str] = (),
    force: bool = False,
    follow: Follow | None = None,
    progress: Progress = NO_PROGRESS,
    note: Callable[[str], None] | None = None,
) -> TrainResult:
    """As `train(method, ..., start=POLICY)`, on rows that were read, split and described by the caller.

    `follow` is told of every record that is logged (see `Journal`).
    """
    out = check_target_folder(out, overwrite=False)
    how = get_method(method)
    before = _start(start, how, ())
    cfg = settings_after(before, settings, start)
    with writing(out, f"training into {out}"):
        job = (how, cfg, prepared, None, before)
        return _into(out, job, start, force=force, follow=follow, progress=progress, note=note)


def settings_after(before: Policy, settings: Sequence[str], start: Path) -> TrainConfig:
    """Those of the policy whose training goes on, but for `settings`. Raises `InputError` for what cannot change."""
    how = get_method(before.method)
    cfg = resolve(how.config, presets=how.presets, settings=settings, before=before.metadata.get("config", {}))
    _check_same(before, cfg, start)
    return cfg


def _into(
    out: Path,
    job: tuple[Method, TrainConfig, Prepared, str | None, Policy | None],
    start: Path | str | None,
    *,
    overwrite: bool = False,
    restart: bool = False,
    force: bool = False,
    strict: bool = False,
    trackers: Sequence[str] = (),
    follow: Follow | None = None,
    progress: Progress,
    note: Callable[[str], None] | None,
) -> TrainResult:
    """Load, go on from a checkpoint if there is one, train, and save."""
    with closing(Journal(_journal_path(out))) as journal:
        try:
            setup = _load(*job, out, journal, strict, progress)
            how, cfg, prepared, *_ = job
            rows = [*prepared.split.train, *prepared.split.validation, *prepared.split.test]
            what = identity(how.name, cfg, rows, prepared.objectives, setup.causal, start)
            kept = Checkpoints(out, what, every=cfg.save_every, keep=cfg.keep, restart=restart, force=force, note=note)
            setup.checkpoints = kept
            told = _told(setup)
            with kept.until_saved(), reporting(trackers, out, kept.root / STATE, told, note) as report:
                journal.follow = follow or report.record
                result = _train(setup, overwrite)
                report.figures(result.metrics, part="final")
                return result
        finally:
            journal.path.unlink(missing_ok=True)


def _told(setup: Setup) -> dict[str, Any]:
    """What trackers are told of a training."""
    data = {key: setup.prepared.data[key] for key in ("path", "sha256") if key in setup.prepared.data}
    return {
        "method": setup.method.name,
        "base": setup.base,
        "data": data,
        "objectives": setup.names,
        "settings": setup.config.to_dict(),
        "versions": versions(),
    }


def _start(start: Path | str, how: Method, objectives: Sequence[str]) -> Policy:
    """The policy whose training goes on, which must be the method's own."""
    if how.fit is not None:
        raise InputError(f"the training of a policy by '{how.name}' cannot go on", file=start)
    policy = load_policy(start)
    if policy.method != how.name:
        raise InputError(f"was trained by '{policy.method}', so it cannot go on with '{how.name}'", file=start)
    if objectives:
        raise InputError("training goes on with the policy's own objectives; leave them out", file=start)
    return policy


FIXED = (
    *("dtype", "lora_r", "lora_alpha", "lora_dropout", "lora_layers", "style", "snap", "head"),
    *("condition", "weight_temperature", "scale"),
)
"""Settings that a policy has for good."""


def _check_same(before: Policy, cfg: TrainConfig, start: Path | str | None) -> None:
    stored, now = before.metadata.get("config", {}), cfg.to_dict()
    for key in FIXED:
        if key in stored and stored[key] != now.get(key):
            found = f"found {now.get(key)}" if key != "head" else "found others"
            raise InputError(f"was trained with {key}={stored[key]}, which cannot change; {found}", file=start)


def _load(
    how: Method,
    cfg: TrainConfig,
    prepared: Prepared,
    model: str | None,
    start: Policy | None,
    out: Path,
    journal: Journal,
    strict: bool,
    progress: Progress,
) -> Setup:
    """Model and renderer, and the rows encoded for them."""
    if start is not None:
        causal, renderer, base = start.causal, start.renderer, start.base
    else:
        assert model is not None
        base = model
        causal, tokenizer = load_backbone(base, dtype=cfg.dtype)
        renderer = Renderer(
            tokenizer, prepared.objectives, **renderer_settings(cfg, prepared.split.train, prepared.objectives)
        )
        check_vocabulary(renderer, causal, base)
    encoded = encode_split(how, cfg, prepared, renderer, context_length(causal), strict=strict)
    return Setup(how, cfg, base, causal, renderer, prepared, encoded, journal, out, start, strict, progress)


def _train(setup: Setup, overwrite: bool) -> TrainResult:
    """Train, and save."""
    how, prepared = setup.method, setup.prepared
    missing = missing_rates(prepared.split.train, setup.names)
    if setup.checkpoints is not None:
        told_missing(missing, setup.checkpoints.note)
    done = (how.fit or fit_one)(setup)
    encoded = setup.encoded  # a method's own fit may have built other pairs
    metrics = done.metrics | {
        "train_prompts": len(encoded.train),
        "validation_prompts": len(encoded.validation),
        "test_rows": len(prepared.split.test),
        "near_duplicates": prepared.split.joined,
        "rows": prepared.rows,
        "pairs": encoded.pairs,
        "dropped": encoded.dropped,
        "missing_scores": missing,
    }
    setup.journal.close()
    save_policy(done.policy, setup.out, metrics=metrics, overwrite=overwrite, journal=setup.journal.path)
    return TrainResult(
        folder=str(setup.out),
        method=how.name,
        rows=prepared.rows,
        pairs=encoded.pairs,
        steps=int(metrics["steps"]),
        seconds=metrics["seconds"],
        metrics={key: value for key, value in metrics.items() if isinstance(value, (int, float, str))},
        dropped=encoded.dropped,
    )


def _journal_path(out: Path) -> Path:
    """A log of this process's own beside the output; logs that killed runs left there are removed."""
    for old in left_by_ended(out, "train.jsonl"):
        old.unlink(missing_ok=True)
    return out.with_name(f".{out.name}.{os.getpid()}.train.jsonl")


def default_config(method: str) -> dict[str, Any]:
    """The resolved default settings of a method, for help texts and documents."""
    how = get_method(method)
    return dataclasses.asdict(resolve(how.config, presets=how.presets, default_preset=how.default_preset))
