"""Fixtures of the methods: encoded examples over a tiny model, learners in float64, and quick training runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from paretune.data import build_pairs, fit_objectives, read_rows
from paretune.methods import get_method, train
from paretune.methods.examples import Dropped, Example, encode
from paretune.methods.prepare import in_method_terms, renderer_settings
from paretune.methods.sensing import target_matrix
from paretune.policy import Renderer
from paretune.policy.backbone import hidden_size, load_backbone
from paretune.policy.head import SensingHead
from paretune.profile import Objective
from paretune.training import TrainModule, add_adapter, resolve
from paretune.training.loop import _accumulate

QUICK = ("dtype=float32", "epochs=1", "batch_size=10", "lora_r=4")
SGA_QUICK = (*QUICK, "head.width=16", "head.depth=1", "head_epochs=3")


@dataclass
class Bench:
    """A method ready to compute one effective batch: examples, config, module, learner; and the plain base model."""

    examples: list[Example]
    objectives: list[Objective]
    renderer: Renderer
    config: Any
    module: TrainModule
    learner: Any
    base: Any

    def batch(self, items: list[Any], **config: Any) -> dict[str, float]:
        """Logged numbers of the items as one effective batch; gradients are left in the module."""
        from dataclasses import replace

        self.module.zero_grad(set_to_none=True)
        settled = replace(self.config, **config) if config else self.config
        return _accumulate(self.module, self.learner, items, settled, self.renderer.tokenizer.pad_token_id)[0]

    def grads(self) -> dict[str, torch.Tensor]:
        """Gradients by parameter, copied."""
        return {name: each.grad.clone() for name, each in self.module.named_parameters() if each.grad is not None}

    def logp(self, model: Any, example: Example, text: str, profile: Any) -> float:
        """log p(text and the end of the turn | prompt, profile), by one plain forward of the joined ids."""
        start = [*self.renderer.prefix(example.row.prompt), *self.renderer.suffix(example.row.prompt, profile)]
        answer = self.renderer.completion(text)
        with torch.no_grad():
            logp = torch.log_softmax(model(torch.tensor([[*start, *answer]])).logits[0], dim=-1)
        return sum(logp[len(start) - 1 + i, token].item() for i, token in enumerate(answer))

    def predicted(self, example: Example) -> torch.Tensor:
        """The head's profile on the hidden states of the raw prompt alone, read where its config says."""
        ids = torch.tensor([self.renderer.prefix(example.row.prompt)])
        head = self.module.head
        with torch.no_grad():
            states = self.module.causal(ids, output_hidden_states=True).hidden_states
            layer = head.config.layer_of(len(states) - 1)
            hidden = states[-1 if layer is None else layer][:, -example.span :].mean(1)
            return head.profile(head(hidden))[0].double()

    def texts(self, example: Example) -> tuple[str, str]:
        """The chosen and the rejected text, found anew: highest against lowest mean of normalised scores."""

        def mean(completion: Any) -> float:
            return sum(each.normalise(completion.scores[each.name]) for each in self.objectives) / len(self.objectives)

        ranked = sorted(example.row.completions, key=mean)
        return ranked[-1].text, ranked[0].text

    def profile(self, example: Example, text: str) -> dict[str, float]:
        """The normalised scores of a completion."""
        scores = next(each.scores for each in example.row.completions if each.text == text)
        return {each.name: each.normalise(scores[each.name]) for each in self.objectives}


@pytest.fixture
def bench(scored_rows: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    """Builds a bench for a method over a tiny model: float64, no dropout, an adapter far from zero."""
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim=-1, dtype=None: softmax(x, dim=dim))

    def exact(model: Any) -> Any:
        # transformers' norms go down to float32 even in a float64 model
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = lambda x, norm=module: (
                    x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon) * norm.weight
                )
        return model

    def make(method: str, model: Path, *settings: str, count: int = 6) -> Bench:
        how = get_method(method)
        fixed = [
            "lora_dropout=0",
            "lora_r=4",
            "dtype=float64",
            *(["head.dropout=0", "head.hidden_dropout=0", "head.width=16"] if how.senses else []),
        ]
        config: Any = resolve(
            how.config, presets=how.presets, default_preset=how.default_preset, settings=[*fixed, *settings]
        )
        rows = read_rows(scored_rows)
        objectives = [Objective("brevity", scale_kind=config.scale), Objective("cheer", scale_kind=config.scale)]
        objectives = fit_objectives(rows, objectives)
        causal, tokenizer = load_backbone(str(model), dtype="float64")
        base, _ = load_backbone(str(model), dtype="float64")
        renderer = Renderer(tokenizer, objectives, **renderer_settings(config, rows, objectives))
        pairs = build_pairs(rows[8 : 8 + count], objectives)[0]  # both kinds of prompt
        readout = config.head.readout if how.senses else "last"
        examples = encode(pairs, renderer, max_length=250, readout=readout, dropped=Dropped())
        assert len(examples) == count
        in_method_terms(examples, config)
        peft = add_adapter(exact(causal), config)
        torch.manual_seed(1)
        with torch.no_grad():
            for name, each in peft.named_parameters():
                if "lora_B" in name:
                    each.normal_(std=0.05)
        names, head, scale = [each.name for each in objectives], None, 1.0
        if how.senses:
            head, scale = SensingHead(hidden_size(causal), len(names), config.head), config.backbone_grad_scale
            targets = target_matrix(examples, names)
            head.set_statistics(targets.mean(0), targets.std(0, correction=0), start_at_mean=False)
        layer = config.head.layer_of(causal.config.num_hidden_layers) if how.senses else None
        module = TrainModule(peft, head, backbone_grad_scale=scale, readout_layer=layer).train()
        learner: Any = how.learner(examples, config, names)
        if how.senses:
            learner.head = head
        return Bench(examples, objectives, renderer, config, module, learner, exact(base))

    return make


@pytest.fixture
def quick(scored_rows: Path, tiny_llama: Path, tmp_path: Path) -> Callable[..., Path]:
    """Trains a policy in a blink and returns its folder."""

    def run(
        name: str = "policy", *settings: str, method: str = "sga", model: Path = tiny_llama, **options: Any
    ) -> Path:
        out = tmp_path / name
        defaults = SGA_QUICK if method == "sga" else QUICK
        data = options.pop("data", scored_rows)
        train(method, data, str(model), out, settings=[*defaults, *settings], **options)
        return out

    return run
