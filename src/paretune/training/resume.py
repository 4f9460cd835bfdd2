"""What of a training goes into a checkpoint, and how it is put back: the next step is the one that would have been.

That is: the step it stands at (batches, draws and learning rates follow from it), adapter and head, the optimizer's
moments and masters, the state of the generators that dropout draws from, what the learner keeps, and the journal.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from paretune.errors import InputError
from paretune.training.checkpoint import Checkpoints, State
from paretune.training.journal import Journal
from paretune.training.module import AdapterModule
from paretune.training.optimizer import MasterAdamW

MODEL, OPTIMIZER, LEARNER, RANDOM = "model/", "optimizer/", "learner/", "random/"
"""Prefixes of a checkpoint's tensors."""


class Resumable:
    """A training that stands after some whole step: `step`, `tokens` and `seconds` count from its very start."""

    def __init__(
        self,
        module: AdapterModule,
        optimizer: MasterAdamW,
        learner: Any,
        journal: Journal,
        checkpoints: Checkpoints | None,
        *,
        steps: int,
        per_epoch: int,
    ) -> None:
        self.module, self.optimizer, self.learner, self.journal = module, optimizer, learner, journal
        self.checkpoints, self.steps, self.per_epoch = checkpoints, steps, per_epoch
        self.step = self.tokens = 0
        self.micro_tokens = 0
        """Tokens per forward pass since memory ran out; 0: as the settings have it."""
        self._saved, self._first, self._began = 0, len(journal.records), time.monotonic()
        self._random = self.draws()

    @property
    def seconds(self) -> float:
        """Spent on the training so far, in earlier processes too."""
        return time.monotonic() - self._began

    @property
    def records(self) -> list[dict[str, Any]]:
        """What this training has logged: the part of the journal that is its own."""
        return self.journal.records[self._first :]

    def begin_epoch(self, epoch: int) -> None:
        """Tell the learner, if it has stages."""
        begin = getattr(self.learner, "begin_epoch", None)
        if begin is not None:
            begin(epoch, self.module)

    def advance(self, tokens: int) -> None:
        """A step is done, of so many tokens."""
        self.step, self.tokens = self.step + 1, self.tokens + tokens
        if self.checkpoints is not None:
            self._random = self.draws()  # an interrupt may come in the middle of the next step, and its draws

    def save_if_due(self) -> None:
        """Save a checkpoint after every so many steps, and after the last."""
        if self.checkpoints is not None and (
            self.step == self.steps or self.checkpoints.due(self.step, self.per_epoch)
        ):
            self.save()

    def save(self) -> None:
        """Save one as of the last whole step, unless it is saved; where the disk refuses, say so and go on."""
        if self.checkpoints is None or self.step == self._saved:
            return
        state = State(self.step, self._tensors(), self.tokens, self.seconds, self.records, self.steps)
        problem = self.checkpoints.save(state)
        if problem is None:
            self._saved = self.step
            return
        self.note(f"no checkpoint could be saved after step {self.step}: {problem}")
        self.journal.write({"step": self.step, "warning": f"no checkpoint could be saved: {problem}"})

    def note(self, text: str) -> None:
        """Tell a person."""
        if self.checkpoints is not None:
            self.checkpoints.note(text)

    def halve(self, budget: int) -> None:
        """From now on forward passes of half of `budget` tokens; the journal takes that through a checkpoint."""
        self.micro_tokens = budget // 2
        text = f"out of memory; the batch is now computed in forward passes of {self.micro_tokens} tokens"
        self.note(f"step {self.step + 1}: {text} (see micro_tokens)")
        self.journal.write({"step": self.step + 1, "warning": text, "micro_tokens": self.micro_tokens})

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Ctrl-C, and a request to end, save the last whole step before they end the block."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            self.save()
            raise

    def resume(self) -> None:
        """Put back the newest checkpoint, if there is any. Raises `InputError` where it does not fit the module."""
        state = self.checkpoints.newest() if self.checkpoints is not None else None
        if state is None:
            return
        assert self.checkpoints is not None
        self.begin_epoch((state.step - 1) // self.per_epoch)  # where it was saved; what follows puts all right
        tensors = state.tensors
        _put(self._trained(), _below(MODEL, tensors), self.checkpoints)
        if state.step < self.steps:
            self.optimizer.restore(_below(OPTIMIZER, tensors))
            if kept := _below(LEARNER, tensors):
                self.learner.restore(kept, self.module)
        self._random = _below(RANDOM, tensors)
        self.put_draws(self._random)
        for record in state.records:
            self.journal.write(record, again=True)
            self.micro_tokens = record.get("micro_tokens", self.micro_tokens)
        self.step = self._saved = state.step
        self.tokens, self._began = state.tokens, time.monotonic() - state.seconds
        where = self.checkpoints.folder.relative_to(self.checkpoints.root.parent)
        self.checkpoints.note(f"continuing from step {self.step} of {self.steps} ({where})")

    @property
    def _device(self) -> torch.device:
        return next(self.module.parameters()).device

    def draws(self) -> dict[str, Tensor]:
        """State of the generators that dropout draws from."""
        states = {"cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self._device)
        return states

    def put_draws(self, states: Mapping[str, Tensor]) -> None:
        """Put the generators into the state that `draws` gave."""
        torch.set_rng_state(states["cpu"])
        if "cuda" in states and self._device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"], self._device)

    def _trained(self) -> dict[str, Tensor]:
        """All that training changes in the module: what takes gradients, and the head with its buffers."""
        trainable = {name for name, each in self.module.named_parameters() if each.requires_grad}
        state = self.module.state_dict()
        return {name: each for name, each in state.items() if name in trainable or name.startswith("head.")}

    def _tensors(self) -> dict[str, Tensor]:
        """A checkpoint's tensors, on the CPU; after the last step nobody asks for the optimizer's any more."""
        parts: dict[str, Mapping[str, Tensor]] = {MODEL: self._trained(), RANDOM: self._random}
        if self.step < self.steps:
            parts[OPTIMIZER] = self.optimizer.state()
            if hasattr(self.learner, "state"):
                parts[LEARNER] = {name: each.clone() for name, each in self.learner.state().items()}
        return {
            prefix + name: each.detach().cpu().contiguous()
            for prefix, part in parts.items()
            for name, each in part.items()
        }


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}


@torch.no_grad()
def _put(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], checkpoints: Checkpoints) -> None:
    """Copy `found` into the tensors of the same names, shapes and types."""
    for name in [*wanted, *(name for name in found if name not in wanted)]:
        one, two = wanted.get(name), found.get(name)
        if one is None or two is None or one.shape != two.shape or one.dtype != two.dtype:
            raise InputError(
                f"holds a checkpoint of another model ('{name}' does not fit); pass --restart to discard it",
                file=checkpoints.folder,
            )
    for name, each in wanted.items():
        each.copy_(found[name])


@contextmanager
def whole() -> Iterator[None]:
    """Ctrl-C and a request to end wait for the end of the block, so that a step is done whole or not at all."""
    if threading.current_thread() is not threading.main_thread():  # which alone is interrupted
        yield
        return
    waiting: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = [number for number, handler in before.items() if callable(handler)]
    for number in ours:
        signal.signal(number, lambda number, frame: waiting.append(number))
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
        for caught in waiting:
            signal.raise_signal(caught)
