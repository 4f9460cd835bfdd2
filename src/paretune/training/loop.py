"""The loop every method shares: batches, accumulation, the guard, the log, checkpoints.

A method gives a `Learner`: how an item is packed and what its loss is. The loop draws every order from (seed, epoch),
groups an effective batch into forward passes by length, divides sums of losses by counts of the whole effective batch
(so accumulation changes nothing), stops on a non-finite loss or gradient before the optimizer step or leaves the batch
out, takes smaller forward passes where memory runs out, and logs every number as JSON Lines.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from paretune.errors import InputError
from paretune.policy.packed import LENGTH_BUCKET, Packed, collate
from paretune.progress import NO_PROGRESS, Progress
from paretune.training.checkpoint import Checkpoints
from paretune.training.config import TrainConfig
from paretune.training.guards import (
    DivergedError,
    NotFiniteError,
    check_finite,
    check_skipped,
    diverged,
    drop_gradients,
    free_memory,
    ran_out_of_memory,
    row_names,
)
from paretune.training.journal import Journal
from paretune.training.module import AdapterModule
from paretune.training.optimizer import optimizer_for
from paretune.training.resume import Resumable, whole


class Item(Protocol):
    """One prompt of an epoch, ready to compute: its packed row, and a name for messages."""

    @property
    def packed(self) -> Packed:
        """The packed row."""

    @property
    def name(self) -> str:
        """The row's id."""


I = TypeVar("I", bound=Item)  # noqa: E741

SHOWN = ("dpo", "modpo", "likelihood", "contrast", "sense", "pair", "rating")
"""Logged numbers that a progress bar has room for."""


class Learner(Protocol[I]):
    """What a method brings to the loop.

    One with stages may also have `begin_epoch(epoch, module)`, called at the start of every epoch. If what that builds
    is more than what follows from the epoch's number (a frozen reference, say), `state() -> dict[str, Tensor]` and
    `restore(state, module)` take it through a checkpoint. A training goes on with `begin_epoch` of the epoch in which
    the checkpoint was saved, the weights put back, and `restore`.
    """

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


@lru_cache(maxsize=2)
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


def planned_steps(learner: Learner[I], config: TrainConfig) -> int:
    """Steps until the first of `epochs`, `max_steps` and `max_tokens` is reached; at least one."""
    per_epoch = math.ceil(len(learner) / config.batch_size)
    most = min(per_epoch * config.epochs, config.max_steps or per_epoch * config.epochs)
    if not config.max_tokens:
        return most
    tokens = 0
    for step in range(most):
        items = _batch(learner, config, *divmod(step, per_epoch))
        tokens += sum(each.packed.length for each in items)
        if tokens >= config.max_tokens:
            return step + 1
    return most


def _batch(learner: Learner[I], config: TrainConfig, epoch: int, batch: int) -> list[I]:
    """The items of an epoch's effective batch."""
    indices = order(len(learner), config.seed, epoch)
    return [learner.item(i, epoch) for i in indices[batch * config.batch_size : (batch + 1) * config.batch_size]]


def run(
    module: AdapterModule,
    learner: Learner[I],
    config: TrainConfig,
    *,
    pad_id: int,
    journal: Journal,
    progress: Progress = NO_PROGRESS,
    checkpoints: Checkpoints | None = None,
    part: str = "",
) -> dict[str, float]:
    """Train; returns the last logged numbers, steps, tokens and tokens per second.

    With `checkpoints` it goes on from the newest one, where there is any, and ends as it would have without a break:
    the same weights and, but for the times, the same journal. `part` names one of several trainings that follow each
    other (an adapter for each objective, say); each has checkpoints of its own, and a finished one is not trained
    again.
    """
    per_epoch, total = math.ceil(len(learner) / config.batch_size), planned_steps(learner, config)
    optimizer = optimizer_for(module, config)
    torch.manual_seed(config.seed)  # dropout; every other draw is keyed
    module.train()
    own = checkpoints.part(part) if checkpoints is not None else None
    state = Resumable(module, optimizer, learner, journal, own, steps=total, per_epoch=per_epoch)
    state.resume()
    label = {"part": part} if part else {}
    with progress("train", total) as task, state.interruptible():
        task.advance(state.step)
        while state.step < total:
            epoch, batch = divmod(state.step, per_epoch)
            if not batch:
                state.begin_epoch(epoch)
            record = _step(state, _batch(learner, config, epoch, batch), config, epoch, pad_id, label)
            task.update(_summary(record))
            task.advance()
            state.save_if_due()
    module.eval()
    return _final(state)


def _final(state: Resumable) -> dict[str, float]:
    """The last numbers, and what the whole took. Raises `DivergedError` where no step was done."""
    steps = [each for each in state.records if "warning" not in each]
    done = [each for each in steps if "skipped" not in each]
    if not done:
        raise DivergedError("nothing was learnt: every batch was left out, for numbers that are not finite")
    last = {key: value for key, value in done[-1].items() if key not in ("part", "step", "epoch", "lr")}
    last |= {key: steps[-1][key] for key in ("tokens", "tokens_per_second")}
    if len(done) < len(steps):
        last["skipped_steps"] = len(steps) - len(done)
    memory = peak_memory_mib(next(state.module.parameters()).device)
    return last | {"steps": state.steps, "seconds": round(state.seconds, 3), "peak_memory_mib": memory}


def _step(
    state: Resumable, items: Sequence[I], config: TrainConfig, epoch: int, pad_id: int, label: dict[str, str]
) -> dict[str, Any]:
    """One step over an effective batch, logged; gives the record."""
    factor = learning_rate(config, state.step, state.steps)
    state.optimizer.set_factor(factor)
    logged: dict[str, Any]
    logged, used = _computed(state, items, config, pad_id)
    with whole():
        try:
            check_finite(logged)
            logged["grad_norm"] = state.optimizer.step(config.clip)
            check_finite(logged)
        except NotFiniteError as error:
            drop_gradients(state.module)
            if config.nonfinite == "stop":
                raise diverged(error, items) from None
            logged = {"skipped": str(error), "rows": [item.name for item in items]}
        state.advance(used)
        record = {**label, "step": state.step, "epoch": epoch, **logged, "lr": config.lr * factor}
        record |= {"tokens": state.tokens, "tokens_per_second": round(state.tokens / max(state.seconds, 1e-9), 2)}
        state.journal.write(record)
    if "skipped" in record:
        state.note(f"step {state.step} was left out: {record['skipped']}. Rows in the batch: {row_names(items)}")
        check_skipped(state.records, items)
    return record


def _computed(state: Resumable, items: Sequence[I], config: TrainConfig, pad_id: int) -> tuple[dict[str, float], int]:
    """As `_accumulate`, in forward passes of half the size, from now on, each time that memory runs out."""
    while True:
        budget = state.micro_tokens or config.micro_tokens
        draws = state.draws()
        try:
            return _accumulate(state.module, state.learner, items, replace(config, micro_tokens=budget), pad_id)
        except (RuntimeError, MemoryError) as error:
            if not ran_out_of_memory(error):
                raise
        # below the handler, whose traceback holds the failed attempt's tensors
        drop_gradients(state.module)
        free_memory()
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        if several or max(map(len, micro_batches(items, budget))) == 1:
            raise InputError(
                f"out of memory in step {state.step + 1}, with {budget} tokens a forward pass. Lower micro_tokens, "
                "max_length or the number of completions, or --set gradient_checkpointing=true"
            )
        state.put_draws(draws)  # dropout is what it would have been
        state.halve(budget)


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


def peak_memory_mib(device: torch.device) -> float:
    """MiB that the process has taken at most: of the accelerator, or else resident (where that is known)."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    try:
        import resource
    except ImportError:  # not on Windows
        return 0.0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(most / (2**20 if sys.platform == "darwin" else 2**10), 1)  # bytes there, KiB elsewhere


def _summary(record: dict[str, Any]) -> str:
    parts = [f"{key} {record[key]:.3f}" for key in SHOWN if key in record]
    return " ".join([*parts, f"{record['tokens_per_second']:.0f} tok/s"])
