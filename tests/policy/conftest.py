"""Fixtures of the policy room: objectives with fitted scales, renderers, and small policies in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paretune.policy import Policy, Renderer
from paretune.policy.backbone import hidden_size, load_backbone
from paretune.policy.head import HeadConfig, SensingHead
from paretune.profile import Objective, Scale
from paretune.training.config import TrainConfig
from paretune.training.module import add_adapter

PHRASES = ("Be very long.", "Be long.", "", "Be short.", "Answer in one sentence.")


@pytest.fixture
def objectives() -> list[Objective]:
    """Three objectives, one of them minimised, one with phrases of its own."""
    return [
        Objective("brevity", "column:brevity", scale=Scale("fixed"), scale_kind="fixed", phrases=PHRASES),
        Objective("cheer", "column:cheer", scale=Scale("fixed"), scale_kind="fixed"),
        Objective("rude_words", "column:rude", "minimise", scale=Scale("fixed", True), scale_kind="fixed"),
    ]


@pytest.fixture
def make_policy(objectives: list[Objective]) -> Callable[..., Policy]:
    """Builds a policy with a random head and an adapter whose weights are far from zero."""

    def make(
        model: Path, *, dtype: str = "float32", style: str = "scores", seed: int = 0, snap: str = "none"
    ) -> Policy:
        causal, tokenizer = load_backbone(str(model), dtype=dtype)
        peft = add_adapter(causal, TrainConfig(lora_r=4, lora_alpha=8, lora_dropout=0.0, seed=seed))
        torch.manual_seed(seed)
        with torch.no_grad():
            for name, each in peft.named_parameters():
                if "lora_B" in name:
                    each.normal_(std=0.1)
        head = SensingHead(hidden_size(causal), len(objectives), HeadConfig(width=16, depth=1))
        return Policy(
            causal=peft.get_base_model(),
            tokenizer=tokenizer,
            renderer=Renderer(tokenizer, objectives, style=style, snap=snap),
            objectives=objectives,
            method="sga",
            base=str(model),
            head=head.eval(),
            peft=peft.eval(),
            metadata={"dtype": dtype, "adapter": True, "data": {"path": "rows.jsonl"}},
        )

    return make


def user(text: str) -> list[dict[str, str]]:
    """A conversation of one user message."""
    return [{"role": "user", "content": text}]


@pytest.fixture
def prompts() -> list[list[dict[str, str]]]:
    """Conversations of very different lengths, one with a system prompt, one with several turns."""
    return [
        user("Hi"),
        user("Why is the sky blue, and why does it turn red when the sun goes down over the sea? Please explain it."),
        [{"role": "system", "content": "You are a poet."}, *user("Tell me a joke.")],
        [*user("What is tea?"), {"role": "assistant", "content": "A drink."}, *user("And what is coffee then?")],
        user("Give me a list of three fruits: " + "apples, pears, " * 9),
    ]


@pytest.fixture
def plain_model() -> Callable[[Path], tuple[Any, Any]]:
    """Loads (model, tokenizer) with transformers alone, in float64: the independent reference."""

    def load(path: Path) -> tuple[Any, Any]:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64).eval(), AutoTokenizer.from_pretrained(
            path
        )

    return load
