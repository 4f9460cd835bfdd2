"""Packed rows: every completion of a prompt shares one computation of the prompt.

A packed row is `prefix | suffix_1 completion_1 | suffix_2 completion_2 | ...`. A block mask lets each branch see the
prefix and itself only, and explicit positions let each branch start where the prefix ends, so the numbers are those of
separate sequences. The sensing head reads the last prefix token of the same pass. The mask is an ordinary 4-D mask that
every transformers attention of kind `sdpa` or `eager` takes, with gradient checkpointing and sharding as usual.

Shapes: B rows, L padded length, N labelled tokens of the batch, K branches of the batch, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from paretune.policy.backbone import decoder, project

LENGTH_BUCKET = 32  # rows are padded to multiples of this: few distinct kernel shapes
LABEL_CHUNK = 1024  # label positions whose logits exist at one time


@dataclass(frozen=True)
class Branch:
    """One continuation of a prefix: suffix ids (no loss) and completion ids (labels, with the end of the turn)."""

    suffix: Sequence[int]
    completion: Sequence[int]


@dataclass(frozen=True)
class Packed:
    """A prefix and its branches; a row without branches only feeds the head."""

    prefix: Sequence[int]
    branches: Sequence[Branch]

    @property
    def length(self) -> int:
        """Tokens of the packed row."""
        return len(self.prefix) + sum(len(each.suffix) + len(each.completion) for each in self.branches)


@dataclass(frozen=True)
class Batch:
    """Tensors of a batch of packed rows.

    input_ids, positions [B, L]; mask [B, 1, L, L], True = may attend; readout [B]: index of the last prefix token;
    source [N]: flat index (into B*L) of the token that predicts each label; label [N]; branch [N]: the branch, 0..K-1,
    in order of rows, that each label belongs to; branches: K; tokens: real tokens in the batch.
    """

    input_ids: Tensor
    positions: Tensor
    mask: Tensor
    readout: Tensor
    source: Tensor
    label: Tensor
    branch: Tensor
    branches: int
    tokens: int

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        moved: dict[str, Any] = {key: each.to(device) for key, each in values.items() if isinstance(each, Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True)
class Forward:
    """logp [K]: summed log-probability of each completion; length [K]: its tokens; readout [B, H]: hidden states."""

    logp: Tensor
    length: Tensor
    readout: Tensor


def collate(rows: Sequence[Packed], pad_id: int, *, bucket: int = LENGTH_BUCKET) -> Batch:
    """Lay packed rows out as tensors, right-padded to a multiple of `bucket`."""
    size, width = len(rows), -(-max(row.length for row in rows) // bucket) * bucket
    input_ids = torch.full((size, width), pad_id, dtype=torch.long)
    positions = torch.zeros((size, width), dtype=torch.long)
    segment = torch.full((size, width), -1, dtype=torch.long)  # 0 the prefix, 1.. a branch, -1 padding
    source: list[int] = []
    label: list[int] = []
    branch: list[int] = []
    count = 0
    for i, row in enumerate(rows):
        start = len(row.prefix)
        input_ids[i, :start] = torch.tensor(row.prefix, dtype=torch.long)
        positions[i, :start] = torch.arange(start)
        segment[i, :start] = 0
        for number, each in enumerate(row.branches, start=1):
            ids = [*each.suffix, *each.completion]
            end = start + len(ids)
            input_ids[i, start:end] = torch.tensor(ids, dtype=torch.long)
            positions[i, start:end] = torch.arange(len(row.prefix), len(row.prefix) + len(ids))
            segment[i, start:end] = number
            # with an empty suffix the prefix's last token predicts the first label
            first = start + len(each.suffix)
            predictors = [first - 1 if each.suffix else len(row.prefix) - 1, *range(first, end - 1)]
            source += [i * width + at for at in predictors[: len(each.completion)]]
            label += each.completion
            branch += [count] * len(each.completion)
            count += 1
            start = end
    readout = torch.tensor([len(row.prefix) - 1 for row in rows])
    return Batch(
        input_ids=input_ids,
        positions=positions,
        mask=_mask(segment),
        readout=readout,
        source=torch.tensor(source, dtype=torch.long),
        label=torch.tensor(label, dtype=torch.long),
        branch=torch.tensor(branch, dtype=torch.long),
        branches=count,
        tokens=sum(row.length for row in rows),
    )


def _mask(segment_BL: Tensor) -> Tensor:
    """[B, 1, L, L]: earlier tokens of the prefix or of one's own branch; padding sees itself, to stay finite."""
    length = segment_BL.shape[1]
    query_BL1, key_B1L = segment_BL[:, :, None], segment_BL[:, None, :]
    earlier_LL = torch.ones((length, length), dtype=torch.bool).tril()
    seen = ((key_B1L == 0) | (key_B1L == query_BL1)) & (key_B1L >= 0) & (query_BL1 >= 0) & earlier_LL
    return (seen | torch.eye(length, dtype=torch.bool))[:, None]


def forward(causal: Any, batch: Batch) -> Forward:
    """One pass: completions' log-probabilities and the read-out hidden states, with gradients where they are on."""
    mask = batch.mask
    config = causal.config
    if config._attn_implementation != "sdpa":  # eager attention adds its mask to the scores
        dtype = next(causal.parameters()).dtype
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    hidden_BLH = decoder(causal)(
        input_ids=batch.input_ids, attention_mask=mask, position_ids=batch.positions, use_cache=False
    ).last_hidden_state
    rows = torch.arange(batch.readout.shape[0], device=hidden_BLH.device)
    readout_BH = hidden_BLH[rows, batch.readout]
    # two-dimensional hidden states: a batched product with the LM head would copy the vocabulary matrix per row
    hidden_NH = hidden_BLH.flatten(0, 1)[batch.source]
    logp_N = label_logp(causal, hidden_NH, batch.label)
    logp_K = torch.zeros(batch.branches, dtype=logp_N.dtype, device=logp_N.device).index_add(0, batch.branch, logp_N)
    length_K = torch.bincount(batch.branch, minlength=batch.branches)
    return Forward(logp_K, length_K, readout_BH)


def label_logp(causal: Any, hidden_NH: Tensor, label_N: Tensor) -> Tensor:
    """Log-probability [N] of each label, computed a chunk of logits at a time."""
    parts = [hidden_NH.new_zeros(0, dtype=torch.float32)] if not len(label_N) else []
    plain = plain_head(causal) if torch.is_grad_enabled() else None
    for start in range(0, len(label_N), LABEL_CHUNK):
        hidden, labels = hidden_NH[start : start + LABEL_CHUNK], label_N[start : start + LABEL_CHUNK]
        if plain is not None:
            parts.append(_FrozenHeadLogp.apply(hidden, plain, labels))  # type: ignore[no-untyped-call]
        else:
            parts.append(-nn.functional.cross_entropy(project(causal, hidden), labels, reduction="none"))
    return torch.cat(parts)


def plain_head(causal: Any) -> Tensor | None:
    """The LM head's weight [V, H] when logits are just its product with the hidden states and it is frozen."""
    head, config = causal.get_output_embeddings(), causal.config.get_text_config()
    scaled = any(getattr(config, name, None) for name in ("logit_scale", "logits_scaling", "final_logit_softcapping"))
    if scaled or type(head) is not nn.Linear or head.bias is not None or head.weight.requires_grad:
        return None
    return head.weight


class _FrozenHeadLogp(torch.autograd.Function):
    """log softmax(h W^T)[label] with the gradient to h made in the forward pass.

    Each log-probability depends on its own hidden state alone, so d logp_n / d h_n = W[label_n] - softmax_n W can be
    kept ([N, H]) in place of the softmax ([N, V]), and the backward pass is one multiplication.
    """

    @staticmethod
    def forward(ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, label_N: Tensor) -> Tensor:
        logits_NV = hidden_NH @ weight_VH.T
        logits_NV = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
        total_N1 = logits_NV.logsumexp(-1, keepdim=True)
        logp_N = (logits_NV.gather(1, label_N[:, None]) - total_N1)[:, 0]
        softmax_NV = logits_NV.sub_(total_N1).exp_()
        ctx.save_for_backward(weight_VH[label_N] - softmax_NV.to(weight_VH.dtype) @ weight_VH)
        return logp_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        (slope_NH,) = ctx.saved_tensors
        return (grads[0][:, None].to(slope_NH.dtype) * slope_NH), None, None
