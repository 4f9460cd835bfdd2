"""A reward model's training against TRL's, at one output on the same pairs: accuracy on held-out pairs and time a step.

    python benchmarks/reward_model.py [--json] [--layers N] [--pairs N] [--steps N] [--model FOLDER]

The backbone is the first `--layers` of the demo's SmolLM2-135M, so that a run takes minutes on one core; LoRA r 32 on
every linear layer in both arms. The data are made here: a paragraph of about a hundred tokens, a question, and two
answers of which the one with more kind words (three of five against two) is preferred; a tenth of the training pairs is
turned round, and the held-out ones speak in words that training has not shown. Both arms take the same pairs in the
same order, in turns in one process, one forward pass and one optimizer step a batch, at constant learning rates: each
library's own defaults (TRL 1.16: 1e-4 for all; here 1e-4, and 1e-3 for the head). Figures:

accuracy, accuracy_trl        on held-out pairs, with 95% bootstrap intervals
time_ratio_trl                this package's step / TRL's, the median over turns of the ratio in a turn
tokens_ratio                  tokens a step computes here / there: the prompt is shared by both answers here
trl_two_outputs               what TRL's RewardTrainer says to a model of two outputs
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from common import run

from paretune.bootstrap import Bootstrap
from paretune.data.rows import Completion, Row
from paretune.demo import demo_model
from paretune.errors import InputError, check_whole
from paretune.policy.backbone import choose_dtype, hidden_size, load_backbone
from paretune.policy.packed import collate
from paretune.policy.renderer import Renderer
from paretune.profile import Objective
from paretune.reward_model.config import RewardConfig
from paretune.reward_model.examples import Dropped, RewardExample, encode, items_of
from paretune.reward_model.head import RewardHead
from paretune.reward_model.learner import RewardLearner
from paretune.reward_model.module import RewardModule
from paretune.reward_model.supervision import Supervision
from paretune.training import add_adapter
from paretune.training.loop import micro_batches
from paretune.training.optimizer import optimizer_for

KIND = [
    *("lovely", "charming", "friendly", "pleasant", "delightful", "wonderful"),
    *("splendid", "superb", "graceful", "warm", "kind", "bright"),
]
HARSH = [
    *("dreadful", "hateful", "nasty", "horrid", "miserable", "awful"),
    *("terrible", "ugly", "rotten", "cruel", "vile", "grim"),
]
SEEN = 7
"""This many of the words above occur in training; the others only in what is held out."""
THINGS = ["garden", "harbour", "market", "museum", "bakery", "library", "station", "bridge", "valley", "theatre"]
PLAIN = [
    "It lies at the end of a long street.",
    "People come there in the morning and leave at noon.",
    "There are four doors, and one of them is always open.",
    "Somebody painted the walls in the year of the flood.",
    "A bus goes there twice a day, on Sundays once.",
    "The man at the desk has worked there since spring.",
]


def make_rows(count: int, *, held_out: bool, seed: int = 0, noise: float = 0.1) -> list[Row]:
    """Labelled pairs; in training a share `noise` of them is turned round."""
    draw, rows = random.Random(f"{seed}:{held_out}"), []
    for at in range(count):
        thing = draw.choice(THINGS)
        told = " ".join(draw.choice(PLAIN) for _ in range(7))
        good, bad = (_answer(draw, thing, kind, held_out) for kind in (3, 2))
        if not held_out and draw.random() < noise:
            good, bad = bad, good
        prompt = f"A visitor writes about a {thing}, number {at}. {told} What do you say of the {thing}?"
        completions = (Completion(good, label="chosen"), Completion(bad, label="rejected"))
        rows.append(Row([{"role": "user", "content": prompt}], completions, id=str(at)))
    return rows


def _answer(draw: random.Random, thing: str, kind: int, held_out: bool) -> str:
    """Five adjectives, `kind` of them kind ones, and perhaps a sentence that says nothing."""
    words = [
        *draw.sample(KIND[SEEN:] if held_out else KIND[:SEEN], kind),
        *draw.sample(HARSH[SEEN:] if held_out else HARSH[:SEEN], 5 - kind),
    ]
    draw.shuffle(words)
    tail = " ".join(draw.choice(PLAIN) for _ in range(draw.randint(0, 2)))
    return (
        f"The {thing} is {', '.join(words[:3])}, and those who work there are {words[3]} and {words[4]}. {tail}".strip()
    )


def first_layers(model: str, layers: int, folder: Path) -> str:
    """The model's first layers, saved as a model; 0 is all of them."""
    if not layers:
        return model
    causal, tokenizer = load_backbone(model, dtype="float32")
    causal.model.layers = causal.model.layers[:layers]
    causal.config.num_hidden_layers = layers
    if getattr(causal.config, "layer_types", None):
        causal.config.layer_types = causal.config.layer_types[:layers]
    causal.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


class Ours:
    """This package's training: packed pairs, the shared loop's own parts."""

    def __init__(self, model: str, rows: Sequence[Row], held_out: Sequence[Row], dtype: str, dropout: float) -> None:
        self.config = RewardConfig(dtype=dtype, lora_dropout=dropout)
        causal, self.tokenizer = load_backbone(model, dtype=dtype)
        renderer = Renderer(self.tokenizer, [])
        self.end_of_turn = renderer.end_of_turn
        supervision = Supervision([Objective("preference")], self.config)
        supervision.fit(rows)
        self.train, self.held_out = (
            encode(part, supervision, renderer, max_length=1024, dropped=Dropped()) for part in (rows, held_out)
        )
        peft = add_adapter(causal, self.config)
        torch.manual_seed(0)
        head = RewardHead(hidden_size(causal), supervision.units, supervision.levels, self.config.head)
        self.module = RewardModule(peft, head).train()
        self.learner = RewardLearner(self.train, supervision, head, self.config)
        self.optimizer = optimizer_for(self.module, self.config)
        self.tokens = 0

    def step(self, indices: Sequence[int]) -> None:
        """One optimizer step on these pairs, in one forward pass."""
        items = [self.learner.item(i, 0) for i in indices]
        counts = self.learner.counts(items)
        for group in micro_batches(items, 1 << 30):
            batch = collate([item.packed for item in group], self.tokenizer.pad_token_id)
            loss, _ = self.learner.loss(self.module(batch), None, group, counts)
            loss.backward()
            self.tokens += batch.tokens
        self.optimizer.step(self.config.clip)

    @torch.no_grad()
    def right(self) -> list[float]:
        """1 a held-out pair whose winner has the higher reward."""
        self.module.eval()
        out = []
        for example in self.held_out:
            batch = collate([item.packed for item in items_of(example, 1 << 30)], self.tokenizer.pad_token_id)
            winner, loser = self.module(batch).raw[:, 0].tolist()
            out.append(float(winner > loser))
        return out


class Trl:
    """TRL's RewardTrainer as a user gets it: its own collator, `compute_loss`, backward and optimizer."""

    def __init__(self, model: str, ours: Ours, dtype: str) -> None:
        from datasets import Dataset, disable_progress_bars
        from peft import LoraConfig
        from transformers import AutoModelForSequenceClassification
        from trl import RewardConfig as TrlConfig
        from trl import RewardTrainer

        warnings.filterwarnings("ignore")
        disable_progress_bars()
        self.folder = tempfile.TemporaryDirectory()
        torch.manual_seed(0)
        self.model = AutoModelForSequenceClassification.from_pretrained(
            model, num_labels=1, dtype=getattr(torch, dtype)
        )
        config, tokenizer = ours.config, ours.tokenizer
        arguments = TrlConfig(
            output_dir=self.folder.name,
            per_device_train_batch_size=config.batch_size,
            gradient_checkpointing=False,
            bf16=dtype == "bfloat16",
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            max_length=None,
            # a classifier reads the last token that is no padding: it must not be the token that ends the turn
            pad_token=next(each for each in tokenizer.all_special_tokens if each != tokenizer.decode(ours.end_of_turn)),
        )
        lora = LoraConfig(
            r=config.lora_r,
            lora_alpha=config.lora_alpha,
            lora_dropout=config.lora_dropout,
            target_modules="all-linear",
            modules_to_save=["score"],  # as its documentation asks
            task_type="SEQ_CLS",
        )
        self.train, self.held_out = ([_whole(each) for each in part] for part in (ours.train, ours.held_out))
        self.trainer = RewardTrainer(
            model=self.model,
            args=arguments,
            train_dataset=Dataset.from_list(self.train),
            processing_class=copy.copy(tokenizer),
            peft_config=lora,
        )
        self.trainer.create_optimizer()
        self.trainer.model.train()
        self.trainer.current_gradient_accumulation_steps = 1  # what `train` would set
        self.tokens = 0

    def step(self, indices: Sequence[int]) -> None:
        """One optimizer step on these pairs."""
        batch = self.trainer.data_collator([self.train[i] for i in indices])
        self.tokens += int(batch["attention_mask"].sum())
        self.trainer.training_step(self.trainer.model, batch)
        torch.nn.utils.clip_grad_norm_(self.trainer.model.parameters(), self.trainer.args.max_grad_norm)
        self.trainer.optimizer.step()
        self.trainer.optimizer.zero_grad()

    @torch.no_grad()
    def right(self) -> list[float]:
        """1 a held-out pair whose winner has the higher reward."""
        self.trainer.model.eval()
        out = []
        for pair in self.held_out:
            batch = self.trainer.data_collator([pair])
            winner, loser = self.trainer.model(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
            ).logits[:, 0]
            out.append(float(winner > loser))
        return out


def _whole(example: RewardExample) -> dict[str, list[int]]:
    """Both sides of a pair as TRL has them: whole sequences."""
    sides = {0: "chosen_ids", 1: "rejected_ids"}
    return {
        name: [*example.prefix, *example.branches[k].suffix, *example.branches[k].completion]
        for k, name in sides.items()
    }


def two_outputs(model: str, tokenizer: Any) -> str:
    """What TRL says to a reward model of two outputs."""
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification
    from trl import RewardConfig as TrlConfig
    from trl import RewardTrainer

    two = AutoModelForSequenceClassification.from_pretrained(model, num_labels=2)
    pairs = Dataset.from_list([{"chosen_ids": [1, 2], "rejected_ids": [1, 3]}])
    with tempfile.TemporaryDirectory() as folder:
        try:
            RewardTrainer(
                model=two,
                args=TrlConfig(output_dir=folder, use_cpu=True, bf16=False, report_to=[]),
                train_dataset=pairs,
                processing_class=tokenizer,
            )
        except ValueError as error:
            return f"refused: {error}"
    return "accepted"


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train both arms in turns and compare."""
    device = torch.device("cpu")
    dtype = str(choose_dtype(arguments.dtype, device)).removeprefix("torch.")
    model = first_layers(arguments.model or str(demo_model()), arguments.layers, folder)
    rows = make_rows(arguments.pairs, held_out=False)
    ours = Ours(model, rows, make_rows(arguments.held_out, held_out=True), dtype, arguments.dropout)
    trl = Trl(model, ours, dtype)
    arms: dict[str, Ours | Trl] = {"ours": ours, "trl": trl}
    taken: dict[str, list[float]] = {name: [] for name in arms}
    for step in range(arguments.steps):
        start = step * arguments.batch % max(1, arguments.pairs - arguments.batch + 1)
        for name, arm in arms.items():
            taken[name].append(_seconds(arm.step, list(range(start, start + arguments.batch))))
    out: dict[str, Any] = {
        "dtype": dtype,
        "threads": torch.get_num_threads(),
        "layers": arguments.layers,
        "pairs": arguments.pairs,
        "steps": arguments.steps,
        "batch": arguments.batch,
        "seconds": round(statistics.median(taken["ours"][1:]), 3),
        "seconds_trl": round(statistics.median(taken["trl"][1:]), 3),
        "time_ratio_trl": round(
            statistics.median(one / two for one, two in zip(taken["ours"][1:], taken["trl"][1:], strict=True)), 3
        ),
        "tokens_ratio": round(ours.tokens / trl.tokens, 3),
    }
    for name, arm in arms.items():
        found = Bootstrap(1000).mean(arm.right())
        out["accuracy" if name == "ours" else "accuracy_trl"] = {**found.to_dict()}
    out["trl_two_outputs"] = two_outputs(model, ours.tokenizer)
    return out


def _seconds(step: Callable[[Sequence[int]], None], indices: Sequence[int]) -> float:
    gc.collect()
    start = time.perf_counter()
    step(indices)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="reward model training against TRL's")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--model", default="", help="base model (default: the demo's)")
    parser.add_argument("--layers", type=int, default=6, help="only the first layers of the model; 0: all")
    parser.add_argument("--pairs", type=int, default=192)
    parser.add_argument("--held-out", type=int, default=100)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=8, help="pairs a step")
    parser.add_argument("--dropout", type=float, default=0.05, help="LoRA dropout in both arms")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    arguments = parser.parse_args()
    for name, least in (("layers", 0), ("pairs", 1), ("held_out", 1), ("steps", 2), ("batch", 1)):
        check_whole(getattr(arguments, name), f"--{name.replace('_', '-')}", least=least)
    if arguments.batch > arguments.pairs:
        raise InputError(f"--batch {arguments.batch} takes more pairs than --pairs {arguments.pairs}")
    with tempfile.TemporaryDirectory() as folder:
        out = measure(arguments, Path(folder))
    print(json.dumps(out) if arguments.json else "\n".join(f"{key:20} {value}" for key, value in out.items()))


if __name__ == "__main__":
    run(main)
