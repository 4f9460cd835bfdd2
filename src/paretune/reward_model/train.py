"""`paretune reward train`: rows with pairs or ratings and a base model in, a reward model's folder out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from paretune.bootstrap import Bootstrap
from paretune.data import Row, prompt_key, read_rows, split_rows
from paretune.data.read import ReadReport
from paretune.data.split import Split
from paretune.errors import InputError
from paretune.files import check_target_folder, file_digest, writing
from paretune.policy.backbone import context_length, fingerprint, hidden_size, load_backbone
from paretune.policy.folder import versions
from paretune.policy.renderer import Renderer
from paretune.policy.tokenizer import check_vocabulary
from paretune.progress import NO_PROGRESS, Progress
from paretune.reward_model.config import RewardConfig
from paretune.reward_model.examples import Dropped, RewardExample, encode
from paretune.reward_model.folder import save_reward_model
from paretune.reward_model.head import RewardHead
from paretune.reward_model.learner import RewardLearner, rating_levels
from paretune.reward_model.model import RewardModel
from paretune.reward_model.module import RewardModule
from paretune.reward_model.supervision import Supervision, choose_objectives
from paretune.reward_model.validate import validate
from paretune.rewards.encoder import locate_model
from paretune.tracking import STATE, check_trackers, flat, reporting
from paretune.training import Checkpoints, Journal, add_adapter, identity, resolve, run
from paretune.training.guards import measured


@dataclass(frozen=True)
class RewardTrainResult:
    """What was trained: the folder, counts, seconds, held-out figures by objective, what was dropped by cause.

    `supervision` counts by objective, over the training part: pairs, ratings, and `without`, the prompts that say
    nothing about it.
    """

    folder: str
    objectives: list[str]
    rows: int
    steps: int
    seconds: float
    supervision: dict[str, dict[str, int]]
    validation: dict[str, dict[str, Any]]
    metrics: dict[str, Any]
    dropped: dict[str, int]


def train_reward_model(
    data: Path | str,
    model: str,
    out: Path | str,
    *,
    objectives: Sequence[str] = (),
    source: str | None = None,
    preference: str | None = None,
    config: Path | str | None = None,
    settings: Sequence[str] = (),
    overwrite: bool = False,
    restart: bool = False,
    force: bool = False,
    skip_bad_rows: bool = False,
    seed: int | None = None,
    report_to: str | Sequence[str] = (),
    progress: Progress = NO_PROGRESS,
    note: Callable[[str], None] | None = None,
) -> RewardTrainResult:
    """Train a reward model with an output an objective on the pairs and ratings of rows, and save it to `out`.

    `objectives` names what is learnt (default: all that the rows speak of; `-name` is minimised), `source` is `pairs`,
    `ratings` or `both`, `preference` names the objective of the labels chosen and rejected. `config` is a YAML file of
    settings (`RewardConfig`), `settings` are `key=value` texts that go before it. Raises `InputError` for what the user
    can mend, and writes nothing then; also while another process trains into the same folder.

    A training that was killed goes on from its last checkpoint when it is called again in the same way, as
    `paretune.train` does; `restart` discards it, `force` goes on though other code wrote it. `note` is told in words
    what a person should know on the way.

    `report_to` names trackers that every logged number is passed to (see `paretune.tracking`).
    """
    out = check_target_folder(out, overwrite=overwrite)
    trackers = check_trackers(report_to)
    given = {"source": source, "preference": preference, "seed": seed}
    chosen = [*settings, *(f"{key}={value}" for key, value in given.items() if value is not None)]
    cfg = resolve(RewardConfig, file=config, settings=chosen)
    model = locate_model(model)  # a local one by its absolute path, so that the folder finds it from anywhere
    with writing(out, f"training into {out}"), TemporaryDirectory() as scratch:
        check_target_folder(out, overwrite=overwrite)  # another run may have ended between the check and the lock
        prepared = _prepare(data, cfg, objectives, skip_bad_rows=skip_bad_rows)
        causal, tokenizer = load_backbone(model, dtype=cfg.dtype)
        what = identity("reward model", cfg, prepared.everything, prepared.supervision.objectives, causal)
        kept = Checkpoints(out, what, every=cfg.save_every, keep=cfg.keep, restart=restart, force=force, note=note)
        with (
            kept.until_saved(),
            reporting(trackers, out, kept.root / STATE, _told(prepared, model), note) as report,
            closing(Journal(Path(scratch) / "train.jsonl", follow=report.record)) as journal,
        ):
            made, metrics = _train(prepared, model, causal, tokenizer, journal, kept, progress)
            journal.close()
            save_reward_model(made, out, metrics=metrics, overwrite=overwrite, journal=journal.path)
            report.figures(flat({"validation": metrics["validation"]}), part="final")
    return RewardTrainResult(
        folder=str(out),
        objectives=made.names,
        rows=metrics["rows"],
        steps=int(metrics["steps"]),
        seconds=metrics["seconds"],
        supervision=metrics["supervision"],
        validation=metrics["validation"],
        metrics={key: value for key, value in metrics.items() if isinstance(value, (int, float))},
        dropped=metrics["dropped"],
    )


def _told(prepared: _Prepared, model: str) -> dict[str, Any]:
    """What trackers are told of a training."""
    return {
        "method": "reward model",
        "base": model,
        "data": str(prepared.data),
        "objectives": prepared.supervision.names,
        "settings": prepared.config.to_dict(),
        "versions": versions(),
    }


@dataclass(frozen=True)
class _Prepared:
    """Rows, split and understood; `bad_rows` were skipped."""

    data: Path | str
    config: RewardConfig
    rows: int
    bad_rows: int
    split: Split
    supervision: Supervision

    @property
    def everything(self) -> list[Row]:
        """The rows of every part."""
        return [*self.split.train, *self.split.validation, *self.split.test]


def _prepare(data: Path | str, config: RewardConfig, objectives: Sequence[str], *, skip_bad_rows: bool) -> _Prepared:
    """Read and split the rows, and settle what is learnt of each objective."""
    report = ReadReport()
    rows = read_rows(data, skip_bad_rows=skip_bad_rows, report=report)
    split = _split(rows, config, data)
    supervision = Supervision(choose_objectives(data, rows, config, objectives, report.found.minimise), config)
    try:
        supervision.fit(split.train)
    except InputError as error:
        raise InputError(error.message, file=data, field=error.field) from None
    return _Prepared(data, config, len(rows), report.bad, split, supervision)


def _train(
    prepared: _Prepared,
    model: str,
    causal: Any,
    tokenizer: Any,
    journal: Journal,
    checkpoints: Checkpoints,
    progress: Progress,
) -> tuple[RewardModel, dict[str, Any]]:
    """Train on the base model, validate; gives the model and what goes into metrics.json."""
    config, split, supervision = prepared.config, prepared.split, prepared.supervision
    renderer = Renderer(tokenizer, [])
    check_vocabulary(renderer, causal, model)
    dropped, longest = Dropped(), min(config.max_length, context_length(causal))
    train, held_out = (
        encode(part, supervision, renderer, max_length=longest, dropped=dropped)
        for part in (split.train, split.validation)
    )
    counts = supervised(train, supervision, prepared.data)
    module = _module(config, causal, supervision, train)
    learner = RewardLearner(train, supervision, module.head, config)
    final = run(
        module,
        learner,
        config,
        pad_id=tokenizer.pad_token_id,
        journal=journal,
        progress=progress,
        checkpoints=checkpoints,
    )
    metadata = {
        "dtype": config.dtype,
        "base_fingerprint": fingerprint(causal),
        "data": _described(prepared.data, config),
        "config": config.to_dict(),
        "train_prompts": sorted({prompt_key(each.row.prompt) for each in train}),
    }
    made = RewardModel(module.eval(), tokenizer, renderer, supervision.objectives, model, metadata)
    bootstrap = Bootstrap(config.bootstrap, config.seed)
    lost = {"bad_rows": prepared.bad_rows, **dropped.to_dict()}
    found = (
        measured(lambda: validate(made, held_out, bootstrap, progress=progress), checkpoints.note) if held_out else {}
    )
    failed = {"validation_failed": found.pop("validation_failed")} if "validation_failed" in found else {}
    metrics = {
        **final,
        "rows": prepared.rows,
        "train_prompts": len(train),
        "validation_prompts": len(held_out),
        "test_rows": len(split.test),
        "supervision": counts,
        "dropped": {key: value for key, value in lost.items() if value},
        "validation": found,
        **failed,
    }
    return made, metrics


def _split(rows: Sequence[Row], config: RewardConfig, data: Path | str) -> Split:
    try:
        return split_rows(rows, **_split_settings(config))
    except InputError as error:
        raise InputError(
            f"{error.message}; give more rows, --set near_duplicates=0 to part near-duplicates, or --set validation=0 "
            "to train on all",
            file=data,
        ) from None


def supervised(
    examples: Sequence[RewardExample], supervision: Supervision, data: Path | str
) -> dict[str, dict[str, int]]:
    """Pairs, ratings and prompts without either, by objective. Raises `InputError` where an objective has nothing left.

    That happens where all that is said of it was too long, or about equal texts.
    """
    out = {}
    for m, name in enumerate(supervision.names):
        pairs = [sum(each.objective == m for each in example.pairs) for example in examples]
        ratings = [sum(each.objective == m for each in example.ratings) for example in examples]
        without = sum(one + two == 0 for one, two in zip(pairs, ratings, strict=True))
        out[name] = {"pairs": sum(pairs), "ratings": sum(ratings), "without": without}
        if not sum(pairs) + sum(ratings):
            raise InputError(
                f"nothing is left to learn objective '{name}' from: all pairs are too long, tied or of equal texts; "
                "see max_length",
                file=data,
            )
    return out


def _module(
    config: RewardConfig, causal: Any, supervision: Supervision, examples: Sequence[RewardExample]
) -> RewardModule:
    """Backbone with a fresh adapter, and a fresh head that knows the ratings' statistics."""
    peft = add_adapter(causal, config)
    torch.manual_seed(config.seed)
    head = RewardHead(hidden_size(causal), supervision.units, supervision.levels, config.head)
    for m, (scale, unit) in enumerate(zip(supervision.scales, supervision.units, strict=True)):
        if unit == "rating" and scale is not None:
            head.rating_mean[m], head.rating_std[m] = scale.mean, scale.std
        elif unit == "ordinal":
            head.start_cuts(m, rating_levels(head, examples, m))
    return RewardModule(peft, head.to(causal.device))


def _described(data: Path | str, config: RewardConfig) -> dict[str, Any]:
    """What reward.json says of the data."""
    digest = file_digest(data) if Path(data).is_file() else None
    return {"path": str(data), "sha256": digest, "split": _split_settings(config)}


def _split_settings(config: RewardConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ("seed", "validation", "test", "near_duplicates")}
