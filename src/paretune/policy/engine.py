"""The generation engine: one prefill, then any suffix on the same KV cache.

`prefill` runs the prefixes once and gives the read-out hidden states; `decode` continues the same cache with the
suffixes (the rendered profile) and then token by token. Rows of different length share a batch by holes in the
attention mask and explicit positions, so an answer does not depend on what it is batched with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paretune.errors import InputError
from paretune.policy.backbone import cached, decoder, project

BUCKET = 16  # block widths are rounded up to this many tokens: CPU kernels are built anew for every new shape
TOP_CANDIDATES = 1024  # nucleus sampling looks at this many tokens first


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: greedily at temperature 0, else from the nucleus of mass `top_p`."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens must be at least 1, found {self.max_new_tokens}")
        if not 0 <= self.temperature < float("inf"):
            raise InputError(f"temperature must be 0 or more and finite, found {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p must lie in (0, 1], found {self.top_p}")


@dataclass
class Prefilled:
    """A batch of prefixes in the KV cache: `mask` [B, P] marks real slots, `lengths` [B], `readout` [B, H]."""

    cache: Any
    mask_BP: Tensor
    lengths_B: Tensor
    readout_BH: Tensor


@dataclass(frozen=True)
class Decoded:
    """Token ids of one answer, without the token that ended it."""

    ids: list[int]
    finished: bool


def pad_block(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Right-pad id lists to one bucketed width: (ids [B, W], mask [B, W])."""
    width = -(-max(len(row) for row in rows) // BUCKET) * BUCKET
    ids_BW = torch.full((len(rows), width), pad_id, dtype=torch.long)
    mask_BW = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        ids_BW[i, : len(row)] = torch.tensor(row, dtype=torch.long)
        mask_BW[i, : len(row)] = 1
    return ids_BW.to(device), mask_BW.to(device)


@torch.no_grad()
def prefill(causal: Any, prefixes: Sequence[Sequence[int]], pad_id: int) -> Prefilled:
    """Run the prefixes once; the read-out is the hidden state of each row's last real token."""
    from transformers import DynamicCache

    ids_BP, mask_BP = pad_block(prefixes, pad_id, causal.device)
    lengths_B = mask_BP.sum(1)
    positions_BP = (mask_BP.cumsum(1) - 1).clamp_min(0)
    cache, module = DynamicCache(config=causal.config), decoder(causal)
    hidden_BPH = module(
        input_ids=ids_BP, attention_mask=mask_BP, position_ids=positions_BP, **cached(module, cache)
    ).last_hidden_state
    readout_BH = hidden_BPH[torch.arange(len(prefixes), device=ids_BP.device), lengths_B - 1]
    return Prefilled(cache, mask_BP, lengths_B, readout_BH)


@torch.no_grad()
def decode(
    causal: Any,
    state: Prefilled,
    suffixes: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    stop_ids: set[int],
    pad_id: int,
    seeds: Sequence[int],
) -> list[Decoded]:
    """Continue the prefilled rows with their suffixes and generate; consumes `state`.

    `seeds` [B]: one a row, so that a sampled answer is the same alone and in any batch.
    """
    ids_BS, new_BS = pad_block(suffixes, pad_id, causal.device)
    mask = torch.cat([state.mask_BP, new_BS], dim=1)
    positions_BS = state.lengths_B[:, None] + (new_BS.cumsum(1) - 1).clamp_min(0)
    module = decoder(causal)
    hidden = module(
        input_ids=ids_BS, attention_mask=mask, position_ids=positions_BS, **cached(module, state.cache)
    ).last_hidden_state
    last_B = new_BS.sum(1) - 1
    hidden_BH = hidden[torch.arange(len(suffixes), device=ids_BS.device), last_B]
    next_position_B = state.lengths_B + last_B + 1
    return _continue(causal, state.cache, mask, next_position_B, hidden_BH, sampling, stop_ids, pad_id, seeds)


def _continue(
    causal: Any,
    cache: Any,
    mask: Tensor,
    position_B: Tensor,
    hidden_BH: Tensor,
    sampling: Sampling,
    stop_ids: set[int],
    pad_id: int,
    seeds: Sequence[int],
) -> list[Decoded]:
    """The token loop. Rows that have ended leave the batch when half of it has."""
    out: list[list[int]] = [[] for _ in seeds]
    finished = [False] * len(seeds)
    rows = list(range(len(seeds)))  # rows[i] is the answer that batch row i writes
    module = decoder(causal)
    keywords = cached(module, cache)
    draws = [torch.Generator().manual_seed(seed) for seed in seeds] if sampling.temperature > 0 else []
    for step in range(sampling.max_new_tokens):
        tokens = _choose(project(causal, hidden_BH), sampling, [draws[row] for row in rows] if draws else [])
        for i, token in enumerate(tokens):
            if finished[rows[i]]:
                tokens[i] = pad_id
            elif token in stop_ids:
                finished[rows[i]] = True
            else:
                out[rows[i]].append(token)
        alive = [i for i, row in enumerate(rows) if not finished[row]]
        if not alive or step + 1 == sampling.max_new_tokens:
            break
        if len(alive) <= len(rows) // 2:
            # whole powers of two keep the set of kernel shapes small
            size = 1 << (len(alive) - 1).bit_length()
            ended = [i for i in range(len(rows)) if finished[rows[i]]]
            keep = sorted([*alive, *ended[: size - len(alive)]])
            index = torch.tensor(keep, device=mask.device)
            cache.batch_select_indices(index)
            mask, position_B = mask[index], position_B[index]
            rows, tokens = [rows[i] for i in keep], [tokens[i] for i in keep]
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
        ids_B1 = torch.tensor(tokens, device=mask.device)[:, None]
        hidden_BH = module(
            input_ids=ids_B1, attention_mask=mask, position_ids=position_B[:, None], **keywords
        ).last_hidden_state[:, -1]
        position_B = position_B + 1
    return [Decoded(ids, done) for ids, done in zip(out, finished, strict=True)]


def _choose(logits_BV: Tensor, sampling: Sampling, draws: Sequence[torch.Generator]) -> list[int]:
    """One token a row: the largest logit, or a draw from the nucleus by the row's own generator."""
    if sampling.temperature == 0:
        return [int(token) for token in logits_BV.argmax(-1).tolist()]
    uniform_B1 = torch.stack([torch.rand(1, generator=draw) for draw in draws]).to(logits_BV.device)
    probs_BV = torch.softmax(logits_BV / sampling.temperature, dim=-1)
    if sampling.top_p >= 1:
        index = torch.searchsorted(probs_BV.cumsum(-1), uniform_B1 * probs_BV.sum(-1, keepdim=True))
        return [int(token) for token in index.clamp_max(logits_BV.shape[-1] - 1)[:, 0].tolist()]
    top_BK, ids_BK = probs_BV.topk(min(TOP_CANDIDATES, probs_BV.shape[-1]), dim=-1)
    if bool((top_BK.sum(-1) < sampling.top_p).any()):  # flat distributions: the nucleus is wider
        top_BK, ids_BK = probs_BV.sort(dim=-1, descending=True)
    mass_BK = top_BK.cumsum(-1)
    kept_BK = torch.where(mass_BK - top_BK < sampling.top_p, top_BK, 0.0)
    mass_BK = kept_BK.cumsum(-1)
    index = torch.searchsorted(mass_BK, uniform_B1 * mass_BK[:, -1:]).clamp_max(ids_BK.shape[-1] - 1)
    return [int(token) for token in ids_BK.gather(1, index)[:, 0].tolist()]


def row_seed(seed: int, *key: object) -> int:
    """A 63-bit seed of (seed, key...): draws are keyed, never taken from global random state."""
    text = "\x1f".join([str(seed), *map(str, key)])
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big") >> 1


def by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Indices in batches of similar length, longest first (so that memory peaks at once, if ever)."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
