"""Packed rows: what the completions of a prompt have in common is computed once.

A packed row is the prefix tree of its sequences: the prompt, then each branch (rendered profile and completion) from
where it first differs from the others. Chosen and rejected under one profile share the profile too:

    prompt | profile | chosen | rejected          each token sees its own way back to the root, and nothing else

A mask over the tree and explicit positions make the numbers those of separate sequences. The sensing head reads the
last prompt token of the same pass. The mask is an ordinary 4-D mask that every transformers attention of kind `sdpa` or
`eager` takes, with gradient checkpointing and sharding as usual.

Shapes: B rows, L padded length, N labelled tokens of the batch, K branches of the batch, S segments of a row's tree, H
hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from paretune.errors import InputError
from paretune.policy.backbone import decoder, hidden_after, project, span_mean

LENGTH_BUCKET = 32  # rows are padded to multiples of this: few distinct kernel shapes
LABEL_CHUNK = 256  # label positions whose logits exist at one time; larger is no faster and takes more memory


@dataclass(frozen=True)
class Branch:
    """One continuation of a prefix: suffix ids (no loss) and completion ids (labels, with the end of the turn)."""

    suffix: Sequence[int]
    completion: Sequence[int]


@dataclass(frozen=True)
class Packed:
    """A prefix and its branches; the head reads the prefix's last `span` tokens (a row may serve it alone)."""

    prefix: Sequence[int]
    branches: Sequence[Branch]
    span: int = 1

    @property
    def length(self) -> int:
        """Tokens of the packed row."""
        return len(self.prefix) + len(Tree(self.branches).ids)


class Tree:
    """The prefix tree of branches, laid out depth first.

    ids, depth, segment: for each token of the tree its id, its distance from the prefix and its segment (a run of
    tokens without a fork); ways: for each segment, the segments on the way back to the root, itself included;
    places: for each branch, where each of its tokens lies.
    """

    def __init__(self, branches: Sequence[Branch]) -> None:
        self.ids: list[int] = []
        self.depth: list[int] = []
        self.segment: list[int] = []
        self.ways: list[list[int]] = []
        self.places: list[list[int]] = [[] for _ in branches]
        self._sequences = [[*each.suffix, *each.completion] for each in branches]
        self._grow(list(range(len(branches))), 0, [])

    def _grow(self, members: list[int], depth: int, way: list[int]) -> None:
        """Lay out what follows at `depth`, where the members' sequences have been the same so far."""
        groups: dict[int, list[int]] = {}
        for k in members:
            if len(self._sequences[k]) > depth:
                groups.setdefault(self._sequences[k][depth], []).append(k)
        for group in groups.values():
            end = depth + _common(self._sequences[group[0]][depth:], [self._sequences[k][depth:] for k in group[1:]])
            here, start = [*way, len(self.ways)], len(self.ids)
            self.ids += self._sequences[group[0]][depth:end]
            self.depth += range(depth, end)
            self.segment += [len(self.ways)] * (end - depth)
            self.ways.append(here)
            for k in group:
                self.places[k] += range(start, start + end - depth)
            self._grow(group, end, here)


def _common(first: Sequence[int], others: Sequence[Sequence[int]]) -> int:
    """Length of the longest common beginning."""
    shared = len(first)
    for other in others:
        differ = (i for i, (one, two) in enumerate(zip(first, other, strict=False)) if one != two)
        shared = min(shared, next(differ, len(other)))
    return shared


@dataclass(frozen=True)
class Batch:
    """Tensors of a batch of packed rows.

    input_ids, positions [B, L]; mask [B, 1, L, L], True = may attend; readout [B]: index of the last prefix token;
    source [N]: flat index (into B*L) of the token that predicts each label; label [N]; branch [N]: the branch, 0..K-1,
    in order of rows, that each label belongs to; branches: K; tokens: real tokens in the batch; spans [B]: tokens up to
    the read-out that the head averages; ends [K]: flat index of each branch's last token (of the prefix's last one
    where a branch has no tokens).
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
    spans: tuple[int, ...]
    ends: Tensor

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
    trees = [Tree(row.branches) for row in rows]
    size, longest = len(rows), max(len(row.prefix) + len(tree.ids) for row, tree in zip(rows, trees, strict=True))
    width = -(-longest // bucket) * bucket
    input_ids = torch.full((size, width), pad_id, dtype=torch.long)
    positions = torch.zeros((size, width), dtype=torch.long)
    mask = torch.eye(width, dtype=torch.bool).repeat(size, 1, 1)  # padding sees itself, to stay finite
    source: list[int] = []
    label: list[int] = []
    branch: list[int] = []
    ends: list[int] = []
    count = 0
    for i, (row, tree) in enumerate(zip(rows, trees, strict=True)):
        start, end = len(row.prefix), len(row.prefix) + len(tree.ids)
        input_ids[i, :end] = torch.tensor([*row.prefix, *tree.ids], dtype=torch.long)
        positions[i, :end] = torch.tensor([*range(start), *(start + each for each in tree.depth)])
        mask[i, :end, :end] = _mask(start, tree)
        for each, places in zip(row.branches, tree.places, strict=True):
            # with an empty suffix the prefix's last token predicts the first label
            way = [start - 1, *(start + place for place in places)]
            source += [i * width + at for at in way[len(each.suffix) : -1]]
            label += each.completion
            branch += [count] * len(each.completion)
            ends.append(i * width + way[-1])
            count += 1
    readout = torch.tensor([len(row.prefix) - 1 for row in rows])
    return Batch(
        input_ids=input_ids,
        positions=positions,
        mask=mask[:, None],
        readout=readout,
        source=torch.tensor(source, dtype=torch.long),
        label=torch.tensor(label, dtype=torch.long),
        branch=torch.tensor(branch, dtype=torch.long),
        branches=count,
        tokens=sum(len(row.prefix) + len(tree.ids) for row, tree in zip(rows, trees, strict=True)),
        spans=tuple(row.span for row in rows),
        ends=torch.tensor(ends, dtype=torch.long),
    )


def _mask(prefix: int, tree: Tree) -> Tensor:
    """[L, L] of a row without padding: what a token may see is earlier and on its way back to the root."""
    count = len(tree.ways) + 1  # segment 0 is the prefix
    sees_SS = torch.zeros((count, count), dtype=torch.bool)
    sees_SS[:, 0] = True
    for at, way in enumerate(tree.ways, start=1):
        sees_SS[at, torch.tensor(way) + 1] = True
    segment_L = torch.tensor([*[0] * prefix, *(each + 1 for each in tree.segment)])
    return sees_SS[segment_L][:, segment_L].tril()


def forward(causal: Any, batch: Batch, *, layer: int | None = None) -> Forward:
    """One pass: completions' log-probabilities and the read-out hidden states, with gradients where they are on.

    The head reads after decoder layer `layer` (by default after the last one and the final norm).
    """
    with hidden_after(causal, layer) as states:
        hidden_BLH = hidden_states(causal, batch)
    readout_BH = span_mean(states[0] if states else hidden_BLH, (batch.readout + 1).tolist(), batch.spans)
    # two-dimensional hidden states: a batched product with the LM head would copy the vocabulary matrix per row
    hidden_NH = hidden_BLH.flatten(0, 1)[batch.source]
    logp_N = label_logp(causal, hidden_NH, batch.label)
    logp_K = torch.zeros(batch.branches, dtype=logp_N.dtype, device=logp_N.device).index_add(0, batch.branch, logp_N)
    length_K = torch.bincount(batch.branch, minlength=batch.branches)
    return Forward(logp_K, length_K, readout_BH)


def hidden_states(causal: Any, batch: Batch) -> Tensor:
    """Last-layer hidden states [B, L, H] of packed rows; no logits are computed."""
    out: Tensor = decoder(causal)(
        input_ids=batch.input_ids,
        attention_mask=attention_mask(causal, batch),
        position_ids=batch.positions,
        use_cache=False,
    ).last_hidden_state
    return out


def end_states(causal: Any, batch: Batch) -> Tensor:
    """Hidden states [K, H] of every branch's last token: what a reward head reads, of one pass."""
    return hidden_states(causal, batch).flatten(0, 1)[batch.ends]


def attention_mask(causal: Any, batch: Batch) -> Tensor | dict[str, Tensor]:
    """The batch's mask as the model takes it: one for all layers, or one a kind of layer where some see a window only.

    Distances are those of the separate sequences (positions), so a window spans what it would span there.
    """
    config = causal.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    longest = int(batch.positions.max()) + 1
    if "chunked_attention" in kinds and longest > config.attention_chunk_size:
        raise InputError(
            f"sequences of {longest} tokens do not fit the model's attention chunk of {config.attention_chunk_size}; "
            "lower max_length"
        )
    full = _as_model_takes(causal, batch.mask)
    if window is None or longest <= window or kinds == {"full_attention"}:
        return full
    near = batch.positions[:, None, :, None] - batch.positions[:, None, None, :] < window
    windowed = _as_model_takes(causal, batch.mask & near)
    return {"full_attention": full, "sliding_attention": windowed} if kinds else windowed


def _as_model_takes(causal: Any, mask: Tensor) -> Tensor:
    if causal.config._attn_implementation == "sdpa":
        return mask
    dtype = next(causal.parameters()).dtype  # eager attention adds its mask to the scores
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


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
        precision = torch.float64 if logits_NV.dtype == torch.float64 else torch.float32
        logp_NV = torch.log_softmax(logits_NV, -1, dtype=precision)
        logp_N = logp_NV.gather(1, label_N[:, None])[:, 0]
        softmax_NV = logp_NV.exp_().to(weight_VH.dtype)
        ctx.save_for_backward(weight_VH[label_N] - softmax_NV @ weight_VH)
        return logp_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        (slope_NH,) = ctx.saved_tensors
        return (grads[0][:, None].to(slope_NH.dtype) * slope_NH), None, None
