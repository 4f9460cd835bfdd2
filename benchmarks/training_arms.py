"""The arms of `training_step.py`: one training step on the same pairs, by this package and by others.

sga              an SGA step as `paretune train sga --set preset=paper` takes it: packed rows, reference, DPO, sensing
trl              TRL's DPOTrainer as a user gets it: its own collator, `compute_loss`, backward and optimizer
released         `trl`, and before it the pass of the raw prompt for the sensing head that the released SGA code makes
*_labels         the same two, TRL's logits computed at labels only as it does where Triton runs
kv_cache         the SGA step with the other way of sharing: completions continue the prompt's KV cache, with gradients
separate         the SGA step with one row a completion, the prompt computed anew in each
peft_lora        the SGA step with PEFT's own LoRA layers
float32_adapter  the SGA step with PEFT's default of float32 adapters beside a bfloat16 backbone

Every arm holds its own model and returns a function that makes one whole step, the optimizer's included.
"""

from __future__ import annotations

import random
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from peft.tuners.lora.layer import Linear as PeftLinear
from torch import Tensor, nn

from paretune.data.rows import Row
from paretune.demo import demo_model
from paretune.methods.examples import Answer, Example
from paretune.methods.pairwise import RoleItem
from paretune.methods.sga.config import PRESETS, SgaConfig
from paretune.methods.sga.method import SgaLearner
from paretune.policy import Renderer
from paretune.policy.backbone import cached, decoder, hidden_size, load_backbone
from paretune.policy.head import SensingHead
from paretune.policy.lora import FusedLoraLinear
from paretune.policy.packed import Branch, Packed, collate, label_logp
from paretune.profile import Objective
from paretune.training import TrainModule, add_adapter, resolve
from paretune.training.loop import micro_batches
from paretune.training.module import Outputs
from paretune.training.optimizer import optimizer_for

Step = Callable[[], float]


@dataclass(frozen=True)
class Setting:
    """What is compared: pairs a step, lengths, objectives, the renderer's style, precision.

    `rendered`: render this many objectives whatever the head predicts; 0 = all of them.
    """

    pairs: int = 4
    prompt: int = 150
    completion: int = 60
    objectives: int = 2
    style: str = "scores"
    dtype: str = "float32"
    checkpointing: bool = False
    dropout: float = 0.05
    layers: int = 0
    rendered: int = 0
    model: str = ""

    @property
    def base(self) -> str:
        """The model's folder: the demo's unless another is named."""
        return self.model or str(demo_model())

    def config(self) -> SgaConfig:
        """The preset `paper` with these settings."""
        settings = [
            f"style={self.style}",
            f"dtype={self.dtype}",
            f"gradient_checkpointing={str(self.checkpointing).lower()}",
            f"lora_dropout={self.dropout}",
            f"lora_layers={self.layers}",
        ]
        return resolve(SgaConfig, presets=PRESETS, default_preset="paper", settings=["preset=paper", *settings])


def examples_of(setting: Setting, tokenizer: Any) -> list[Example]:
    """Pairs of random tokens with lengths within a fifth of the setting's, under a rendered profile."""
    draw = random.Random(0)
    objectives = [Objective(f"quality_{i}", f"column:{i}") for i in range(setting.objectives)]
    renderer = Renderer(tokenizer, objectives, style=setting.style, snap="paper")  # type: ignore[arg-type]

    def ids(mean: int) -> list[int]:
        return [draw.randrange(10, len(tokenizer)) for _ in range(draw.randint(mean * 4 // 5, mean * 6 // 5))]

    out = []
    for at in range(setting.pairs):
        target = {each.name: round(draw.random(), 2) for each in objectives}
        profile = dict(list(target.items())[: setting.rendered or None])
        row = Row([{"role": "user", "content": "the prompt's ids are drawn"}], id=str(at))
        answers = [Answer(ids(setting.completion), profile) for _ in range(2)]
        out.append(Example(row, ids(setting.prompt), answers, [target], renderer))
    return out


# --- this package ---------------------------------------------------------------------------------------------------


def sga_module(setting: Setting) -> tuple[TrainModule, Any]:
    """The module in training mode, and the tokenizer."""
    causal, tokenizer = load_backbone(setting.base, dtype=setting.dtype)
    config = setting.config()
    peft = add_adapter(causal, config)
    head = SensingHead(hidden_size(causal), setting.objectives, config.head)
    return TrainModule(peft, head, backbone_grad_scale=config.backbone_grad_scale).train(), tokenizer


def packed_forward(module: TrainModule, items: Sequence[RoleItem], pad: int) -> tuple[Outputs, Tensor]:
    """(outputs, the reference's log-probabilities) as the training loop has them."""
    batch = collate([item.packed for item in items], pad)
    reference = module.reference_logp(batch)
    return module(batch), reference


def sga(setting: Setting, forward: Any = packed_forward, change: Callable[[TrainModule], None] | None = None) -> Step:
    """The SGA step; `forward` computes it another way, `change` undoes a choice of the module."""
    module, tokenizer = sga_module(setting)
    if change is not None:
        change(module)
    config, examples = setting.config(), examples_of(setting, tokenizer)
    learner = SgaLearner(examples, config, [each.name for each in examples[0].renderer.objectives])
    learner.head = module.head
    optimizer = optimizer_for(module, config)

    def step() -> float:
        items = [learner.item(i, 0) for i in range(len(learner))]
        counts = learner.counts(items)
        total = 0.0
        for group in micro_batches(items, 1 << 30):  # one forward pass, as TRL makes one
            out, reference = forward(module, group, tokenizer.pad_token_id)
            loss, _ = learner.loss(out, reference, group, counts)
            loss.backward()
            total += float(loss.detach())
        optimizer.step(config.clip)
        return total

    return step


def float32_adapter(module: TrainModule) -> None:
    """PEFT's default."""
    for parameter in module.peft.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def peft_lora(module: TrainModule) -> None:
    """PEFT's own forward in every LoRA layer."""
    for each in module.modules():
        if type(each) is FusedLoraLinear:
            each.__class__ = PeftLinear


def no_trunk(module: TrainModule) -> None:
    """The layers below the adapter's are computed by the reference's pass and by the policy's."""
    module._trunk = None


def separate_forward(module: TrainModule, items: Sequence[RoleItem], pad: int) -> tuple[Outputs, Tensor]:
    """One row a completion and one for the raw prompt."""
    predicted = module(collate([Packed(item.prefix, []) for item in items], pad)).predicted
    batch = collate([Packed(item.prefix, [branch]) for item in items for branch in item.branches], pad)
    reference = module.reference_logp(batch)
    out = module(batch)
    return Outputs(out.logp, out.length, predicted), reference


def cache_forward(module: TrainModule, items: Sequence[RoleItem], pad: int) -> tuple[Outputs, Tensor]:
    """Completions continue the prompt's KV cache; gradients flow back through the cached keys and values."""
    with torch.no_grad(), module.peft.disable_adapter():
        reference, _ = _continue(module, items, pad)
    logp, readout = _continue(module, items, pad)
    assert module.head is not None
    return Outputs(logp, torch.zeros(0), module.head(readout)), reference


def _continue(module: TrainModule, items: Sequence[RoleItem], pad: int) -> tuple[Tensor, Tensor]:
    from transformers import DynamicCache

    model = decoder(module.causal)
    prefix, seen = _pad([item.prefix for item in items], pad)
    cache = DynamicCache()
    hidden = model(input_ids=prefix, attention_mask=seen, **cached(model, cache)).last_hidden_state
    lengths = seen.sum(1)
    readout = hidden[torch.arange(len(items)), lengths - 1]
    branches: list[Branch] = [branch for item in items for branch in item.branches]
    row = torch.tensor([i for i, item in enumerate(items) for _ in item.branches])
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[row], layer.values[row]
    ids, own = _pad([[*each.suffix, *each.completion] for each in branches], pad)
    positions = lengths[row][:, None] + torch.arange(ids.shape[1])
    hidden = model(
        input_ids=ids,
        attention_mask=torch.cat([seen[row], own], 1),
        position_ids=positions,
        **cached(model, cache),
    ).last_hidden_state
    source = [(k, len(each.suffix) - 1 + i) for k, each in enumerate(branches) for i in range(len(each.completion))]
    at = torch.tensor(source)
    labels = torch.tensor([token for each in branches for token in each.completion])
    logp = label_logp(module.causal, hidden[at[:, 0], at[:, 1]], labels)
    return torch.zeros(len(branches), dtype=logp.dtype).index_add(0, at[:, 0], logp), readout


def _pad(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """(ids, mask), right-padded."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
    return ids, (torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]).long()


# --- the released arithmetic ----------------------------------------------------------------------------------------


def trl(setting: Setting, *, raw: bool = False, labels_only: bool = False) -> Step:
    """TRL's DPOTrainer with the same LoRA; `raw` adds the raw prompts' pass with the sensing head."""
    from datasets import Dataset, disable_progress_bars
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer
    from trl.trainer import utils as trl_utils

    warnings.filterwarnings("ignore")
    disable_progress_bars()
    folder = tempfile.TemporaryDirectory()
    tokenizer = AutoTokenizer.from_pretrained(setting.base)
    model = AutoModelForCausalLM.from_pretrained(setting.base, dtype=getattr(torch, setting.dtype))
    config, examples = setting.config(), examples_of(setting, tokenizer)
    arguments = DPOConfig(
        output_dir=folder.name,
        per_device_train_batch_size=setting.pairs,
        gradient_checkpointing=setting.checkpointing,
        bf16=setting.dtype == "bfloat16",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        max_grad_norm=config.clip,
    )
    lora = LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    # TRL prepares texts; the step below collates ids
    texts = Dataset.from_dict({name: [f" {name}"] * setting.pairs for name in ("prompt", "chosen", "rejected")})
    trainer = DPOTrainer(model=model, args=arguments, train_dataset=texts, processing_class=tokenizer, peft_config=lora)
    pairs = [
        {
            "prompt_ids": [*each.prefix, *each.suffix(each.answers[0].profile)],
            "chosen_ids": each.answers[0].ids,
            "rejected_ids": each.answers[1].ids,
        }
        for each in examples
    ]
    head = SensingHead(model.config.hidden_size, setting.objectives, config.head)
    trainer.create_optimizer()
    trainer.optimizer.add_param_group({"params": list(head.parameters())})
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1  # what `train` would set
    target = torch.tensor([list(each.target.values()) for each in examples])

    def step() -> float:
        total = 0.0
        if raw:
            ids, mask = _pad([each.prefix for each in examples], tokenizer.pad_token_id)
            with trainer.compute_loss_context_manager():
                hidden = decoder(trainer.model.get_base_model())(input_ids=ids, attention_mask=mask, use_cache=False)
                readout = hidden.last_hidden_state[torch.arange(len(examples)), mask.sum(1) - 1]
                loss = 1000 * nn.functional.mse_loss(head(readout).float(), target)
            trainer.accelerator.backward(loss)
            total += float(loss.detach())
        with patch.object(trl_utils, "_use_triton", lambda device: True) if labels_only else nullcontext():
            total += float(trainer.training_step(trainer.model, trainer.data_collator(pairs)))
        nn.utils.clip_grad_norm_(trainer.model.parameters(), config.clip)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return total

    return step


ARMS: dict[str, Callable[[Setting], Step]] = {
    "sga": sga,
    "trl": trl,
    "released": lambda setting: trl(setting, raw=True),
    "trl_labels": lambda setting: trl(setting, labels_only=True),
    "released_labels": lambda setting: trl(setting, raw=True, labels_only=True),
    "kv_cache": lambda setting: sga(setting, cache_forward),
    "separate": lambda setting: sga(setting, separate_forward),
    "peft_lora": lambda setting: sga(setting, change=peft_lora),
    "float32_adapter": lambda setting: sga(setting, change=float32_adapter),
    "no_trunk": lambda setting: sga(setting, change=no_trunk),
}
