"""Heads that transformers has no class for, computed from their saved tensors: no code of the model is run.

Each takes the backbone's last hidden states [b, t, hidden] of right-padded texts in float32 and gives [b, outputs].
What they compute is stated by their authors' code, named at each class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from paretune.errors import InputError
from paretune.rewards.hf.known import gated_names, score_names

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]
    Batch = Mapping[str, torch.Tensor]
    Layer = tuple[torch.Tensor, torch.Tensor | None]


class Head(Protocol):
    """Outputs from hidden states. `default` is the output of a spec that names none."""

    labels: Sequence[str]
    default: str | None

    def __call__(self, hidden_BTH: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Outputs [b, k]; NaN where one cannot be computed."""


PREFIXES = {
    "value": ("v_head.",),
    "score": ("score_head.", "normalizer."),
    "gated": ("regression_layer.", "gating.", "reward_transform_matrix"),
}
"""Kind of head -> what its tensors' names begin with."""


def build_head(
    kind: str, tensors: Tensors, config: Mapping[str, Any], tokenizer: Any, location: str, device: Any
) -> Head:
    """The head of a kind. Raises `InputError` where a tensor it needs is missing."""
    moved = {name: tensor.to(device) for name, tensor in tensors.items()}
    try:
        if kind == "value":
            return ValueHead(moved)
        if kind == "score":
            return ScoreHead(moved, config)
        return GatedHead(moved, config, tokenizer)
    except KeyError as error:
        raise InputError(
            f"the model '{location}' has no trained reward head: its weights lack {error.args[0]}"
        ) from None


def _last(hidden_BTH: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Hidden states [b, hidden] of the last token of each text."""
    import torch

    ends_B = batch["attention_mask"].sum(dim=1) - 1
    return hidden_BTH[torch.arange(len(ends_B), device=ends_B.device), ends_B]


def _layers(tensors: Tensors, pattern: str) -> list[Layer]:
    """(weight, bias) of linear layers, in the order of the number in their names."""
    found = {int(hit[1]): name for name in tensors if (hit := re.fullmatch(pattern + r"\.(\d+)\.weight", name))}
    if not found:
        raise KeyError(pattern.replace("\\", "") + ".0.weight")
    return [(tensors[found[at]], tensors.get(found[at].removesuffix("weight") + "bias")) for at in sorted(found)]


def _perceptron(layers: Sequence[Layer], x: torch.Tensor) -> torch.Tensor:
    """Linear layers with a ReLU between them."""
    import torch.nn.functional as F

    for at, (weight, bias) in enumerate(layers):
        x = F.linear(x if at == 0 else x.relu(), weight, bias)
    return x


class ValueHead:
    """GRM's value head: a linear layer, or linear layers with ReLU between, on the last token (modeling_grm.py)."""

    labels: Sequence[str] = ("reward",)
    default: str | None = "reward"

    def __init__(self, tensors: Tensors) -> None:
        single = "v_head.summary.weight"
        linear = single in tensors
        self.layers = (
            [(tensors[single], tensors.get("v_head.summary.bias"))] if linear else _layers(tensors, r"v_head\.summary")
        )

    def __call__(self, hidden_BTH: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The reward [b, 1]."""
        return _perceptron(self.layers, _last(hidden_BTH, batch))


class ScoreHead:
    """safe-rlhf's score model: a linear layer on the last token, normalised where its config says so.

    A reward is normalised by mean and deviation, a cost by the deviation alone, so that its sign keeps its meaning
    (safe_rlhf/models/score_model and normalizer.py).
    """

    def __init__(self, tensors: Tensors, config: Mapping[str, Any]) -> None:
        import torch

        self.weight, self.bias = tensors["score_head.weight"], tensors.get("score_head.bias")
        kind = str(config.get("score_type", "reward"))
        self.labels: Sequence[str] = score_names(len(self.weight), kind)
        self.default: str | None = self.labels[0] if len(self.labels) == 1 else None
        self.mean, self.deviation = torch.zeros(1, device=self.weight.device), None
        if config.get("do_normalize") and kind in ("reward", "cost"):
            mean, var = (self._statistic(tensors, config, name) for name in ("mean", "var"))
            self.deviation = var.sqrt() + 1e-8
            self.mean = mean if kind == "reward" else self.mean

    def _statistic(self, tensors: Tensors, config: Mapping[str, Any], name: str) -> torch.Tensor:
        import torch

        saved = tensors.get(f"normalizer.{name}")
        if saved is None and config.get(name) is None:
            raise KeyError(f"normalizer.{name}")
        return saved if saved is not None else torch.tensor(config[name], device=self.weight.device)

    def __call__(self, hidden_BTH: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The scores [b, score_dim]."""
        import torch.nn.functional as F

        scores_BK = F.linear(_last(hidden_BTH, batch), self.weight, self.bias)
        return scores_BK if self.deviation is None else (scores_BK - self.mean) / self.deviation


class GatedHead:
    """ArmoRM: attributes by a linear layer on the last token, and their sum gated by the prompt (modeling_custom.py).

    The gate is a perceptron with a softmax on the hidden state where the last assistant turn begins; it weighs the
    attributes after a fixed linear transform that takes length out of them. Where the input was cut so far that the
    turn's beginning is gone, there is no gated sum.
    """

    default: str | None = "score"

    def __init__(self, tensors: Tensors, config: Mapping[str, Any], tokenizer: Any) -> None:
        self.regression = tensors["regression_layer.weight"]
        self.transform = tensors["reward_transform_matrix"]
        self.layers = _layers(tensors, r"gating\.layers")
        self.scale = tensors["gating.logit_scale"]
        self.temperature = float(config.get("gating_temperature", 10))
        self.labels: Sequence[str] = gated_names(len(self.regression))
        turn = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        self.turn = list(tokenizer(turn, add_special_tokens=False)["input_ids"])

    def __call__(self, hidden_BTH: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Attributes and gated sum [b, attributes + 1]."""
        import torch

        attributes_BK = _last(hidden_BTH, batch) @ self.regression.T
        places = [self._turn_begins(ids) for ids in batch["input_ids"].tolist()]
        prompts_BH = hidden_BTH[torch.arange(len(places)), [max(place, 0) for place in places]]
        gates_BK = torch.softmax(_perceptron(self.layers, prompts_BH) / self.temperature, dim=1) * self.scale
        sums_B1 = (gates_BK * (attributes_BK @ self.transform)).sum(dim=1, keepdim=True)
        there = torch.tensor([[place >= 0] for place in places], device=sums_B1.device)
        return torch.cat([attributes_BK, sums_B1.where(there, torch.nan)], dim=1)

    def _turn_begins(self, ids: list[int]) -> int:
        """Where the tokens that open the last assistant turn begin; -1 where there are none."""
        count = len(self.turn)
        return next((at for at in range(len(ids) - count, -1, -1) if ids[at : at + count] == self.turn), -1)
