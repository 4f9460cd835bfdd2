"""`paretune train`: data and a base model in, a policy folder out. One pipeline for every method."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paretune.files import check_target_folder, locked
from paretune.methods.base import Method
from paretune.methods.prepare import Encoded, encode_split, prepare, train_keys
from paretune.methods.registry import get_method
from paretune.methods.sensing import refit, target_matrix, warm_up
from paretune.methods.settings import SensingConfig
from paretune.methods.validate import validate
from paretune.policy import Policy, Renderer, save_policy
from paretune.policy.backbone import context_length, decoder_layers, fingerprint, hidden_size, load_backbone
from paretune.policy.head import SensingHead
from paretune.policy.tokenizer import check_vocabulary
from paretune.progress import NO_PROGRESS, Progress
from paretune.rewards.encoder import locate_model
from paretune.training import Journal, TrainConfig, TrainModule, add_adapter, resolve, run


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
    model: str,
    out: Path | str,
    *,
    config: Path | str | None = None,
    settings: Sequence[str] = (),
    objectives: Sequence[str] = (),
    overwrite: bool = False,
    skip_bad_rows: bool = False,
    strict: bool = False,
    seed: int | None = None,
    progress: Progress = NO_PROGRESS,
) -> TrainResult:
    """Train a policy by `method` on scored rows and save it to the folder `out`.

    `config` is a YAML file of settings, `settings` are `key=value` texts that go before it; `objectives` names the
    objectives to use (default: all). Raises `InputError` for what the user can mend, and writes nothing then; also
    while another process trains into the same folder.
    """
    out = check_target_folder(out, overwrite=overwrite)
    how = get_method(method)
    chosen = [*settings, *([f"seed={seed}"] if seed is not None else [])]
    cfg = resolve(how.config, presets=how.presets, default_preset=how.default_preset, file=config, settings=chosen)
    model = locate_model(model)  # a local one by its absolute path, so that the policy finds it from any folder
    with locked(out.with_name(f".{out.name}.lock"), f"training into {out}"):
        check_target_folder(out, overwrite=overwrite)  # another run may have ended between the check and the lock
        return _train(how, cfg, data, model, out, objectives, overwrite, skip_bad_rows, strict, progress)


def _train(
    how: Method,
    cfg: TrainConfig,
    data: Path | str,
    model: str,
    out: Path,
    objectives: Sequence[str],
    overwrite: bool,
    skip_bad_rows: bool,
    strict: bool,
    progress: Progress,
) -> TrainResult:
    """Read the data, load the model, train, fit the head, validate, save."""
    prepared = prepare(how, cfg, data, objectives, skip_bad_rows=skip_bad_rows, strict=strict)
    causal, tokenizer = load_backbone(model, dtype=cfg.dtype)
    renderer = Renderer(tokenizer, prepared.objectives, **_renderer_settings(cfg))
    check_vocabulary(renderer, causal, model)
    encoded = encode_split(how, cfg, prepared, renderer, context_length(causal), strict=strict)
    module = _module(how, cfg, causal, encoded, [each.name for each in prepared.objectives])
    names = [each.name for each in prepared.objectives]
    learner = how.learner(encoded.train, cfg, names)
    if isinstance(cfg, SensingConfig):
        learner.head = module.head  # type: ignore[attr-defined]
        learner.sensed = warm_up(module, encoded, names, cfg, tokenizer.pad_token_id, progress)  # type: ignore[attr-defined]
    journal = Journal(_journal_path(out))
    try:
        final = run(module, learner, cfg, pad_id=tokenizer.pad_token_id, journal=journal, progress=progress)
        policy = _policy(how, cfg, model, module, renderer, prepared.data, encoded)
        if isinstance(cfg, SensingConfig):
            final |= refit(policy, encoded, cfg, progress)
        metrics = final | validate(policy, encoded.validation, progress=progress)
        metrics |= {"train_prompts": len(encoded.train), "validation_prompts": len(encoded.validation)}
        metrics |= {
            "test_rows": len(prepared.split.test),
            "near_duplicates": prepared.split.joined,
            "rows": prepared.rows,
            "pairs": encoded.pairs,
            "dropped": encoded.dropped,
        }
        journal.close()
        save_policy(policy, out, metrics=metrics, overwrite=overwrite, journal=journal.path)
    finally:
        journal.close()
        journal.path.unlink(missing_ok=True)
    return TrainResult(
        folder=str(out),
        method=how.name,
        rows=prepared.rows,
        pairs=encoded.pairs,
        steps=int(final["steps"]),
        seconds=final["seconds"],
        metrics={key: value for key, value in metrics.items() if isinstance(value, (int, float, str))},
        dropped=encoded.dropped,
    )


def _journal_path(out: Path) -> Path:
    """A log of this process's own beside the output; logs that killed runs left there are removed."""
    for old in out.parent.glob(f".{glob.escape(out.name)}.*.train.jsonl"):
        owner = old.name.removesuffix(".train.jsonl").rpartition(".")[2]
        if owner.isdigit() and not _alive(int(owner)):
            old.unlink(missing_ok=True)
    return out.with_name(f".{out.name}.{os.getpid()}.train.jsonl")


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _renderer_settings(config: TrainConfig) -> dict[str, Any]:
    """Style and snap, where the method renders profiles."""
    return {key: getattr(config, key) for key in ("style", "snap") if hasattr(config, key)}


def _module(how: Method, config: TrainConfig, causal: Any, encoded: Encoded, names: Sequence[str]) -> TrainModule:
    """Backbone with a fresh adapter, and a fresh head whose statistics are the training targets'."""
    peft = add_adapter(causal, config)
    if not how.senses:
        return TrainModule(peft, None)
    torch.manual_seed(config.seed)
    assert isinstance(config, SensingConfig)
    head = SensingHead(hidden_size(causal), len(names), config.head)
    targets_NM = target_matrix(encoded.train, names)
    mean_M = targets_NM.nanmean(0)
    std_M = (targets_NM - mean_M).square().nanmean(0).sqrt()
    head.set_statistics(mean_M, std_M, start_at_mean=config.standardise)
    layer = config.head.layer_of(len(decoder_layers(causal)))
    return TrainModule(
        peft, head.to(causal.device), backbone_grad_scale=config.backbone_grad_scale, readout_layer=layer
    )


def _policy(
    how: Method,
    config: TrainConfig,
    base: str,
    module: TrainModule,
    renderer: Renderer,
    data: dict[str, Any],
    encoded: Encoded,
) -> Policy:
    module.eval()
    metadata = {
        "dtype": config.dtype,
        "base_fingerprint": fingerprint(module.causal),
        "data": data,
        "config": config.to_dict(),
        "mean_profile": encoded.mean_profile,
        "train_prompts": train_keys(encoded.train),
        "adapter": True,
    }
    return Policy(
        causal=module.causal,
        tokenizer=renderer.tokenizer,
        renderer=renderer,
        objectives=list(renderer.objectives),
        method=how.name,
        base=base,
        head=module.head.eval() if module.head is not None else None,
        peft=module.peft,
        metadata=metadata,
    )


def default_config(method: str) -> dict[str, Any]:
    """The resolved default settings of a method, for help texts and documents."""
    how = get_method(method)
    return dataclasses.asdict(resolve(how.config, presets=how.presets, default_preset=how.default_preset))
