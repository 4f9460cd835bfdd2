"""Likelihoods of given tokens after given tokens, with the contexts that several continuations share computed once.

The pass is the one of training and evaluation (`paretune.policy.packed`): a context and its continuations are one
packed row. Contexts that do not fit are cut from the left exactly where lm-eval's `HFLM` cuts them, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from paretune.errors import InputError
from paretune.policy.backbone import context_length, project
from paretune.policy.engine import by_length
from paretune.policy.packed import LABEL_CHUNK, Batch, Branch, Packed, collate, hidden_states
from paretune.progress import NO_PROGRESS, Progress

Pair = tuple[list[int], list[int]]
"""Ids of a context (at least one) and of the continuation whose likelihood is asked for (at least one)."""
ROW_TOKENS = 1024
"""Continuations of one context share a packed row up to this many tokens: its mask grows with the square of them."""


def fitted(pair: Pair, limit: int) -> tuple[Pair, bool]:
    """The pair with its context cut from the left to the model's `limit`, and whether anything was cut.

    The last token of a continuation is predicted and never read, so context and continuation may have limit + 1 tokens.
    Raises `InputError` for an empty continuation and one that does not fit by itself.
    """
    context, continuation = pair
    if not continuation:
        raise InputError("a task asks for the likelihood of an empty continuation")
    if len(continuation) > limit:
        raise InputError(
            f"a task asks for the likelihood of {len(continuation)} tokens, but the model's context is {limit}"
        )
    over = len(context) + len(continuation) - (limit + 1)
    return ((context[over:], continuation), True) if over > 0 else (pair, False)


@torch.no_grad()
def likelihoods(
    causal: Any, pairs: Sequence[Pair], pad_id: int, *, batch_size: int, progress: Progress = NO_PROGRESS
) -> list[tuple[float, bool]]:
    """For each pair, summed log-probability (nats) of the continuation, and whether greedy decoding would give it."""
    rows, members = _packed(pairs)
    out: list[tuple[float, bool]] = [(0.0, False)] * len(pairs)
    with progress("likelihood", len(pairs)) as task:
        for index in by_length([row.length for row in rows], batch_size):
            batch = collate([rows[i] for i in index], pad_id).to(causal.device)
            found = _scored(causal, batch)
            asked = [k for i in index for k in members[i]]
            for k, value in zip(asked, found, strict=True):
                out[k] = value
            task.advance(len(asked))
    return out


def _packed(pairs: Sequence[Pair]) -> tuple[list[Packed], list[list[int]]]:
    """Rows of pairs with the same context, and the indices of the pairs in each row."""
    open_rows: dict[tuple[int, ...], int] = {}
    rows: list[list[Branch]] = []
    members: list[list[int]] = []
    sizes: list[int] = []
    for k, (context, continuation) in enumerate(pairs):
        key = tuple(context)
        at = open_rows.get(key)
        if at is None or sizes[at] + len(continuation) > ROW_TOKENS:
            at = open_rows[key] = len(rows)
            rows.append([])
            members.append([])
            sizes.append(len(context))
        rows[at].append(Branch((), continuation))
        members[at].append(k)
        sizes[at] += len(continuation)
    return [Packed(pairs[own[0]][0], row) for row, own in zip(rows, members, strict=True)], members


def _scored(causal: Any, batch: Batch) -> list[tuple[float, bool]]:
    """(log-probability, greedy) of every branch of a batch."""
    # a last token, which nothing reads, may stand one past the context: there is no such position
    batch = replace(batch, positions=batch.positions.clamp_max(context_length(causal) - 1))
    hidden_NH = hidden_states(causal, batch).flatten(0, 1)[batch.source]
    logp, missed = [], []
    for start in range(0, len(batch.label), LABEL_CHUNK):
        logits_NV = project(causal, hidden_NH[start : start + LABEL_CHUNK])
        label_N = batch.label[start : start + LABEL_CHUNK]
        logp.append(-torch.nn.functional.cross_entropy(logits_NV, label_N, reduction="none"))
        missed.append(logits_NV.argmax(-1) != label_N)
    logp_N = torch.cat(logp)
    logp_K = logp_N.new_zeros(batch.branches).index_add(0, batch.branch, logp_N)
    missed_K = logp_N.new_zeros(batch.branches).index_add(0, batch.branch, torch.cat(missed).to(logp_N.dtype))
    return list(zip(logp_K.tolist(), (missed_K == 0).tolist(), strict=True))
