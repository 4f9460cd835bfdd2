"""The keys and values of a running batch: rows join and leave, and a token is added without copying the others.

As in `paretune.policy.engine.Prefilled`, of which this is one, a row's tokens lie in the last slots, side by side. The
tensors are larger than what is in use, so that a step writes one slot of each row in place:

    rows     used rows first; a row that leaves is overwritten with the last one
    slots    used from `first` to `end`, and `end` moves right by a token a step; when it reaches the edge, or a row
             joins that is longer than what lies left of `end`, everything moves into larger tensors, at most once in
             `SLACK` steps

R rows and C slots are there, B rows and P slots in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from paretune.policy.engine import Prefilled

SLACK = 128  # slots kept free on the right when tensors are made


class ArenaLayer(CacheLayerMixin):  # type: ignore[misc]
    """One decoder layer's part: `keys` and `values` [R, heads, C, D], of which attention is shown the used part."""

    is_sliding = False

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self.arena = arena

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing comes here that did not join."""
        raise RuntimeError("a layer without keys and values in the prefill has some now")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the new token of each row [B, heads, 1, D] and give all [B, heads, P + 1, D]."""
        if not self.is_initialized or self.keys is None or self.values is None:
            self.lazy_initialization(key_states, value_states)
        arena = self.arena
        rows, first, end = len(arena.lengths), arena.first, arena.end
        after = end + key_states.shape[2]
        self.keys[:rows, :, end:after] = key_states
        self.values[:rows, :, end:after] = value_states
        return self.keys[:rows, :, first:after], self.values[:rows, :, first:after]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(Slots with the new tokens, 0)."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Slots in use."""
        return self.arena.slots if self.arena.lengths else 0

    def get_max_length(self) -> int:
        """No bound."""
        return -1


class Arena(Prefilled):
    """The rows of a running batch, at most `capacity` of them, in the KV cache of one model."""

    def __init__(self, capacity: int) -> None:
        super().__init__(Cache(layers=[]), [], torch.empty(0), torch.empty(0))
        self.capacity = capacity
        self.rows = 0  # R
        self.width = 0  # C
        self.end = 0

    @property
    def first(self) -> int:
        """The first slot in use."""
        return self.end - self.slots

    def grow(self) -> None:
        """The cache took one token more in every row."""
        super().grow()
        self.end += 1

    def rewind(self, lengths: list[int], end: int) -> None:
        """Forget the tokens since the arena had these lengths and this end."""
        self.lengths, self.end = lengths, end

    def join(self, state: Prefilled, rows: Sequence[int] = (0,)) -> None:
        """Let prefilled rows in, one of them as often as it is named."""
        lengths = [state.lengths[row] for row in rows]
        if not self.lengths:
            self.cache.layers = []
            self.rows = self.width = self.end = 0
        at = len(self.lengths)
        self._reserve(at + len(rows), max(lengths), state)
        for layer, source in zip(self.cache.layers, state.cache.layers, strict=True):
            if layer.is_initialized:
                for mine, joining in ((layer.keys, source.keys), (layer.values, source.values)):
                    for target, (row, length) in enumerate(zip(rows, lengths, strict=True), start=at):
                        mine[target, :, : self.end - length] = 0  # what is masked must still be finite
                        mine[target, :, self.end - length : self.end] = joining[row, :, -length:]
        self.lengths = [*self.lengths, *lengths]

    def leave(self, rows: Sequence[int]) -> list[int]:
        """Let rows go. Gives, for each row that is left, the row that it was."""
        order = list(range(len(self.lengths)))
        for row in sorted(rows, reverse=True):
            last = len(order) - 1
            if row < last:
                self._copy(last, row)
                order[row] = order[last]
            order.pop()
        self.lengths = [self.lengths[row] for row in order]
        return order

    def ready(self) -> None:
        """Make room for one token more in every row."""
        self._reserve(len(self.lengths), self.slots)

    def _copy(self, source: int, target: int) -> None:
        for layer in self.cache.layers:
            if layer.is_initialized:
                layer.keys[target, :, : self.end] = layer.keys[source, :, : self.end]
                layer.values[target, :, : self.end] = layer.values[source, :, : self.end]

    def _reserve(self, rows: int, left: int, like: Prefilled | None = None) -> None:
        """Have `rows` rows, `left` slots up to `end`, and one free slot after it. All moves, or nothing does."""
        if rows <= self.rows and left <= self.end < self.width:
            return
        used = len(self.lengths)
        slots = max(self.slots if used else 0, left)
        size = max(self.rows, min(1 << (rows - 1).bit_length(), self.capacity), rows)
        width = -(-(slots + SLACK) // SLACK) * SLACK
        sources = self.cache.layers if used else like.cache.layers if like is not None else []
        moved: list[ArenaLayer] = []
        for source in sources:
            layer = ArenaLayer(self)
            if source.is_initialized:
                layer.keys, layer.values = self._moved(source.keys, size, width, slots), None
                layer.values = self._moved(source.values, size, width, slots)
                layer.is_initialized = True
            moved.append(layer)
        self.cache.layers, self.rows, self.width, self.end = moved, size, width, slots

    def _moved(self, old: Tensor, rows: int, width: int, end: int) -> Tensor:
        """The used part of a tensor in a larger one, its last slot before `end`."""
        new = old.new_zeros(rows, old.shape[1], width, old.shape[3])
        if used := len(self.lengths):
            new[:used, :, end - self.slots : end] = old[:used, :, self.first : self.end]
        return new
