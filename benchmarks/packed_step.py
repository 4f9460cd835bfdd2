"""What a training step costs, and what three choices of this package save: `make bench`, or

    python benchmarks/packed_step.py [--json] [--layers N] [--rows 8] [--repeat 3]

On the demo's model: packed rows of a 45-token prompt and three branches of 26 + 45 tokens, forward and backward. Ratios
in one run: packed against one row a branch; adapters in the backbone's precision (float32 masters in the optimizer)
against float32 adapters; log-probabilities whose gradient is made in the forward pass against autograd's cross-entropy.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from paretune.demo import demo_model
from paretune.policy import packed
from paretune.policy.backbone import load_backbone
from paretune.policy.packed import Branch, Packed, collate
from paretune.training import TrainConfig, TrainModule, add_adapter


def rows_of(count: int) -> list[Packed]:
    """Random rows of the benchmark's shape."""
    draw = random.Random(0)

    def ids(length: int) -> list[int]:
        return [draw.randrange(3, 40_000) for _ in range(length)]

    return [Packed(ids(45), [Branch(ids(26), ids(45)) for _ in range(3)]) for _ in range(count)]


def apart(rows: Sequence[Packed]) -> list[Packed]:
    """The same branches, each in a row of its own."""
    return [Packed(row.prefix, [branch]) for row in rows for branch in row.branches]


def seconds(step: Callable[[], None], repeat: int) -> float:
    """Median seconds of a step after one that is not counted."""
    step()
    taken = []
    for _ in range(repeat):
        start = time.perf_counter()
        step()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="cost of a packed training step")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--layers", type=int, default=0, help="LoRA on this many upper layers (0: all)")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    arguments = parser.parse_args()
    causal, tokenizer = load_backbone(str(demo_model()), dtype=arguments.dtype)
    module = TrainModule(
        add_adapter(causal, TrainConfig(lora_r=16, lora_dropout=0.0, lora_layers=arguments.layers)), None
    )
    module.train()
    rows = rows_of(arguments.rows)

    def step_on(these: Sequence[Packed]) -> Callable[[], None]:
        batch = collate(these, tokenizer.pad_token_id)

        def step() -> None:
            out = module(batch)
            (-out.logp.sum() / out.length.sum()).backward()

        return step

    base = seconds(step_on(rows), arguments.repeat)
    separate = seconds(step_on(apart(rows)), arguments.repeat)
    fast_head = packed.plain_head
    packed.plain_head = lambda causal: None
    autograd = seconds(step_on(rows), arguments.repeat)
    packed.plain_head = fast_head
    trained = [each for each in module.parameters() if each.requires_grad]
    for parameter in trained:
        parameter.data = parameter.data.float()
    float_adapters = seconds(step_on(rows), arguments.repeat)
    tokens = sum(row.length for row in rows)
    out = {
        "dtype": str(next(causal.parameters()).dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "layers": arguments.layers,
        "tokens": tokens,
        "tokens_per_second": round(tokens / base, 1),
        "time_ratio_separate": round(base / separate, 3),
        "time_ratio_float32_adapters": round(base / float_adapters, 3),
        "time_ratio_autograd_logp": round(base / autograd, 3),
    }
    print(json.dumps(out) if arguments.json else "\n".join(f"{key:28} {value}" for key, value in out.items()))


if __name__ == "__main__":
    main()
