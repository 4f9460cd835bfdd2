"""The loop every method shares: batches, accumulation, the guard, the log.

A method gives a `Learner`: how an item is packed and what its loss is. The loop draws every order from (seed, epoch),
groups an effective batch into forward passes by length, divides sums of losses by counts of the whole effective batch
(so accumulation changes nothing), stops on a non-finite loss or gradient before the optimizer step, and logs every
number as JSON Lines.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from paretune.errors import InputError
from paretune.files import dump_line
from paretune.policy.packed import LENGTH_BUCKET, Packed, collate
from paretune.progress import NO_PROGRESS, Progress
from paretune.training.config import TrainConfig
from paretune.training.module import AdapterModule
from paretune.training.optimizer import optimizer_for


class Item(Protocol):
    """One prompt of an epoch, ready to compute: its packed row, and a name for messages."""

    @property
    def packed(self) -> Packed:
        """The packed row."""

    @property
    def name(self) -> str:
        """The row's id."""


I = TypeVar("I", bound=Item)  # noqa: E741

SHOWN = ("dpo", "likelihood", "contrast", "sense", "pair", "rating")
"""Logged numbers that a progress bar has room for."""


class Learner(Protocol[I]):
    """What a method brings to the loop."""

    needs_reference: bool

    def __len__(self) -> int:
        """Number of training prompts."""

    def item(self, index: int, epoch: int) -> I:
        """The item of a prompt in an epoch; every draw in it is keyed by (seed, epoch, row)."""

    def counts(self, items: Sequence[I]) -> dict[str, float]:
        """Denominators of an effective batch, such as pairs or label tokens."""

    def loss(
        self, out: Any, reference: Tensor | None, items: Sequence[I], counts: dict[str, float]
    ) -> tuple[Tensor, dict[str, float]]:
        """The share of these items in the effective batch's loss, and what to log (shares are added up).

        `out` is what the module's forward gave.
        """


class DivergedError(InputError):
    """Training met a number that is not finite; nothing was written."""


@dataclass
class Journal:
    """train.jsonl: one record a step, flushed as it is written."""

    path: Path
    records: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("w", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Append a record; numbers are finite by now."""
        self.records.append(record)
        self._file.write(dump_line(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def order(count: int, seed: int, epoch: int) -> list[int]:
    """A permutation that depends on (seed, epoch) alone."""
    indices = list(range(count))
    random.Random(f"{seed}:{epoch}:order").shuffle(indices)
    return indices


def micro_batches(items: Sequence[I], budget: int) -> list[list[I]]:
    """Items in groups whose padded size (rows x longest, bucketed) stays within `budget` tokens; shortest first."""
    groups: list[list[I]] = []
    for length, item in sorted(((each.packed.length, each) for each in items), key=lambda pair: pair[0]):
        width = -(-length // LENGTH_BUCKET) * LENGTH_BUCKET
        if groups and (len(groups[-1]) + 1) * width <= budget:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def learning_rate(config: TrainConfig, step: int, total: int) -> float:
    """The factor on the learning rate at a step (0-based) of `total`: linear warm-up, then the schedule."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, total - config.warmup_steps)
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1 - done if config.schedule == "linear" else 1.0


def run(
    module: AdapterModule,
    learner: Learner[I],
    config: TrainConfig,
    *,
    pad_id: int,
    journal: Journal,
    progress: Progress = NO_PROGRESS,
) -> dict[str, float]:
    """Train; returns the last logged numbers, steps, tokens and tokens per second."""
    optimizer = optimizer_for(module, config)
    per_epoch = math.ceil(len(learner) / config.batch_size)
    total, step, tokens = per_epoch * config.epochs, 0, 0
    start = time.monotonic()
    torch.manual_seed(config.seed)  # dropout; every other draw is keyed
    module.train()
    record: dict[str, Any] = {}
    begin = getattr(learner, "begin_epoch", None)  # for learners with stages, and few are
    with progress("train", total) as task:
        for epoch in range(config.epochs):
            if begin is not None:
                begin(epoch, module)
            indices = order(len(learner), config.seed, epoch)
            for at in range(0, len(indices), config.batch_size):
                items = [learner.item(i, epoch) for i in indices[at : at + config.batch_size]]
                factor = learning_rate(config, step, total)
                optimizer.set_factor(factor)
                logged, used = _accumulate(module, learner, items, config, pad_id)
                _guard(logged, items)
                logged["grad_norm"] = optimizer.step(config.clip)
                _guard(logged, items)
                step, tokens = step + 1, tokens + used
                seconds = time.monotonic() - start
                record = {"step": step, "epoch": epoch, **logged, "lr": config.lr * factor, "tokens": tokens}
                record["tokens_per_second"] = round(tokens / max(seconds, 1e-9), 2)
                journal.write(record)
                task.update(_summary(record))
                task.advance()
    module.eval()
    last = {key: value for key, value in record.items() if key not in ("step", "epoch", "lr")}
    return last | {"steps": total, "seconds": round(time.monotonic() - start, 3)}


def _accumulate(
    module: AdapterModule, learner: Learner[I], items: Sequence[I], config: TrainConfig, pad_id: int
) -> tuple[dict[str, float], int]:
    """Forward and backward over an effective batch; gradients are left in the parameters."""
    device = next(module.parameters()).device
    counts = learner.counts(items)
    logged: dict[str, float] = {}
    tokens = 0
    for group in micro_batches(items, config.micro_tokens):
        batch = collate([item.packed for item in group], pad_id).to(device)
        reference = module.reference_logp(batch) if learner.needs_reference else None
        loss, parts = learner.loss(module(batch), reference, group, counts)
        loss.backward()  # type: ignore[no-untyped-call]
        for key, value in {"loss": float(loss.detach()), **parts}.items():
            logged[key] = logged.get(key, 0.0) + value
        tokens += batch.tokens
    return logged, tokens


def _guard(numbers: dict[str, float], items: Sequence[Item]) -> None:
    """Stop when a number is not finite; the weights have not been touched by this batch."""
    bad = [key for key, value in numbers.items() if not math.isfinite(value)]
    if bad:
        names = ", ".join(item.name for item in items[:8])
        raise DivergedError(
            f"training stopped before the step: {', '.join(bad)} not finite. Rows in the batch: {names}"
            f"{', ...' if len(items) > 8 else ''}. Lower lr, or look at these rows and their scores"
        )


def _summary(record: dict[str, Any]) -> str:
    parts = [f"{key} {record[key]:.3f}" for key in SHOWN if key in record]
    return " ".join([*parts, f"{record['tokens_per_second']:.0f} tok/s"])
