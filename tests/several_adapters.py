"""Policies of several adapters in memory: random adapters, far from zero and from each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model_state_dict
from torch import Tensor

from paretune.policy import Policy, Renderer
from paretune.policy.backbone import load_backbone
from paretune.policy.several import Part, assemble
from paretune.policy.weights import WeightMap
from paretune.profile import Objective, Scale
from paretune.training import TrainConfig, add_adapter

NAMES = ("brevity", "cheer", "rude_words")


def one_hot(names: Sequence[str]) -> list[Part]:
    """A part for each objective."""
    return [Part(name, {each: float(each == name) for each in names}) for name in names]


def adapter_tensors(causal: Any, seed: int, std: float = 0.15) -> tuple[Any, dict[str, Tensor]]:
    """A PEFT configuration for the model, and the tensors of a random adapter; the model is left plain."""
    peft = add_adapter(causal, TrainConfig(lora_r=4, lora_alpha=8, lora_dropout=0.0, seed=seed))
    draw = torch.Generator().manual_seed(seed)
    state = get_peft_model_state_dict(peft, save_embedding_layers=False)
    tensors = {
        name: torch.randn(each.shape, generator=draw, dtype=torch.float32).to(each.dtype) * std
        if "lora_B" in name
        else each.detach().clone()
        for name, each in state.items()
    }
    config = peft.peft_config["default"]
    peft.unload()
    return config, tensors


def several(
    model: Path,
    rule: Any = "soup",
    parts: Sequence[Part] | None = None,
    *,
    names: Sequence[str] = NAMES,
    dtype: str = "float32",
    lift: Callable[[Any], Any] = lambda causal: causal,
) -> tuple[Policy, list[dict[str, Tensor]]]:
    """The policy, and each adapter's tensors."""
    parts = list(parts) if parts is not None else one_hot(names)
    causal, tokenizer = load_backbone(str(model), dtype=dtype)
    lift(causal)
    made = [adapter_tensors(causal, seed) for seed in range(len(parts))]
    tensors = [each for _, each in made]
    objectives = [Objective(name, f"column:{name}", scale=Scale("fixed"), scale_kind="fixed") for name in names]
    joined = assemble(causal, made[0][0], parts, tensors, rule)
    policy = Policy(
        causal=joined.peft.get_base_model(),
        tokenizer=tokenizer,
        renderer=Renderer(tokenizer, objectives),
        objectives=objectives,
        method={"soup": "soups", "mix": "mod", "nearest": "modpo"}[rule],
        base=str(model),
        peft=joined.peft,
        metadata={"dtype": dtype, "adapter": True},
        weight_map=WeightMap(rule),
        parts=joined,
    )
    return policy, tensors


def with_deltas(model: Path, deltas: Mapping[int, float], tensors: Sequence[Mapping[str, Tensor]], dtype: str) -> Any:
    """The base model with sum_i share_i * 2 * B_i A_i added to its weights by hand (alpha / r is 2)."""
    causal, _ = load_backbone(str(model), dtype=dtype)
    modules = dict(causal.named_modules())
    with torch.no_grad():
        for at, share in deltas.items():
            for name, a_RI in tensors[at].items():
                if "lora_A" not in name:
                    continue
                delta_OI = tensors[at][name.replace("lora_A", "lora_B")] @ a_RI * (2 * share)
                module = modules[name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")]
                turned = type(module).__name__ == "Conv1D"  # GPT-2 keeps its weights transposed
                module.weight += delta_OI.T if turned else delta_OI
    return causal
