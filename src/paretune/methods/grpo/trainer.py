"""TRL's GRPO trainer, set up so that it is one of ours: our adapter, order, schedule, log and progress, no files.

Of TRL are the group-relative advantages (both ways to aggregate rewards), the clipped loss normalised by the tokens of
the whole batch (DAPO's, TRL's default) and the estimate of the KL divergence. Import this module only where TRL is
installed.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from paretune.errors import InputError
from paretune.methods.grpo.config import GrpoConfig
from paretune.methods.grpo.rollout import Rollouts
from paretune.methods.setup import Setup
from paretune.progress import Task
from paretune.training import DivergedError
from paretune.training.loop import learning_rate, peak_memory_mib

LOGGED = {
    "loss": "loss",
    "reward": "reward",
    "kl": "kl",
    "entropy": "entropy",
    "completions/mean_length": "completion_length",
    "completions/clipped_ratio": "cut_off",
    "frac_reward_zero_std": "alike",
    "grad_norm": "grad_norm",
}
"""TRL's names of what is logged, and ours."""


class Trainer(GRPOTrainer):  # type: ignore[misc]
    """GRPO that tells nobody it runs: TRL reports every training to its makers' server."""

    def _send_telemetry(self) -> None:
        return


def train_adapter(setup: Setup, peft: Any, rollouts: Rollouts) -> dict[str, Any]:
    """Train the adapter in `peft`; the last step's numbers, steps, seconds and tokens, as `paretune.training.run`."""
    low = [each for each in peft.parameters() if each.requires_grad and each.dtype in (torch.bfloat16, torch.float16)]
    kinds = [each.dtype for each in low]
    for each in low:  # the optimizer is torch's own, whose small steps these would round away
        each.data = each.data.float()
    steps = len(rollouts.turns) // setup.config.batch_size
    with quiet(), setup.progress("train", steps) as task:
        watch = Watch(setup, rollouts, task)
        with stop_tokens(setup.causal, rollouts.stop_ids):
            trainer = make_trainer(setup, peft, rollouts, watch)
            trainer.train()
    restore(setup.causal)
    for each, kind in zip(low, kinds, strict=True):
        each.data = each.data.to(kind)
    return watch.metrics(steps)


def make_trainer(setup: Setup, peft: Any, rollouts: Rollouts, watch: Watch) -> Trainer:
    """The trainer over all of `rollouts.turns`, one optimizer step for each `batch_size` of them."""
    config: GrpoConfig = setup.config
    if torch.cuda.device_count() > 1:
        raise InputError("grpo trains on one GPU; make one visible with CUDA_VISIBLE_DEVICES=0")
    steps = len(rollouts.turns) // config.batch_size
    trained = [each for each in peft.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(config, step, steps))
    trainer = Trainer(
        model=peft,
        reward_funcs=[reward_of(name) for name in setup.names],
        args=arguments(setup, steps, max(len(turn.ids) for turn in rollouts.turns)),
        train_dataset=Dataset.from_dict({"prompt": [str(place) for place in range(len(rollouts.turns))]}),
        processing_class=setup.renderer.tokenizer,
        callbacks=[watch],
        optimizers=(optimizer, schedule),
        rollout_func=rollouts,
    )
    trainer.remove_callback(PrinterCallback)
    if "ref" in peft.peft_config:  # TRL's copy of a fresh adapter: turning the adapter off is the same
        peft.delete_adapter("ref")
    return trainer


def arguments(setup: Setup, steps: int, longest: int) -> GRPOConfig:
    """TRL's settings of ours. Nothing is written: the output folder is one that is there."""
    config: GrpoConfig = setup.config
    answers = config.batch_size * config.num_generations
    at_once = rows_at_once(answers, longest + config.max_completion_length, config.micro_tokens)
    return GRPOConfig(
        output_dir=str(setup.out.parent),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=1,
        logging_nan_inf_filter=False,
        max_steps=steps,
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=answers // at_once,
        learning_rate=config.lr,
        max_grad_norm=config.clip,
        bf16=False,  # no autocast: the backbone computes in its own precision
        gradient_checkpointing=False,  # `add_adapter` has switched it on, where it is wanted
        dataloader_pin_memory=False,
        shuffle_dataset=False,
        seed=config.seed % 2**32,  # of dropout alone; numpy takes no more
        num_generations=config.num_generations,
        max_completion_length=config.max_completion_length,
        temperature=config.temperature,
        beta=config.beta,
        reward_weights=weights_of(setup.names, config),
        multi_objective_aggregation=config.aggregation,
    )


def rows_at_once(rows: int, length: int, budget: int) -> int:
    """How many rows a forward pass takes: the largest divisor of `rows` within `budget` tokens, at least 1."""
    return max(n for n in range(1, rows + 1) if rows % n == 0 and (n == 1 or n * length <= budget))


def weights_of(names: Sequence[str], config: GrpoConfig) -> list[float]:
    """Each objective's share of the reward; they sum to one."""
    given = config.weights or dict.fromkeys(names, 1.0)
    total = math.fsum(given.values())
    return [given.get(name, 0.0) / total for name in names]


def reward_of(name: str) -> Any:
    """A reward function in TRL's form: it passes on what the rollout measured, under the objective's name."""

    def reward(scores: Sequence[dict[str, float | None]], **others: Any) -> list[float | None]:
        return [each[name] for each in scores]

    reward.__name__ = name
    return reward


class Watch(TrainerCallback):  # type: ignore[misc]
    """Logs every step, advances the bar, and stops a training whose numbers are not finite before the step."""

    def __init__(self, setup: Setup, rollouts: Rollouts, task: Task) -> None:
        self.setup, self.rollouts, self.task = setup, rollouts, task
        self.record: dict[str, Any] = {}
        self.unscored: dict[str, int] = {}
        self.start = time.monotonic()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Gradients are whole and clipped by now."""
        grads = [each.grad for each in model.parameters() if each.grad is not None]
        if not all(bool(torch.isfinite(grad).all()) for grad in grads):
            names = ", ".join(turn.example.row.id for turn in self._turns(state.global_step)[:8])
            raise DivergedError(
                "training stopped before the step: the gradient is not finite. Rows in the batch: "
                f"{names}{', ...' if self.setup.config.batch_size > 8 else ''}. Lower lr or raise beta"
            )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """TRL's numbers of a step, by our names; None is what nothing could be measured of."""
        if "loss" not in logs:  # the trainer's summary at its end
            return
        found = {ours: logs.get(theirs) for theirs, ours in LOGGED.items()}
        found |= {f"reward_{name}": logs.get(f"rewards/{name}/mean") for name in self.setup.names}
        found |= {f"unscored_{name}": count for name, count in self.rollouts.unscored.items()}
        for name, count in self.rollouts.unscored.items():
            self.unscored[name] = self.unscored.get(name, 0) + count
        step, tokens = int(state.global_step), int(logs["num_tokens"])
        seconds = time.monotonic() - self.start
        self.record = {"step": step, "epoch": self._turns(step - 1)[0].epoch}
        self.record |= {name: value for name, value in found.items() if value is not None}
        self.record |= {"lr": logs["learning_rate"], "tokens": tokens}
        self.record["tokens_per_second"] = round(tokens / max(seconds, 1e-9), 2)
        self.setup.journal.write(self.record)
        shown = [f"{name} {self.record[name]:.3f}" for name in ("reward", "kl") if name in self.record]
        self.task.update(" ".join([*shown, f"{self.record['tokens_per_second']:.0f} tok/s"]))
        self.task.advance()

    def _turns(self, step: int) -> Sequence[Any]:
        size = self.setup.config.batch_size
        return self.rollouts.turns[step * size : (step + 1) * size]

    def metrics(self, steps: int) -> dict[str, Any]:
        """The last step's numbers; the answers that could not be scored are those of the whole training."""
        last = {name: value for name, value in self.record.items() if name not in ("step", "epoch", "lr")}
        last |= {f"unscored_{name}": count for name, count in self.unscored.items()}
        device = next(iter(self.setup.causal.parameters())).device
        measured = {"seconds": round(time.monotonic() - self.start, 3), "peak_memory_mib": peak_memory_mib(device)}
        return last | {"steps": steps} | measured


@contextmanager
def quiet() -> Iterator[None]:
    """Our own words, bar and log tell what TRL would print."""
    logger = logging.getLogger("trl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*rollout_func", category=UserWarning)
            warnings.filterwarnings("ignore", message=".*gradient_checkpointing", category=FutureWarning)
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def stop_tokens(causal: Any, ids: set[int]) -> Iterator[None]:
    """Let TRL, which counts the answers that were cut off, know every id that ends one."""
    config = causal.generation_config
    before = config.eos_token_id
    config.eos_token_id = sorted(ids)
    try:
        yield
    finally:
        config.eos_token_id = before


def restore(causal: Any) -> None:
    """Take TRL's own forward off the model: it answers for the trainer only."""
    vars(causal).pop("forward", None)
