"""Which part of the recipe does what: preset `paper` against `robust`, and `robust` with one part changed at a time.

    python benchmarks/ablation.py SCORED.jsonl --out runs/ablation [--seeds 0 1 2] [--only robust paper ...] [--json]
                                  [--set key=value ...]   settings that every arm shares

SCORED is a file of scored rows (`paretune score`, or the demo's); every arm trains and is evaluated by the package's
own verbs on the same split of a seed. What is there already is not made again, so a long table can be built in pieces.
`--table` prints the table of what is there and runs nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
from pathlib import Path
from typing import Any

from common import run as told

import paretune
from paretune.cli.progress import bars
from paretune.demo import demo_model
from paretune.errors import InputError
from paretune.files import read_json, write_json

OPTIMIZER = ("lr=1e-3", "lr_head=3e-4", "batch_size=8", "betas=[0.9,0.99]", "clip=1", "lora_r=16", "lora_alpha=32")
ARMS: dict[str, tuple[str, ...]] = {
    "paper": ("preset=paper", "scale=quantile"),
    "paper, robust's optimizer": ("preset=paper", "scale=quantile", *OPTIMIZER, "lora_dropout=0"),
    "robust": (),
    "style scores": ("style=scores",),
    "style levels": ("style=levels",),
    "no profile contrast": ("weight_contrast=0",),
    "no conditional likelihood": ("weight_conditional=0", "weight_sft=1"),
    "random partners (spread 1)": ("spread=1",),
    "no unconditioned rows": ("unconditioned=0",),
    "contrast x 1, partners by the whole profile": ("weight_contrast=1", "partners=profile", "spread=3"),
    "contrast x 2, partners by the whole profile": ("partners=profile", "spread=3"),
    "contrast x 1, partners by one objective": ("weight_contrast=1",),
    "three epochs": ("epochs=3",),
    "scheduled sampling .5": ("head_warmup=30", "sensed_share=0.5"),
    "jitter 1": ("head_warmup=30", "jitter=1"),
    "head's gradient x 0.2": ("backbone_grad_scale=0.2",),
    "head's gradient x 1": ("backbone_grad_scale=1",),
    "head read at the last token": ("head.readout=last", "head.layer=1"),
    "gaussian head": ("head.kind=gaussian",),
    "no head refit": ("head_epochs=0", "backbone_grad_scale=0.2"),
    "DPO, half asks for the rejected": ("weight_dpo=0.5", "request_rejected=0.5"),
    "DPO, chosen only": ("weight_dpo=0.5",),
    "likelihood stage first": ("sft_epochs=1",),
}
"""Name of an arm -> its settings beyond the shared ones; all but `paper` start from the preset `robust`.

Every arm has the same scales, or the distances could not be compared.
"""


def slug(arm: str, seed: int) -> str:
    """A folder's name."""
    return "".join(letter if letter.isalnum() else "-" for letter in arm) + f"-{seed}"


def run(arm: str, seed: int, arguments: argparse.Namespace) -> Path:
    """Train and evaluate one arm unless its figures are there; returns the file of figures."""
    place = arguments.out / slug(arm, seed)
    figures = place / "figures.json"
    settings = [*arguments.settings, *ARMS[arm], f"seed={seed}"]
    model = arguments.model or str(demo_model())
    asked = {
        "settings": settings,
        "model": Path(model).name,
        "data": hashlib.sha256(arguments.data.read_bytes()).hexdigest(),
        "evaluation": [arguments.max_prompts, arguments.max_new_tokens, arguments.control_prompts],
    }
    if figures.exists():
        if (made := figures_of(figures)["asked"]) != asked:
            raise InputError(f"was made with other settings ({made}); give another --out", file=figures)
        return figures
    policy = place / "policy"
    if not policy.exists() or read_json(place / "asked.json") != asked:
        write_json(place / "asked.json", asked)
        paretune.train("sga", arguments.data, model, policy, settings=settings, overwrite=True, progress=bars())
    metrics = paretune.evaluate(
        [policy],
        arguments.data,
        place / "report",
        max_prompts=arguments.max_prompts,
        max_new_tokens=arguments.max_new_tokens,
        control_prompts=arguments.control_prompts,
        overwrite=True,
        progress=bars(),
    )
    trained = read_json(policy / "metrics.json")
    write_json(figures, {"arm": arm, "seed": seed, "asked": asked} | gist(metrics, trained))
    return figures


def figures_of(file: Path) -> dict[str, Any]:
    """The figures of an arm as they were written."""
    found = read_json(file)
    wanted = {"asked", "distance", "minus_sensed", "control_accuracy", "control_spearman", "head_r2"}
    if not isinstance(found, dict) or not wanted <= found.keys():
        raise InputError("holds no figures of this benchmark; remove it, or give another --out", file=file)
    return found


def gist(metrics: dict[str, Any], trained: dict[str, Any]) -> dict[str, Any]:
    """The figures of an arm that the table shows."""
    told = next(iter(metrics["policies"].values()))
    value = lambda each: each["value"] if each else None  # noqa: E731
    return {
        "distance": {name: value(each["distance"]) for name, each in told["conditions"].items()},
        "minus_sensed": {
            name: [each["value"], each["low"], each["high"]] for name, each in told["differences"].items()
        },
        "control_accuracy": value(told["control_accuracy"]),
        "control_spearman": {name: value(each["spearman"]) for name, each in (told["control"] or {}).items()},
        "control_within": {name: value(each["spearman_within"]) for name, each in (told["control"] or {}).items()},
        "head_r2": {name: value(each["head"]["r2"]) for name, each in (told["head"] or {}).items()},
        "probe_r2": {name: value(each["probe"]["r2"]) for name, each in (told["head"] or {}).items() if each["probe"]},
        "sensing_helps": told["verdict"]["headline"],
        "seconds": trained["seconds"],
        "steps": trained["steps"],
    }


def mean(values: list[float | None]) -> str:
    """Mean of the defined values, with their standard deviation where there are several."""
    there = [each for each in values if each is not None]
    if not there:
        return "–"
    spread = f" ± {statistics.stdev(there):.3f}" if len(there) > 1 else ""
    return f"{statistics.fmean(there):.3f}{spread}"


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """A Markdown table, a row an arm; means over seeds."""
    head = (
        "| arm | seeds | oracle | sensed | - shuffled | - mean | - ones | - none | control accuracy | Spearman | R2 |"
    )
    lines = [head, "|" + "---|" * 11]
    for arm, runs in found.items():
        distance = {name: mean([each["distance"].get(name) for each in runs]) for name in ("oracle", "sensed")}
        gaps = [
            mean([(each["minus_sensed"].get(name) or [None])[0] for each in runs])
            for name in ("shuffled", "mean", "ones", "none")
        ]
        rho = " / ".join(
            mean([each["control_spearman"].get(name) for each in runs]) for name in runs[0]["control_spearman"]
        )
        r2 = " / ".join(mean([each["head_r2"].get(name) for each in runs]) for name in runs[0]["head_r2"])
        accuracy = mean([each["control_accuracy"] for each in runs])
        cells = [arm, str(len(runs)), distance["oracle"], distance["sensed"], *gaps, accuracy, rho or "–", r2 or "–"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the arms and print what came of them."""
    parser = argparse.ArgumentParser(description="ablation of the SGA recipe")
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", help="base model (default: the demo's)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", choices=list(ARMS), help="these arms (default: all)")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--max-prompts", type=int)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--control-prompts", type=int, default=16)
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not arguments.data.is_file() and not arguments.table:
        raise InputError("no such file", file=arguments.data)
    arms = arguments.only or list(ARMS)
    if not arguments.table:
        for seed in arguments.seeds:
            for arm in arms:
                run(arm, seed, arguments)
    found: dict[str, list[dict[str, Any]]] = {}
    for arm in arms:
        files = [arguments.out / slug(arm, seed) / "figures.json" for seed in arguments.seeds]
        there = [figures_of(file) for file in files if file.exists()]
        if there:
            found[arm] = there
    print(json.dumps(found) if arguments.json else table(found))


if __name__ == "__main__":
    told(main)
