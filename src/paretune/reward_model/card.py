"""What validation found, as a table for people and as the model card: the numbers of metrics.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paretune.files import dump_line

if TYPE_CHECKING:
    from paretune.reward_model.model import RewardModel

ROWS = (
    ("pairs", "held-out pairs"),
    ("accuracy", "accuracy"),
    ("accuracy_of_longer_wins", "accuracy of the rule: longer wins"),
    ("accuracy_of_shorter_wins", "accuracy of the rule: shorter wins"),
    ("accuracy_over_length_rule", "accuracy over the better length rule"),
    ("accuracy_where_shorter_preferred", "accuracy where the shorter is preferred"),
    ("accuracy_where_longer_preferred", "accuracy where the longer is preferred"),
    ("margin", "margin: mean (5%, 95%)"),
    ("calibration", "expected calibration error"),
    ("ratings", "held-out ratings"),
    ("spearman", "Spearman, all answers"),
    ("spearman_within_prompts", "Spearman, within prompts"),
    ("r2", "R2"),
    ("length_correlation", "rank correlation with length, within prompts"),
)


def figures(validation: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """(header, lines) of a table: a figure a line, an objective a column."""
    names = list(validation)
    lines = [
        [words, *(_cell(validation[name].get(key)) for name in names)]
        for key, words in ROWS
        if any(key in validation[name] for name in names)
    ]
    return ["held out", *names], lines


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if "expected_error" in value:
        return f"{value['expected_error']:.3f}"
    if "mean" in value:
        return f"{value['mean']:.2f} ({value['0.05']:.2f}, {value['0.95']:.2f})"
    if value["value"] is None:
        return "-"
    interval = f" [{value['low']:.3f}, {value['high']:.3f}]" if value["low"] is not None else ""
    return f"{value['value']:.3f}{interval}"


def model_card(model: RewardModel, metrics: Mapping[str, Any]) -> str:
    """README.md of the folder, from what reward.json and metrics.json hold."""
    from paretune.reward_model.description import IN_WORDS

    lines = [
        "---",
        "library_name: paretune",
        f"base_model: {dump_line(model.base)}",  # which is YAML too, whatever the folder's name
        "tags: [paretune, multi-objective, reward-model]",
        "---",
        "",
        "# A reward model",
        "",
        f"Base model: `{model.base}`. It reads a conversation and an answer in the chat template, and gives at the",
        "answer's last token one value an objective:",
        "",
        "| objective | direction | the value is |",
        "|---|---|---|",
    ]
    for each, unit in zip(model.objectives, model.units, strict=True):
        lines.append(f"| {each.name} | {each.direction} | {IN_WORDS[unit]} |")
    lines += ["", "## On held-out prompts", ""]
    validation = metrics.get("validation") or {}
    if validation:
        header, body = figures(validation)
        lines += [f"| {' | '.join(header)} |", "|---" * len(header) + "|", *(f"| {' | '.join(row)} |" for row in body)]
        lines += ["", "Brackets are 95% bootstrap intervals over prompts. Length is counted in words."]
    else:
        lines.append("Nothing was held out.")
    lines += ["", "## Training", "", "| figure | value |", "|---|---|"]
    lines += [f"| {key} | {_short(value)} |" for key, value in metrics.items() if isinstance(value, (int, float, str))]
    spec = "#NAME" if len(model.objectives) > 1 else ""
    lines += [
        "",
        "## Use",
        "",
        "```",
        f"paretune score rows.jsonl --objective NAME=trained:this/folder{spec} --out scored.jsonl",
        "```",
        "",
        "```python",
        "import paretune",
        'model = paretune.load_reward_model("this/folder")',
        'print(model.score([[{"role": "user", "content": "Hi"}]], ["Hello!"]))',
        "```",
        "",
    ]
    return "\n".join(lines)


def _short(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
