"""The generation engine: one prefill, then any suffix on the same KV cache.

`prefill` runs the prefixes once and gives the read-out hidden states; `decode` continues the same cache with the
suffixes (the rendered profile) and then token by token. Blocks of tokens are padded on the right, and after each block
the gaps are closed: a row's tokens lie side by side in the last slots of the cache, so that an answer does not depend
on what it is batched with, sliding windows span what they would span alone, and rows of one length need no mask.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paretune.errors import InputError, check_number, check_whole
from paretune.policy.backbone import cached, check_attends, decoder, hidden_after, span_mean
from paretune.policy.mixture import Voice, mixed_logits

BUCKET = 16  # block widths are rounded up to this many tokens, where kernels want it (`bucket_of`)
TOP_CANDIDATES = 1024  # nucleus sampling looks at this many tokens first


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: greedily at temperature 0, else from the nucleus of mass `top_p`."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        check_whole(self.max_new_tokens, "max_new_tokens", least=1)
        check_number(self.temperature, "temperature")
        check_number(self.top_p, "top_p")
        if self.temperature < 0:
            raise InputError(f"temperature must be 0 or more and finite, found {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p must lie in (0, 1], found {self.top_p}")


@dataclass
class Prefilled:
    """Rows of tokens in the KV cache: row i's lie in the last `lengths[i]` slots, and what comes before is empty.

    `last_BH` holds the final hidden state of each row's last token; `readout_BH` what the sensing head reads of the
    prefix.
    """

    cache: Any
    lengths: list[int]
    last_BH: Tensor
    readout_BH: Tensor

    @property
    def slots(self) -> int:
        """Slots of the cache: the length of its longest row."""
        return max(self.lengths)

    def mask(self, new: int, device: torch.device) -> Tensor | None:
        """[B, slots + new]: 0 at empty slots. `None` where there are none, with which attention is faster."""
        if min(self.lengths) == self.slots:
            return None
        empty_B1 = self.slots - torch.tensor(self.lengths, device=device)[:, None]
        return (torch.arange(self.slots + new, device=device) >= empty_B1).long()

    def grow(self) -> None:
        """The cache took one token more in every row."""
        self.lengths = [length + 1 for length in self.lengths]

    def close_gaps(self, counts: Sequence[int]) -> None:
        """Right-align the cache after a block of which row i's first `counts[i]` tokens were real."""
        before = self.slots
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        ends = [before + count for count in counts]  # where row i's tokens end now
        if min(ends) == max(ends):
            self._keep(lambda states: states[:, :, : ends[0]])
        else:
            end_B1 = torch.tensor(ends)[:, None]
            self._gather((end_B1 - self.slots + torch.arange(self.slots)).clamp_min(0))

    def select(self, rows: Sequence[int]) -> None:
        """Go on with these rows, one of them as often as it is named, and no slot that is empty in all of them."""
        before = self.slots
        self.lengths = [self.lengths[i] for i in rows]
        index, first = torch.tensor(rows), before - self.slots
        self._keep(lambda states: states[index.to(states.device), :, first:])
        index = index.to(self.last_BH.device)
        self.last_BH, self.readout_BH = self.last_BH[index], self.readout_BH[index]

    def _gather(self, slot_BP: Tensor) -> None:
        row_B1 = torch.arange(slot_BP.shape[0])[:, None]
        # indexing rows and slots at once moves them to the front: [B, P, heads, D]
        self._keep(lambda states: states[row_B1, :, slot_BP.to(states.device)].transpose(1, 2))

    def _keep(self, of: Callable[[Tensor], Tensor]) -> None:
        for layer in self.cache.layers:
            if layer.is_initialized:  # layers that share another's keys have none of their own
                layer.keys, layer.values = of(layer.keys), of(layer.values)


@dataclass(frozen=True)
class Decoded:
    """Token ids of one answer, without the token that ended it."""

    ids: list[int]
    finished: bool


def bucket_of(causal: Any) -> int:
    """What block widths are rounded up to for a model.

    On a CPU kernels of the short dtypes are built anew for every new shape, and a GPU's want even shapes. A CPU's
    products of float32 take any, and computing pads would be time lost.
    """
    return 1 if causal.device.type == "cpu" and causal.dtype in (torch.float32, torch.float64) else BUCKET


def pad_block(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device, bucket: int = BUCKET
) -> tuple[Tensor, Tensor]:
    """Right-pad id lists to one width, a multiple of `bucket`: (ids [B, W], mask [B, W])."""
    width = -(-max(len(row) for row in rows) // bucket) * bucket
    ids_BW = torch.full((len(rows), width), pad_id, dtype=torch.long)
    mask_BW = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        ids_BW[i, : len(row)] = torch.tensor(row, dtype=torch.long)
        mask_BW[i, : len(row)] = 1
    return ids_BW.to(device), mask_BW.to(device)


@torch.no_grad()
def prefill(
    causal: Any, prefixes: Sequence[Sequence[int]], pad_id: int, *, layer: int | None = None, spans: Sequence[int] = ()
) -> Prefilled:
    """Run the prefixes once.

    The read-out is the mean hidden state of the last `spans[i]` tokens of row i (1 by default, the last token) after
    decoder layer `layer` (by default after the last one and the final norm, which the paper reads).
    """
    from transformers import DynamicCache

    check_attends(causal)
    # without the config every layer keeps all it has seen: a sliding window is the mask's work, and does not shrink
    # when rows of different length share a batch
    state = Prefilled(DynamicCache(), [0] * len(prefixes), torch.empty(0), torch.empty(0))
    hidden_BPH = feed(causal, state, prefixes, pad_id, layer)
    ends = [len(row) for row in prefixes]
    state.readout_BH = span_mean(hidden_BPH, ends, spans or [1] * len(ends))
    return state


@torch.no_grad()
def feed(causal: Any, state: Prefilled, rows: Sequence[Sequence[int]], pad_id: int, layer: int | None = None) -> Tensor:
    """Run a block of tokens on top of the cache; rows may differ in length, and in all but a prefill be empty.

    Gives the block's hidden states [B, W, H] after `layer`.
    """
    counts = [len(row) for row in rows]
    if not any(counts):
        return torch.empty(0)
    ids_BW, real_BW = pad_block(rows, pad_id, causal.device, bucket_of(causal))
    count_B = real_BW.sum(1)
    # pads take the position of the row's last token: a position past the context would not exist
    positions_BW = (real_BW.cumsum(1) - 1).clamp_min(0) + torch.tensor(state.lengths, device=causal.device)[:, None]
    mask = state.mask(ids_BW.shape[1], causal.device)  # pads need none: they come last, and no real token sees them
    module = decoder(causal)
    with hidden_after(causal, layer) as states:
        hidden_BWH = module(
            input_ids=ids_BW, attention_mask=mask, position_ids=positions_BW, **cached(module, state.cache)
        ).last_hidden_state
    last_BH = hidden_BWH[torch.arange(len(rows), device=causal.device), (count_B - 1).clamp_min(0)]
    keeps = min(counts) > 0  # an empty row's last token is still the one before
    state.last_BH = last_BH if keeps else torch.where(count_B[:, None] > 0, last_BH, state.last_BH)
    state.close_gaps(counts)
    return states[0] if states else hidden_BWH


@torch.no_grad()
def decode(
    causal: Any,
    state: Prefilled | Sequence[Voice],
    suffixes: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    stop_ids: set[int],
    pad_id: int,
    seeds: Sequence[int],
    ends: Callable[[Sequence[int]], bool] | None = None,
) -> list[Decoded]:
    """Continue the prefilled rows with their suffixes (which may be empty) and generate; consumes `state`.

    Several voices, each with the same rows prefilled by its own model, answer together: every token is chosen from the
    mix of their distributions (`paretune.policy.mixture`).

    `seeds` [B]: one a row, so that a sampled answer is the same alone and in any batch. `ends` says of an answer's ids
    so far, asked after each token, whether it is finished (a stop text, say); the ids are all kept.
    """
    voices = [Voice(state)] if isinstance(state, Prefilled) else list(state)
    for voice in voices:
        voice.enter()
        feed(causal, voice.state, suffixes, pad_id)
    out: list[list[int]] = [[] for _ in seeds]
    finished = [False] * len(seeds)
    rows = list(range(len(seeds)))  # rows[i] is the answer that batch row i writes
    draws = [torch.Generator().manual_seed(seed) for seed in seeds] if sampling.temperature > 0 else []
    for step in range(sampling.max_new_tokens):
        drawing = [draws[row] for row in rows] if draws else []
        tokens = choose(mixed_logits(causal, voices), [sampling] * len(rows), drawing)
        for i, token in enumerate(tokens):
            if finished[rows[i]]:
                tokens[i] = pad_id
            elif token in stop_ids:
                finished[rows[i]] = True
            else:
                out[rows[i]].append(token)
                finished[rows[i]] = ends is not None and ends(out[rows[i]])
        keep = _survivors([finished[row] for row in rows])
        if not keep or step + 1 == sampling.max_new_tokens:
            break
        if len(keep) < len(rows):
            for voice in voices:
                voice.state.select(keep)
            rows, tokens = [rows[i] for i in keep], [tokens[i] for i in keep]
        for voice in voices:
            voice.enter()
            advance(causal, voice.state, tokens)
    return [Decoded(ids, done) for ids, done in zip(out, finished, strict=True)]


@torch.no_grad()
def advance(causal: Any, state: Prefilled, tokens: Sequence[int]) -> None:
    """One token more in every row."""
    module, device = decoder(causal), causal.device
    state.last_BH = module(
        input_ids=torch.tensor(tokens, device=device)[:, None],
        attention_mask=state.mask(1, device),
        position_ids=torch.tensor(state.lengths, device=device)[:, None],
        **cached(module, state.cache),
    ).last_hidden_state[:, -1]
    state.grow()


def _survivors(ended: Sequence[bool]) -> list[int]:
    """Batch rows to go on with: none when all have ended, the living (and a few ended) when half have, else all.

    Whole powers of two keep the set of kernel shapes small.
    """
    alive = [i for i, done in enumerate(ended) if not done]
    if not alive or len(alive) > len(ended) // 2:
        return list(range(len(ended))) if alive else []
    size = 1 << (len(alive) - 1).bit_length()
    return sorted([*alive, *[i for i, done in enumerate(ended) if done][: size - len(alive)]])


def choose(logits_BV: Tensor, sampling: Sequence[Sampling], draws: Sequence[torch.Generator]) -> list[int]:
    """One token a row, each by its own sampling: the largest logit, or a draw from the nucleus by the row's generator.

    `draws` [B] may be empty where all rows are greedy.
    """
    tokens = [0] * len(sampling)
    greedy = [i for i, each in enumerate(sampling) if each.temperature == 0]
    nucleus = [i for i, each in enumerate(sampling) if each.temperature > 0 and each.top_p < 1]
    whole = [i for i, each in enumerate(sampling) if each.temperature > 0 and each.top_p >= 1]
    for rows, pick in ((greedy, _largest), (nucleus, _from_nucleus), (whole, _from_all)):
        if rows:
            mine_BV = logits_BV if len(rows) == len(tokens) else logits_BV[torch.tensor(rows, device=logits_BV.device)]
            chosen = pick(mine_BV, [sampling[i] for i in rows], [draws[i] for i in rows] if draws else [])
            for i, token in zip(rows, chosen, strict=True):
                tokens[i] = token
    return tokens


def _largest(logits_BV: Tensor, sampling: Sequence[Sampling], draws: Sequence[torch.Generator]) -> list[int]:
    return [int(token) for token in logits_BV.argmax(-1).tolist()]


def _from_all(logits_BV: Tensor, sampling: Sequence[Sampling], draws: Sequence[torch.Generator]) -> list[int]:
    probs_BV, uniform_B1 = _probabilities(logits_BV, sampling, draws)
    index = torch.searchsorted(probs_BV.cumsum(-1), uniform_B1 * probs_BV.sum(-1, keepdim=True))
    return [int(token) for token in index.clamp_max(logits_BV.shape[-1] - 1)[:, 0].tolist()]


def _from_nucleus(logits_BV: Tensor, sampling: Sequence[Sampling], draws: Sequence[torch.Generator]) -> list[int]:
    probs_BV, uniform_B1 = _probabilities(logits_BV, sampling, draws)
    mass_B1 = torch.tensor([[each.top_p] for each in sampling], dtype=probs_BV.dtype, device=probs_BV.device)
    top_BK, ids_BK = probs_BV.topk(min(TOP_CANDIDATES, probs_BV.shape[-1]), dim=-1)
    if bool((top_BK.sum(-1, keepdim=True) < mass_B1).any()):  # flat distributions: the nucleus is wider
        top_BK, ids_BK = probs_BV.sort(dim=-1, descending=True)
    kept_BK = torch.where(top_BK.cumsum(-1) - top_BK < mass_B1, top_BK, 0.0)
    sums_BK = kept_BK.cumsum(-1)
    index = torch.searchsorted(sums_BK, uniform_B1 * sums_BK[:, -1:]).clamp_max(ids_BK.shape[-1] - 1)
    return [int(token) for token in ids_BK.gather(1, index)[:, 0].tolist()]


def _probabilities(
    logits_BV: Tensor, sampling: Sequence[Sampling], draws: Sequence[torch.Generator]
) -> tuple[Tensor, Tensor]:
    """Each row's distribution at its own temperature, and its next uniform draw [B, 1]."""
    uniform_B1 = torch.stack([torch.rand(1, generator=draw) for draw in draws]).to(logits_BV.device)
    heat_B1 = torch.tensor([[each.temperature] for each in sampling], dtype=logits_BV.dtype, device=logits_BV.device)
    return torch.softmax(logits_BV / heat_B1, dim=-1), uniform_B1


def row_seed(seed: int, *key: object) -> int:
    """A 63-bit seed of (seed, key...): draws are keyed, never taken from global random state."""
    text = "\x1f".join([str(seed), *map(str, key)])
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big") >> 1


def by_length(lengths: Sequence[int], batch_size: int, apart: Sequence[Hashable] = ()) -> list[list[int]]:
    """Indices in batches of similar length, longest first (so that memory peaks at once, if ever).

    `apart` (a key a row): rows of different keys share no batch.
    """
    groups: dict[Hashable, list[int]] = {}
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        groups.setdefault(apart[i] if apart else None, []).append(i)
    return [rows[at : at + batch_size] for rows in groups.values() for at in range(0, len(rows), batch_size)]
