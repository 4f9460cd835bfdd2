"""Every method under one budget: trained on the same rows, judged by the same evaluation, on one front.

    python benchmarks/methods.py SCORED.jsonl --out runs/methods [--tokens 200000] [--seeds 0 1] [--methods sga ric ...]
                                 [--set [METHOD:]key=value ...] [--max-prompts 100] [--json] [--table] [--plot F.png]
    python benchmarks/methods.py SCORED.jsonl --out runs/curve --curve 2 3 5 [--methods sga soups modpo]

The budget is the same base model, LoRA, split and number of training tokens (`max_tokens`; prompt tokens that a packed
row shares are counted once, which is what they cost); a method of several adapters divides it among them. Everything
else is the method's own default. Policies are trained and compared by the package's own verbs, each under the simplex
grid of preference weights and in its natural condition, seed by seed; figures are means over seeds. What is there
already is not made again, so a long table can be built in pieces; `--table` prints what is there and runs nothing.

`--curve` trains on the first m objectives of the data, every adapter for one epoch, and prints what m objectives cost.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import run as told

import paretune
from paretune.cli.progress import bars
from paretune.data import read_rows
from paretune.data.pairs import objectives_of
from paretune.demo import demo_model
from paretune.errors import InputError, did_you_mean
from paretune.files import read_json, write_json

SHARED = ("lora_r=16", "lora_alpha=32", "lora_dropout=0", "batch_size=8", "betas=[0.9,0.99]", "clip=1", "epochs=1000")
METHODS: dict[str, tuple[str, ...]] = {
    "sga": (),
    "sft": (),
    "dpo": ("lr=5e-4",),
    "ric": (),
    "cpo": (),
    "steer": (),
    "pro": (),
    "soups": ("lr=5e-4",),
    "mod": ("lr=5e-4",),
    "modpo": ("lr=5e-4",),
}
"""Method -> its settings beyond the shared ones and its own defaults. The rate of `dpo` was chosen on the demo's
validation part, from 5e-5, 2e-4 and 5e-4 after 40,000 tokens; those of several adapters learn by the same loss."""
FIGURES = ("multi_win", "win_only", "hypervolume", "distance", "inner_product", "words")


def place(arguments: argparse.Namespace, method: str, seed: int, objectives: Sequence[str] = ()) -> Path:
    """The folder of a policy."""
    many = f"-{len(objectives)}" if objectives else ""
    return Path(arguments.out) / f"{method}{many}-{seed}"


def given(settings: Sequence[str], method: str) -> list[str]:
    """The settings for a method: those for all, and those that begin with its name and a colon."""
    split = [each.split(":", 1) if ":" in each.split("=")[0] else ["", each] for each in settings]
    for name, _ in split:
        if name and name not in METHODS:
            raise InputError(f"unknown method '{name}'.{did_you_mean(name, METHODS)}", field="--set")
    return [setting for name, setting in split if name in ("", method)]


def train(
    arguments: argparse.Namespace, method: str, seed: int, budget: Sequence[str], objectives: Sequence[str] = ()
) -> Path:
    """A method's policy for a seed, trained unless it is there."""
    folder = place(arguments, method, seed, objectives)
    shared = [each for each in SHARED if not each.startswith("epochs=") or "max_tokens" in " ".join(budget)]
    settings = [*shared, *METHODS[method], *given(arguments.settings, method), *budget, f"seed={seed}"]
    asked = {
        "settings": settings,
        "objectives": list(objectives),
        "model": Path(arguments.model).name,
        "data": hashlib.sha256(arguments.data.read_bytes()).hexdigest(),
    }
    note = folder.with_name(f"{folder.name}.asked.json")
    if folder.exists():
        if (made := read_json(note)) != asked:
            raise InputError(f"was trained with other settings ({made}); give another --out", file=folder)
        return folder
    write_json(note, asked)
    paretune.train(
        method, arguments.data, arguments.model, folder, settings=settings, objectives=objectives, progress=bars()
    )
    return folder


def evaluate(arguments: argparse.Namespace, policies: Sequence[Path], seed: int, name: str) -> dict[str, Any]:
    """metrics.json of all policies of a seed, compared."""
    report = Path(arguments.out) / f"{name}-{seed}"
    asked = {
        "policies": [each.name for each in policies],
        "evaluation": [arguments.max_prompts, arguments.max_new_tokens, arguments.judge_with],
    }
    note = report.with_name(f"{report.name}.asked.json")
    if (report / "metrics.json").is_file() and read_json(note) == asked:
        found = read_json(report / "metrics.json")
        assert isinstance(found, dict)
        return found
    write_json(note, asked)
    return paretune.evaluate(
        policies,
        arguments.data,
        report,
        conditions=["sensed", "oracle", "none"],
        weights="grid",
        include_base=True,
        judge_with=arguments.judge_with or None,
        max_prompts=arguments.max_prompts,
        max_new_tokens=arguments.max_new_tokens,
        control_prompts=0,
        overwrite=True,
        progress=bars(),
    )


def figures(metrics: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the table shows of each policy of a seed."""
    out = {}
    for name, each in metrics["comparison"]["policies"].items():
        own = metrics["policies"][name]
        out[name.rsplit("-", 1)[0] if name != "base" else name] = {
            **{key: (each.get(key) or {}).get("value") for key in FIGURES},
            "joint": each["joint"]["win"]["value"],
            "condition": each["condition"],
            "points": each["points"],
            **{
                key: own["cost"].get(key)
                for key in ("train_seconds", "train_tokens", "models_at_inference", "adapters")
            },
        }
    return out


def spread(values: Sequence[float | None], digits: int = 3) -> str:
    """Mean over seeds, with the range where there are several."""
    there = [each for each in values if each is not None]
    if not there:
        return "–"
    if len(there) == 1:
        return f"{there[0]:.{digits}f}"
    return f"{statistics.fmean(there):.{digits}f} ({min(there):.{digits}f}–{max(there):.{digits}f})"


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown, a row a method, the highest mean win rate first."""
    head = (
        "| method | seeds | answers under | mean win rate | joint | hypervolume | distance | inner product | words | "
    )
    head += "train s | adapters | models a token |"
    lines = [head, "|" + "---|" * 12]
    order = sorted(found, key=lambda name: -statistics.fmean(each["multi_win"] or 0 for each in found[name]))
    for name in order:
        runs = found[name]
        column = lambda key, digits=3, runs=runs: spread([each[key] for each in runs], digits)  # noqa: E731
        cells = [
            name,
            str(len(runs)),
            runs[0]["condition"],
            column("multi_win"),
            column("joint"),
            column("hypervolume"),
        ]
        cells += [column("distance"), column("inner_product"), column("words", 0), column("train_seconds", 0)]
        cells += [str(runs[0]["adapters"]), str(runs[0]["models_at_inference"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(metrics: dict[str, Any], path: Path) -> None:
    """The common front of one seed's policies, over the first two objectives."""
    import numpy as np

    from paretune.pareto.plot import plot_points

    front = metrics["comparison"]["front"]
    names = front["objectives"][:2]
    points = np.array([[point["values"][name] for name in names] for point in front["points"]])
    plot_points(points, path, names=names, labels=[point["policy"] for point in front["points"]], title="Mean scores")


def compare_all(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Every method and seed: figures by method."""
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in arguments.seeds:
        if arguments.table:
            report = Path(arguments.out) / f"report-{seed}" / "metrics.json"
            if not report.is_file():
                continue
            metrics = read_json(report)
            assert isinstance(metrics, dict)
        else:
            budget = [f"max_tokens={arguments.tokens}"]
            policies = [train(arguments, method, seed, budget) for method in arguments.methods]
            metrics = evaluate(arguments, policies, seed, "report")
        for name, each in figures(metrics).items():
            found.setdefault(name, []).append(each)
        if arguments.plot and seed == arguments.seeds[0]:
            plot(metrics, arguments.plot)
    if not found:
        raise InputError("there is no report yet; run without --table", file=arguments.out)
    return found


def curve(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Cost and front of each method by the number of objectives."""
    rows = read_rows(arguments.data)
    names = [each.name for each in objectives_of(arguments.data, rows)]
    found: dict[str, list[dict[str, Any]]] = {}
    for count in arguments.curve:
        if count > len(names):
            raise InputError(f"has {len(names)} objectives, and --curve asks for {count}", file=arguments.data)
        for method in arguments.methods:
            folder = train(arguments, method, arguments.seeds[0], ["epochs=1"], names[:count])
            metrics = evaluate(arguments, [folder], arguments.seeds[0], f"curve-{method}-{count}")
            own = metrics["policies"][folder.name]
            front = own["front_set"]
            found.setdefault(method, []).append(
                {"objectives": count, "hypervolume": front["hypervolume"]["value"], **own["cost"]}
            )
    return found


def curve_table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown, a row a method and number of objectives."""
    lines = ["| method | objectives | adapters | train tokens | train s | models a token |", "|" + "---|" * 6]
    for method, runs in found.items():
        for each in runs:
            cells = [method, each["objectives"], each["adapters"], f"{each['train_tokens']:,.0f}"]
            cells += [f"{each['train_seconds']:.0f}", each["models_at_inference"]]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(description="all methods under one budget")
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", help="base model (default: the demo's)")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--tokens", type=int, default=200_000, help="training tokens of each method")
    parser.add_argument("--curve", type=int, nargs="+", help="numbers of objectives to train with")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="[METHOD:]KEY=VALUE",
        help="a setting of training, for one method or for all",
    )
    parser.add_argument("--judge-with", action="append", default=[], metavar="NAME=SPEC")
    parser.add_argument("--max-prompts", type=int, default=100)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    parser.add_argument("--plot", type=Path, help="draw the first seed's front into this file")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not arguments.data.is_file() and not arguments.table:
        raise InputError("no such file", file=arguments.data)
    arguments.model = arguments.model or str(demo_model())
    found = curve(arguments) if arguments.curve else compare_all(arguments)
    shown = curve_table(found) if arguments.curve else table(found)
    print(json.dumps(found) if arguments.json else shown)


if __name__ == "__main__":
    told(main)
