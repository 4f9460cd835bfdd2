"""The model card: an evaluation's figures as Markdown, beside the report and, if asked for, in the policy's README.md.

In README.md they stand between two marks, HTML comments that no reader sees; a later evaluation replaces what is
between them and leaves the rest as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paretune.errors import InputError
from paretune.evaluation.claims import shown_and_not
from paretune.files import check_parent, write_text

Metrics = Mapping[str, Any]
BEGIN = "<!-- paretune evaluate: what follows is replaced by the next evaluation -->"
END = "<!-- paretune evaluate: end -->"


def card_name(policy: str) -> str:
    """card-NAME.md, with what a file name cannot hold replaced."""
    return f"card-{re.sub(r'[^A-Za-z0-9._-]+', '-', policy).strip('-.') or 'policy'}.md"


def card_names(policies: Sequence[str]) -> dict[str, str]:
    """A file name for each policy, none twice."""
    out: dict[str, str] = {}
    for policy in policies:
        name, number = card_name(policy), 2
        while name in out.values():
            name, number = f"{card_name(policy).removesuffix('.md')}-{number}.md", number + 1
        out[policy] = name
    return out


def card_target(folder: Path) -> tuple[Path, str]:
    """README.md of a policy folder and what it holds. `InputError` when it cannot be changed safely."""
    path = folder / "README.md"
    check_parent(path)
    try:
        text = path.read_bytes().decode("utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read as text, so no card can be written into it: {error}", file=path) from None
    begins, ends = text.count(BEGIN), text.count(END)
    if (begins, ends) not in ((0, 0), (1, 1)) or (begins and text.index(END) < text.index(BEGIN)):
        raise InputError(
            "the marks of an earlier evaluation are not one pair, so what to replace is unknown; remove them",
            file=path,
        )
    return path, text


def write_into(folder: Path, card: str) -> None:
    """Put the card between its marks in the folder's README.md, at the end where there are none yet."""
    path, text = card_target(folder)
    block = f"{BEGIN}\n\n{card}\n{END}"
    if BEGIN in text:
        head, rest = text.split(BEGIN)
        text = head + block + rest.split(END)[1]
    else:
        text = (text.rstrip("\n") + "\n\n" if text.strip() else "") + block + "\n"
    write_text(path, text)


def render_card(name: str, metrics: Metrics) -> str:
    """The evaluation's figures for one policy, from metrics.json's content, as Markdown."""
    own, compared = metrics["policies"][name], metrics["comparison"]
    test, verdict = own["test"], own["verdict"]
    parts = [
        "## What `paretune evaluate` measured",
        f"On {test['prompts']} prompts: {test['source']}. Target of a prompt: {test['targets']}. Brackets are 95% "
        f"bootstrap intervals over prompts ({metrics['settings']['bootstrap']} resamples, seed "
        f"{metrics['settings']['seed']}); values are normalised, 1 is the wanted end.",
        f"**{_plain(verdict['headline'])}** {_plain(' '.join([verdict['text'], *verdict['limits']]))}",
        _conditions(own),
        _sweep(own),
        _held_out(own),
        _cost(own),
        _comparison(name, compared) if compared else "",
        _versions(metrics),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _plain(text: object) -> str:
    """Text that stays within its table cell or line, and can hold none of the marks."""
    line = " ".join(str(text).split())
    return re.sub(r"<(?=\S)", "&lt;", line.replace("|", "\\|"))


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _estimate(estimate: Metrics | None, digits: int = 3) -> str:
    """ "0.182 [0.160, 0.204]"."""
    if estimate is None or estimate["value"] is None:
        return "–"
    interval = f" [{estimate['low']:.{digits}f}, {estimate['high']:.{digits}f}]" if estimate["low"] is not None else ""
    return f"{estimate['value']:.{digits}f}{interval}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _conditions(own: Metrics) -> str:
    """A condition a line: distance, win rate against the chosen completion, scores, length."""
    if not own["scored"]:
        return "No objective could be scored on the answers."
    rows = []
    for name, each in own["conditions"].items():
        mark = f"**{name}**" if name == own["natural"] else name
        scores = [_estimate(each["scores"][objective]) for objective in own["scored"]]
        row = [mark, _estimate(each["distance"]), _estimate(own["multi_win"][name]), *scores]
        rows.append([*row, _estimate(each["words"], 1)])
    header = ["answers under", "distance to the target", "win rate against chosen", *own["scored"], "words"]
    note = "Bold: its natural condition. Win rate: mean over objectives of wins and half the ties."
    return f"{_table(header, rows)}\n\n{note}"


def _sweep(own: Metrics) -> str:
    """A point of the sweep a line, and the front they make."""
    if not own["sweep"]:
        return ""
    rows = [
        [
            _plain(point["name"]),
            _estimate(point["multi_win"]),
            *(_estimate(point["scores"][objective]) for objective in own["scored"]),
            _estimate(point["inner_product"] or point["distance_to_asked"]),
        ]
        for point in own["sweep"]
    ]
    header = ["asked for", "win rate against chosen", *own["scored"], "inner product (profiles: distance to asked)"]
    front, said = own["front_set"], ""
    if front:
        reference = ", ".join(f"{name} = {value:g}" for name, value in front["reference"].items())
        said = (
            f"\n\nHypervolume of these points and the natural answers: {_estimate(front['hypervolume'])} from the "
            f"reference point {reference} ({front['reference_rule']})."
        )
    return f"{_table(header, rows)}{said}"


def _held_out(own: Metrics) -> str:
    return "\n".join(f"- {_plain(each['claim'])}" for each in own["held_out"] or ())


def _cost(own: Metrics) -> str:
    cost = own["cost"]
    rows = [
        ["training, seconds", _number(cost["train_seconds"], 1)],
        ["training, tokens", _number(cost["train_tokens"], 0)],
        ["training, steps", _number(cost["train_steps"], 0)],
        ["training, peak memory in MiB", _number(cost["peak_memory_mib"], 0)],
        ["models held at inference", str(cost["models_at_inference"])],
        ["adapters", str(cost["adapters"])],
        ["tokens a second when answering", _number(cost["tokens_per_second"], 1)],
    ]
    return _table(["cost", "value"], rows)


def _comparison(name: str, compared: Metrics) -> str:
    """Its place among the policies compared: what the tests show that it took part in."""
    lines = [f"- {_plain(each)}" for each in shown_and_not(compared["tests"], name)]
    return f"Against the policies compared, on {compared['prompts']} common prompts:\n\n" + "\n".join(lines)


def _versions(metrics: Metrics) -> str:
    said = ", ".join(f"{package} {version}" for package, version in metrics["versions"].items())
    return f"Made with {said}:\n\n```\n{metrics['command']}\n```"
