"""`score -> train -> evaluate` on data that nobody here wrote: AlpacaEval answers and HH-RLHF pairs.

    python benchmarks/real_data.py alpaca_eval FILE --out runs/alpaca [--json]
    python benchmarks/real_data.py hh FILE --out runs/hh [--json]

FILE is a JSONL file of rows (AlpacaEval: instruction, answers of many models; HH-RLHF: `chosen` and `rejected`
transcripts). The subset keeps prompts of at most 400 characters in the last turn and cuts completions at `--max-tokens`
tokens (a cut answer is marked `"finished": false`, so that it does not teach the model to stop there). Everything is
then done by the package's own verbs; settings after `--set` go to `train`.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import paretune
from paretune.cli.progress import bars
from paretune.data import Completion, Row
from paretune.demo import demo_model
from paretune.policy.backbone import load_backbone

OBJECTIVES = ("relevance=embed:relevance", "positivity=lexical:positivity", "brevity=lexical:brevity")
MAX_PROMPT_CHARACTERS = 400


def cut(completion: Completion, tokenizer: Any, most: int) -> Completion:
    """The completion's first `most` tokens, marked as unfinished when that is not all of it."""
    ids = tokenizer(completion.text, add_special_tokens=False)["input_ids"]
    if len(ids) <= most:
        return completion
    return replace(
        completion,
        text=tokenizer.decode(ids[:most], skip_special_tokens=True),
        extra={**completion.extra, "finished": False},
    )


def subset(rows: list[Row], tokenizer: Any, arguments: argparse.Namespace) -> list[Row]:
    """Rows with short prompts and a few cut completions; the first ones in the file's order."""
    kept = [row for row in rows if len(row.text) <= MAX_PROMPT_CHARACTERS and len(row.prompt) <= arguments.turns]
    return [
        replace(row, completions=tuple(cut(each, tokenizer, arguments.max_tokens) for each in some(row, arguments)))
        for row in kept[: arguments.rows]
    ]


def some(row: Row, arguments: argparse.Namespace) -> list[Completion]:
    """`--completions` of the row's completions, drawn by the row's id, in their order."""
    indices = list(range(len(row.completions)))
    random.Random(f"{row.id}:completions").shuffle(indices)
    return [row.completions[i] for i in sorted(indices[: arguments.completions])]


def main() -> None:
    """Prepare, score, train and evaluate; print what came of it."""
    parser = argparse.ArgumentParser(description="score -> train -> evaluate on real rows")
    parser.add_argument("kind", choices=["alpaca_eval", "hh"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", help="base model (default: the demo's)")
    parser.add_argument("--method", default="sga")
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--turns", type=int, default=5, help="longest conversation kept, in messages")
    parser.add_argument("--completions", type=int, default=8, help="completions kept a prompt")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--max-prompts", type=int, default=128, help="test prompts evaluated")
    parser.add_argument("--name", default="", help="name of the policy's folder (default: the method)")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    model = arguments.model or str(demo_model())
    scored = arguments.out / "scored.jsonl"
    if not scored.exists():
        prepare(arguments, model, scored)
    policy = arguments.out / (arguments.name or arguments.method)
    trained = paretune.train(
        arguments.method, scored, model, policy, settings=arguments.settings, overwrite=True, progress=bars()
    )
    metrics = paretune.evaluate(
        [policy],
        scored,
        arguments.out / f"{policy.name}-report",
        max_prompts=arguments.max_prompts,
        max_new_tokens=arguments.max_tokens,
        overwrite=True,
        progress=bars(),
    )
    told = next(iter(metrics["policies"].values()))
    out = {"trained": trained.metrics, "dropped": trained.dropped, "evaluated": told}
    if arguments.json:
        print(json.dumps(out, default=str))
    else:
        print(json.dumps({"seconds": trained.seconds, "verdict": told["verdict"], "head": told["head"]}, indent=1))


def prepare(arguments: argparse.Namespace, model: str, scored: Path) -> None:
    """Write the subset and score it with the package's own rewards."""
    _, tokenizer = load_backbone(model)
    rows = subset(paretune.read_rows(arguments.file), tokenizer, arguments)
    short = arguments.out / "rows.jsonl"
    paretune.write_rows(short, rows)
    paretune.score(short, [paretune.parse_objective(each) for each in OBJECTIVES], scored, progress=bars())


if __name__ == "__main__":
    main()
