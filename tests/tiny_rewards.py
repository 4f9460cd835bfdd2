"""Rows to make reward models of, and a learner over a tiny model in float64 to compute by hand against."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from paretune.data.formats import parse_row
from paretune.data.rows import Completion, Row
from paretune.policy.backbone import hidden_size, load_backbone
from paretune.policy.renderer import Renderer
from paretune.profile import Objective
from paretune.reward_model.config import RewardConfig
from paretune.reward_model.examples import Dropped, encode
from paretune.reward_model.head import RewardHead
from paretune.reward_model.learner import RewardLearner
from paretune.reward_model.module import RewardModule
from paretune.reward_model.supervision import Supervision
from paretune.training.loop import _accumulate
from paretune.training.module import add_adapter

QUICK = ("dtype=float32", "epochs=1", "batch_size=8", "lora_r=4", "bootstrap=50", "validation=0.25")


def rows_of(count: int = 24) -> list[dict[str, Any]]:
    """Prompts with three answers: `kind` rated 0 to 4 (yes a point), `polite` by preferences (Please before Never)."""
    draw, out = random.Random(0), []
    for at in range(count):
        kinds = [draw.randint(0, 4) for _ in range(3)]
        texts = [f"{'Please' if kind % 2 else 'Never'} {'yes ' * kind}{at}." for kind in kinds]
        order = [[a, b] for a in range(3) for b in range(3) if kinds[a] % 2 > kinds[b] % 2]
        row = {
            "id": f"p{at}",
            "prompt": f"What is number {at}?",
            "completions": [{"text": t, "scores": {"kind": float(k)}} for t, k in zip(texts, kinds, strict=True)],
        }
        out.append(row | ({"preferences": {"polite": order}} if order else {}))
    return out


class Bench:
    """A learner ready to compute one effective batch over a tiny model in float64, its adapter far from zero."""

    def __init__(
        self, model: Path, rows: list[Row], names: list[str], config: RewardConfig, exact: Callable[[Any], Any]
    ) -> None:
        causal, self.tokenizer = load_backbone(str(model), dtype="float64")
        self.renderer = Renderer(self.tokenizer, [])
        objectives = [Objective(each.removeprefix("-"), direction=_direction(each)) for each in names]
        self.supervision = Supervision(objectives, config)
        self.supervision.fit(rows)
        self.examples = encode(rows, self.supervision, self.renderer, max_length=250, dropped=Dropped())
        peft = add_adapter(exact(causal), config)
        torch.manual_seed(1)
        with torch.no_grad():
            for name, each in peft.named_parameters():
                if "lora_B" in name:
                    each.normal_(std=0.05)
        self.head = RewardHead(hidden_size(causal), self.supervision.units, self.supervision.levels, config.head)
        with torch.no_grad():
            self.head.layers[-1].weight.mul_(10)
        self.module = RewardModule(peft, self.head.double()).train()
        self.config = config
        self.learner = RewardLearner(self.examples, self.supervision, self.head, config)

    def batch(self, items: list[Any] | None = None, config: RewardConfig | None = None) -> dict[str, float]:
        """Logged numbers of the items (all of them) as one effective batch; gradients are left in the module."""
        self.module.zero_grad(set_to_none=True)
        chosen = self.learner.items if items is None else items
        config = config or self.config
        return _accumulate(self.module, self.learner, chosen, config, self.tokenizer.pad_token_id)[0]

    def grads(self) -> dict[str, torch.Tensor]:
        """Gradients by parameter, copied."""
        return {name: each.grad.clone() for name, each in self.module.named_parameters() if each.grad is not None}

    def alone(self, row: Row, answer: int) -> torch.Tensor:
        """Raw rewards [M] by one plain forward of the joined ids, read at the last token."""
        prompt = row.prompt
        ids = [*self.renderer.prefix(prompt), *self.renderer.suffix(prompt, None)]
        ids += self.renderer.completion(row.completions[answer].text)
        states = self.module.causal(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1]
        return self.head(states[:, -1])[0]


def _direction(name: str) -> Any:
    return "minimise" if name.startswith("-") else "maximise"


def as_row(data: dict[str, Any]) -> Row:
    """A row of the contract, read as the reader reads it."""
    return parse_row(data)


def pair_row(at: int, winner: str, loser: str, **scores: Any) -> Row:
    """A labelled pair."""
    completions = (
        Completion(winner, scores.get("chosen", {}), "chosen"),
        Completion(loser, scores.get("rejected", {}), "rejected"),
    )
    return Row([{"role": "user", "content": f"Question {at}?"}], completions, id=f"p{at}")
