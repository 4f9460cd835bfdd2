"""The prefix cache: keys and values of the beginnings of prompts, for those that begin alike.

System prompts and the history of a conversation come again and again. What is kept is the raw prompt, before the
profile's suffix, in blocks of `BLOCK` tokens; a block is known by its tokens and the block before it, so that prompts
share the blocks of what they have in common. The least recently used goes first, and no block outlives its
continuations' need of it: a chain is touched from its end to its beginning, so the oldest block never has a child.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK = 16  # tokens; as `paretune.policy.engine.BUCKET`: what is shorter may be computed for nothing, padded to that

Pair = tuple[Tensor, Tensor] | None
"""One decoder layer's keys and values [heads, L, D]; `None` for a layer that shares another's."""


@dataclass
class _Block:
    number: int
    pairs: list[Pair]
    bytes: int


class PrefixCache:
    """Blocks of keys and values, at most `mib` MiB of them. Not safe across threads.

    `model` in the methods tells models apart: those of different adapters have different keys and values.
    """

    def __init__(self, mib: int) -> None:
        self.limit = mib << 20
        self.bytes = 0
        self._blocks: OrderedDict[Hashable, _Block] = OrderedDict()
        self._made = 0

    def find(self, model: Hashable, ids: Sequence[int], most: int) -> tuple[int, list[Pair]]:
        """(How many of the first tokens are known, at most `most`; their keys and values in each layer)."""
        chain = self._known(model, ids, most)
        self._touch(chain)
        if not chain:
            return 0, []
        layers = zip(*[self._blocks[key].pairs for key in chain], strict=True)
        return len(chain) * BLOCK, [_joined(pairs) for pairs in layers]

    def length(self, model: Hashable, ids: Sequence[int], most: int) -> int:
        """How many of the first tokens are known, at most `most`; that it was asked does not count as use."""
        return len(self._known(model, ids, most)) * BLOCK

    def keep(self, model: Hashable, ids: Sequence[int], layers: Sequence[Any], row: int = 0, first: int = 0) -> None:
        """Remember a prompt whose tokens lie in a row of a transformers cache's layers, from slot `first` on."""
        if not self.limit:
            return
        chain = []
        for key, at in self._keys(model, ids):
            if key not in self._blocks:
                self._add(key, [_part(layer, row, first + at) for layer in layers])
            chain.append(key)
        self._touch(chain)
        while self.bytes > self.limit:
            _, block = self._blocks.popitem(last=False)
            self.bytes -= block.bytes

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
        self.bytes = 0

    def _known(self, model: Hashable, ids: Sequence[int], most: int) -> list[Hashable]:
        return [key for key, _ in self._keys(model, ids[: max(0, most)]) if key in self._blocks]

    def _keys(self, model: Hashable, ids: Sequence[int]) -> Any:
        """(Key, first token) of each whole block, as long as the block before it is known."""
        parent: Hashable = model
        for at in range(0, len(ids) - BLOCK + 1, BLOCK):
            key = (parent, tuple(ids[at : at + BLOCK]))
            yield key, at
            if key not in self._blocks:
                return
            parent = self._blocks[key].number

    def _add(self, key: Hashable, pairs: list[Pair]) -> None:
        size = sum(each.nbytes for pair in pairs if pair is not None for each in pair)
        self._made += 1
        self._blocks[key] = _Block(self._made, pairs, size)
        self.bytes += size

    def _touch(self, chain: Sequence[Hashable]) -> None:
        for key in reversed(chain):
            self._blocks.move_to_end(key)


def _part(layer: Any, row: int, at: int) -> Pair:
    if not layer.is_initialized:
        return None
    # copies: a view would keep the whole prompt's tensor
    return layer.keys[row, :, at : at + BLOCK].clone(), layer.values[row, :, at : at + BLOCK].clone()


def _joined(pairs: Sequence[Pair]) -> Pair:
    known = [pair for pair in pairs if pair is not None]
    if not known:
        return None
    keys, values = zip(*known, strict=True)
    return torch.cat(keys, dim=1), torch.cat(values, dim=1)
