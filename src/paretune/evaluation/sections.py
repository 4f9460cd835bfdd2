"""The report's sections about one policy, in the order a reader needs them: verdict, ablation, head, control, wins,
front, form and cost of the answers, sample prompts, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from paretune.evaluation import charts
from paretune.evaluation.charts import Mark, escape, interval, number
from paretune.evaluation.conditions import MEANING
from paretune.evaluation.markup import figure, grid, paragraph, percent, section, table

Metrics = Mapping[str, Any]
_PREDICTORS = {"head": "sensing head", "probe": "linear probe", "constant": "training mean"}
_QUALITY = ("r2", "mae", "spearman")
_PANELS = 6


def policy_sections(own: Metrics, samples: Sequence[Metrics], margin: float) -> str:
    """All of them, as HTML."""
    parts = [_verdict(own), _ablation(own), _head(own), _control(own), _wins(own, margin)]
    parts += [front_section(own["front"], "Front of the conditions"), _answers(own), _samples(samples), _notes(own)]
    return "".join(parts)


def _verdict(own: Metrics) -> str:
    verdict, test = own["verdict"], own["test"]
    kind = {True: "yes", False: "no", None: "open"}[verdict["helps"]]
    limits = "".join(f"<li>{escape(limit)}</li>" for limit in verdict["limits"])
    about = (
        f"Method {own['method']} on {own['base']}; {test['prompts']} prompts: {test['source']}. "
        f"Target of a prompt: {test['targets']}."
    )
    return (
        f'<section class="verdict {kind}">{paragraph("Verdict", "eyebrow")}{paragraph(verdict["headline"], "headline")}'
        f"{paragraph(verdict['text'])}{f'<ul>{limits}</ul>' if limits else ''}{paragraph(about, 'muted')}</section>"
    )


def _ablation(own: Metrics) -> str:
    """Distances per condition, and paired differences to sensed."""
    if not own["scored"]:
        return section("Ablation", paragraph("No objective could be scored on the answers.", "muted"))
    title, gaps = "Mean distance to the target profile", own["differences"]
    marks = [
        Mark(name, each["distance"], "sensed" if name == "sensed" else "plain")
        for name, each in own["conditions"].items()
    ]
    caption = f"{title}; left is closer. Bars: 95% bootstrap intervals over prompts."
    figures = [figure(charts.interval_chart(marks, title), caption)]
    if gaps:
        title = "Paired difference of distance, other condition minus sensed"
        marks = [
            Mark(name, gap, "good" if gap["low"] is not None and gap["low"] > 0 else "plain")
            for name, gap in gaps.items()
        ]
        caption = f"{title}: right of zero, sensed is closer. The verdict needs all but oracle wholly to the right."
        figures.append(figure(charts.interval_chart(marks, title, zero=True), caption))
    lead = (
        "The same policy answers the same prompts, told different things. If what it senses is worth anything, answers "
        "under its own sensed profile come closest to the target (the oracle aside, which is told the target)."
    )
    return section("Ablation", grid(figures), _conditions_table(own), lead=lead)


def _conditions_table(own: Metrics) -> str:
    gaps = own["differences"]
    rows = []
    for name, each in own["conditions"].items():
        gap = interval(gaps[name]) if name in gaps else "–"
        scores = [interval(each["scores"][objective], 2) for objective in own["scored"]]
        rows.append([name, MEANING[name], interval(each["distance"]), gap, *scores])
    scores = [interval(own["chosen"]["scores"][objective], 2) for objective in own["scored"]]
    rows.append(["chosen", "the data's own completion", interval(own["chosen"]["distance"]), "–", *scores])
    header = ["Condition", "What the policy was given", "Distance", "Other minus sensed", *own["scored"]]
    return table(header, rows, "Distance to the target and mean normalised scores, with 95% intervals")


def _head(own: Metrics) -> str:
    if not own["head"]:
        return ""
    rows, whys = [], []
    for objective, each in own["head"].items():
        for key, words in _PREDICTORS.items():
            if key in each:
                rows.append([objective, words, *(interval(each[key][metric], 2) for metric in _QUALITY)])
                whys += [each[key][metric].get("why") for metric in _QUALITY]
    reasons = "".join(paragraph(f"– : {why}.", "muted") for why in dict.fromkeys(whys) if why)
    lead = (
        "How well the target profile is predicted from the prompt alone, on prompts never trained on. R² above 0 beats "
        "the mean of these prompts; the probe is a ridge regression on the untrained base model's states."
    )
    header = ["Objective", "Predictor", "R²", "MAE", "Spearman"]
    quality = table(header, rows, "Head quality, with 95% intervals")
    return section("What the head senses", quality, reasons, _intervals(own["head"]), lead=lead)


def _intervals(head: Metrics) -> str:
    """Do the sensed intervals hold what they promise?"""
    held = {objective: each["interval"] for objective, each in head.items() if "interval" in each}
    if not held:
        why = "it was trained jointly and not fitted alone afterwards"
        return paragraph(f"This head gives no intervals, for they were not calibrated ({why}).", "muted")
    level = percent(next(iter(held.values()))["level"])
    said = [
        f"{objective} {percent(each['coverage']['value'])}{_range(each['coverage'])}, mean width "
        f"{number(each['width']['value'], 2)}"
        for objective, each in held.items()
    ]
    return paragraph(f"Share of held-out targets inside the sensed {level} interval: {'; '.join(said)}.")


def _range(share: Metrics) -> str:
    return f" [{percent(share['low'])}, {percent(share['high'])}]" if share["low"] is not None else ""


def _control(own: Metrics) -> str:
    parts, accuracy = [], own["control_accuracy"]
    if not own["control"] and not accuracy:
        return ""
    if accuracy:
        said = interval(accuracy, 2) if accuracy["value"] is not None else f"undefined, as {accuracy['why']}"
        parts.append(
            f"<p>Control accuracy: <strong>{escape(said)}</strong> ({accuracy['n']} prompts). How often a completion "
            "is likelier under its own profile than under another completion's; 0.5 is no control at all.</p>"
        )
    figures = []
    for name, each in (own["control"] or {}).items():
        if each["curve"]:
            rho = f"{interval(each['spearman'], 2)}, within prompts {interval(each['spearman_within'], 2)}"
            caption = f"{name}: Spearman {rho}, MAE {interval(each['mae'], 2)}, {each['prompts']} prompts"
            figures.append(figure(charts.curve_chart(each["curve"], name), caption))
    if figures:
        note = "One objective is pinned to the requested value, the rest are sensed; dashed: perfect obedience."
        parts += [grid(figures, "small"), paragraph(note, "muted")]
    return section("Control: requested against obtained", *parts)


def _wins(own: Metrics, margin: float) -> str:
    if not own["scored"]:
        return ""
    figures = []
    for objective in own["scored"]:
        rows = [(name, wins["objectives"][objective]) for name, wins in own["wins"].items()]
        figures.append(figure(charts.stacked_chart(rows, f"Against the chosen completion, {objective}"), objective))
    rows = [(name, wins["joint"]) for name, wins in own["wins"].items()]
    figures.append(
        figure(charts.stacked_chart(rows, "Against the chosen completion, jointly"), "all objectives jointly")
    )
    lead = (
        f"Answers against the data's chosen completion, by normalised score; within {margin:g} is a tie. Jointly, a "
        "win is at least as good in every objective and better in one, and a loss is worse in at least one."
    )
    key = '<p><span class="key win">win</span> <span class="key tie">tie</span> <span class="key loss">loss</span></p>'
    closer = ""
    if own["closer_than_chosen"]:
        said = ", ".join(f"{name} {percent(each['value'])}" for name, each in own["closer_than_chosen"].items())
        closer = paragraph(f"Answers closer to the wanted profile than the chosen completion is: {said}.")
    return section("Win, tie, loss", key, grid(figures), closer, lead=lead)


def front_section(front: Metrics | None, title: str) -> str:
    """Hypervolume with its reference point, and the points pair by pair; nothing without a front."""
    if not front:
        return ""
    reference = ", ".join(f"{name} = {value:g}" for name, value in front["reference"].items())
    parts = [
        paragraph(
            f"Hypervolume {interval(front['hypervolume'])} from the reference point {reference} "
            f"({front['reference_rule']}); {front['prompts']} prompts."
        )
    ]
    if front["points"]:
        kept = ", ".join(point["name"] for point in front["points"] if point["on_front"])
        parts.append(paragraph(f"On the front (no other point is as good in all and better in one): {kept}."))
        pairs = list(combinations(front["objectives"], 2))[:_PANELS]
        figures = [
            figure(charts.scatter_chart(front["points"], pair, "Mean scores"), f"{pair[0]} and {pair[1]}")
            for pair in pairs
        ]
        parts.append(grid(figures))
    return section(title, *parts)


def _answers(own: Metrics) -> str:
    header = ["Condition", "Words", "Tokens", "Ended by itself", "Echoes its profile", "Empty", "Seconds", "Tokens/s"]
    rows = []
    for name, each in own["conditions"].items():
        row = [name, interval(each["words"], 1), interval(each["tokens"], 1), percent(each["finished"]["value"])]
        row += [percent(each["echoes"]["value"]), each["empty"]]
        rows.append([*row, number(each["cost"]["seconds"], 1), number(each["cost"]["tokens_per_second"], 1)])
    return section("The answers' form and cost", table(header, rows, "Length, endings, echoes and generation cost"))


def _samples(samples: Sequence[Metrics]) -> str:
    cards = "".join(_sample(sample) for sample in samples)
    return section("Sample prompts", cards, lead="Drawn at random, not picked. Bar: sensed profile; tick: target.")


def _sample(sample: Metrics) -> str:
    """A prompt, its sensed profile, and its answers side by side."""
    turns = "".join(f"{paragraph(turn['role'], 'role')}{_said(turn['content'])}" for turn in sample["prompt"])
    bars = charts.profile_bars(sample["sensed"], sample["target"]) if sample["sensed"] else ""
    answers = "".join(_sample_answer(answer) for answer in sample["answers"])
    return f'<div class="sample"><div class="asked">{turns}{bars}</div><div class="answers">{answers}</div></div>'


def _sample_answer(answer: Metrics) -> str:
    head = answer["condition"]
    if answer["distance"] is not None:
        head += f" · distance {number(answer['distance'], 2)}"
    if not answer["finished"]:
        head += " · cut off"
    values = ", ".join(f"{name} {number(value, 2)}" for name, value in answer["values"].items())
    return f'<div class="answer">{paragraph(head, "role")}{_said(answer["text"])}{paragraph(values, "muted")}</div>'


def _said(text: str) -> str:
    return f'<div class="said" dir="auto">{escape(text)}</div>'


def _notes(own: Metrics) -> str:
    """What was left out, and why."""
    test = own["test"]
    counted = [key for key in test if key.startswith(("dropped", "left")) and test[key]]
    items = [f"{key.replace('_', ' ')}: {test[key]}" for key in counted]
    items += [f"{name} does not score answers: {why}" for name, why in own["unscored"].items()]
    listed = "".join(f"<li>{escape(item)}</li>" for item in [*items, *own["notes"]])
    return section("Notes", f"<ul>{listed}</ul>") if listed else ""
