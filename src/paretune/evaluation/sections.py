"""The report's sections about one policy, in the order a reader needs them: verdict, ablation, control, calibration,
wins, held-out judge, fronts, sample prompts, form and cost of the answers, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paretune.evaluation import charts
from paretune.evaluation.charts import Mark, escape, interval, number
from paretune.evaluation.conditions import MEANING
from paretune.evaluation.markup import (
    Cell,
    bullets,
    estimated,
    figure,
    grid,
    numeric,
    paragraph,
    percent,
    reasons,
    said,
    section,
    table,
    without_empty,
)
from paretune.evaluation.page.front import Plot, front_facts, front_figure

Metrics = Mapping[str, Any]
_PREDICTORS = {"head": "sensing head", "probe": "linear probe", "constant": "training mean"}
_QUALITY = ("r2", "mae", "spearman")
_NARROW = 270
"""Width of a chart that stands in an answer's card."""


def policy_sections(name: str, own: Metrics, samples: Sequence[Metrics], margin: float, policies: Sequence[str]) -> str:
    """All of them, as HTML. `policies` are all of the report, by whose order colours and shapes are given."""
    parts = [verdict(own), _ablation(own), _control(own), _calibration(own), _wins(own, margin), _held_out(own)]
    parts += [_fronts(name, own, samples, policies), _sweep(own), _samples(samples), _answers(own), _notes(own)]
    return "".join(parts)


def verdict(own: Metrics) -> str:
    """Does sensing help, in words, and what was asked of whom."""
    found, test = own["verdict"], own["test"]
    kind = {True: "yes", False: "no", None: "open"}[found["helps"]]
    about = (
        f"Method {own['method']} on {own['base']}; {test['prompts']} prompts: {test['source']}. "
        f"Target of a prompt: {test['targets']}."
    )
    return (
        f'<section class="verdict {kind}">{paragraph("Verdict", "eyebrow")}{paragraph(found["headline"], "headline")}'
        f"{paragraph(found['text'])}{bullets(found['limits'])}{paragraph(about, 'muted')}</section>"
    )


def _ablation(own: Metrics) -> str:
    """Distances per condition, and paired differences to sensed."""
    if not own["scored"]:
        return section("Ablation", paragraph("No objective could be scored on the answers.", "muted"))
    if len(own["conditions"]) == 1:
        return section("Scores", _conditions_table(own))
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
        figures.append(figure(charts.interval_chart(marks, title, rule=0.0), caption))
    lead = (
        "The same policy answers the same prompts, told different things. If what it senses is worth anything, answers "
        "under its own sensed profile come closest to the target (the oracle aside, which is told the target)."
    )
    return section("Ablation", grid(figures), _conditions_table(own), lead=lead)


def _conditions_table(own: Metrics) -> str:
    """Every condition, and the data's chosen completions, with their scores."""
    gaps, rates = own["differences"], own.get("multi_win") or {}
    rows: list[list[object]] = []
    for name, each in own["conditions"].items():
        row: list[object] = [
            name,
            Cell(MEANING.get(name, ""), kind="prose"),
            estimated(each["distance"]),
            estimated(gaps.get(name)),
        ]
        row += [estimated(rates.get(name), 2), estimated((own.get("win_only") or {}).get(name), 2)]
        rows.append([*row, *(estimated(each["scores"][objective], 2) for objective in own["scored"])])
    scores = [estimated(own["chosen"]["scores"][objective], 2) for objective in own["scored"]]
    dash = estimated(None)
    chosen = [
        "chosen",
        Cell("the data's own completion", kind="prose"),
        estimated(own["chosen"]["distance"]),
        dash,
        dash,
        dash,
        *scores,
    ]
    header = ["Condition", "What the policy was given", "Distance", "Other minus sensed", "Mean win rate", "Wins alone"]
    columns = without_empty([*header, *own["scored"]], [*rows, chosen])
    caption = "Distance to the target, win rates against chosen, and mean normalised scores, with 95% intervals"
    return table(*columns, caption, kind="wrap")


def _control(own: Metrics) -> str:
    """Is what was asked for what came back?"""
    parts, accuracy = [], own["control_accuracy"]
    if not own["control"] and not accuracy:
        return ""
    if accuracy:
        told = interval(accuracy, 2) if accuracy["value"] is not None else f"undefined, as {accuracy['why']}"
        parts.append(
            f"<p>Control accuracy: <strong>{escape(told)}</strong> ({accuracy['n']} prompts). How often a completion "
            "is likelier under its own profile than under another completion's; 0.5 is no control at all.</p>"
        )
    figures = []
    weights = own["conditioned_on"] == "weights"
    for name, each in (own["control"] or {}).items():
        if each["curve"]:
            rho = f"{interval(each['spearman'], 2)}, within prompts {interval(each['spearman_within'], 2)}"
            off = "" if weights else f", MAE {interval(each['mae'], 2)}"
            caption = f"{name}: Spearman {rho}{off}, {each['prompts']} prompts"
            figures.append(figure(charts.curve_chart(each["curve"], name, ideal=not weights), caption))
    if figures:
        note = (
            "One objective is given the requested weight and the rest share what is left of 1 as they are sensed. A "
            "weight need not equal the value obtained: obedience is a curve that rises."
            if weights
            else "One objective is pinned to the requested value, the rest are sensed; dashed: perfect obedience."
        )
        parts += [grid(figures, "small"), paragraph(note, "muted")]
    return section("Control: requested against obtained", *parts)


def _calibration(own: Metrics) -> str:
    """How well the head predicts, and whether its intervals hold what they promise."""
    if not own["head"]:
        return ""
    rows, told = [], []
    for objective, each in own["head"].items():
        for key, words in _PREDICTORS.items():
            if key in each:
                rows.append([objective, words, *(estimated(each[key][metric], 2) for metric in _QUALITY)])
                told += [each[key][metric] for metric in _QUALITY]
    lead = (
        "How well the target profile is predicted from the prompt alone, on prompts never trained on. R² above 0 beats "
        "the mean of these prompts; the probe is a ridge regression on the untrained base model's states."
    )
    header = ["Objective", "Predictor", "R²", "MAE", "Spearman"]
    quality = table(header, rows, "Head quality, with 95% intervals")
    return section("What the head senses", quality, reasons(told), _intervals(own["head"]), lead=lead)


def _intervals(head: Metrics) -> str:
    """Do the sensed intervals hold what they promise?"""
    held = {objective: each["interval"] for objective, each in head.items() if "interval" in each}
    if not held:
        why = "it was trained jointly and not fitted alone afterwards"
        return paragraph(f"This head gives no intervals, for they were not calibrated ({why}).", "muted")
    promised = next(iter(held.values()))["level"]
    level = percent(promised)
    shares = [
        f"{objective} {percent(each['coverage']['value'])}{_range(each['coverage'])}, mean width "
        f"{number(each['width']['value'], 2)}"
        for objective, each in held.items()
    ]
    words = paragraph(f"Share of held-out targets inside the sensed {level} interval: {'; '.join(shares)}.")
    title = f"Share of targets inside the sensed {level} interval"
    marks = [Mark(objective, each["coverage"], "sensed") for objective, each in held.items()]
    caption = f"{title}. A calibrated head is on the line; left of it, its intervals promise too much."
    return words + figure(charts.interval_chart(marks, title, rule=promised), caption)


def _range(share: Metrics) -> str:
    return f" [{percent(share['low'])}, {percent(share['high'])}]" if share["low"] is not None else ""


def _wins(own: Metrics, margin: float) -> str:
    """Against the data's chosen completion, per objective and jointly."""
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
        told = ", ".join(f"{name} {percent(each['value'])}" for name, each in own["closer_than_chosen"].items())
        closer = paragraph(f"Answers closer to the wanted profile than the chosen completion is: {told}.")
    return section("Win, tie, loss", key, grid(figures), closer, lead=lead)


def _held_out(own: Metrics) -> str:
    """Gains on the trained reward against gains on one that training never saw."""
    judged = own.get("held_out")
    if not judged:
        return ""
    flagged = "".join(paragraph(each["claim"]) for each in judged if each["flag"])
    marks, rows, told = [], [], []
    for each in judged:
        trained, held = each["gain_trained"], each["gain_held_out"]
        marks.append(Mark(f"{each['objective']}, trained", trained, "sensed"))
        marks.append(Mark(f"{each['objective']}, held out", held, "bad" if each["flag"] else "good"))
        rows.append(
            [
                each["objective"],
                Cell(f"{each['trained_spec']} / {each['judge_spec']}", kind="prose"),
                estimated(trained, 2),
                estimated(held, 2),
                Cell(each["claim"], kind="words"),
            ]
        )
        told += [trained, held]
    against = f"Gain over {judged[0]['against']}, in {judged[0]['unit']}"
    caption = f"{against}; right of zero is better. Bars: 95% intervals."
    lead = (
        "The same answers, judged by a reward that training used and by one that it did not. Where only the trained "
        "reward rises, the policy may have learnt the reward rather than what it stands for."
    )
    header = ["Objective", "Trained on / judged by", "Gain, trained", "Gain, held out", "In words"]
    return section(
        "Held-out judge",
        f'<div class="warning">{flagged}</div>' if flagged else "",
        grid([figure(charts.interval_chart(marks, against, rule=0.0), caption)]),
        table(header, rows, against, kind="wrap"),
        reasons(told),
        lead=lead,
    )


def _fronts(name: str, own: Metrics, samples: Sequence[Metrics], policies: Sequence[str]) -> str:
    """The front of the conditions, and the policy's own front where more was asked of it."""
    place = policies.index(name)
    parts = []
    for key, title, front in (
        ("conditions", "Front of the conditions", own["front"]),
        ("sweep", "The policy's own front", own.get("front_set")),
    ):
        if not front or (key == "sweep" and front.get("of") == "natural") or len(front["points"]) == 1:
            continue
        plot = Plot(
            f"front-{key}-{place}", f"{name}: {title}", front["objectives"], front["points"], policies, name,
            _examples(samples) if key == "conditions" else {}, listed=key == "conditions",
        )  # fmt: skip
        parts.append(section(title, front_facts(front), front_figure(plot)))
    return "".join(parts)


def _examples(samples: Sequence[Metrics]) -> dict[str, Metrics]:
    """The first sample prompt's answers, by condition."""
    if not samples:
        return {}
    first = samples[0]
    return {each["condition"]: {"prompt": first["prompt"], "answer": each["text"]} for each in first["answers"]}


def _sweep(own: Metrics) -> str:
    """What the policy made of each weight vector or profile it was asked for."""
    swept = own.get("sweep") or []
    if not swept:
        return ""
    rows = []
    for point in swept:
        scores = [estimated(point["scores"].get(objective), 2) for objective in own["scored"]]
        row = [point["name"], point["kind"], *scores, estimated(point["multi_win"]), estimated(point["inner_product"])]
        rows.append([*row, estimated(point["distance_to_asked"]), estimated(point["words"], 0)])
    header = ["Asked", "Kind", *own["scored"], "Mean win rate", "Inner product", "Distance to asked", "Words"]
    shown = table(*without_empty(header, rows), "Mean normalised scores under each request", kind="sortable wrap")
    return section("What it was asked for, and gave", shown)


def _samples(samples: Sequence[Metrics]) -> str:
    if not samples:
        return ""
    lead = (
        "Drawn at random, not picked. Under the prompt: what was sensed from it (bar), the ends of its 80% interval "
        "(whisker, where calibrated) and the target (tick). Under an answer: what it obtained, against the same target."
    )
    return section("Sample prompts", "".join(_sample(sample) for sample in samples), lead=lead)


def _sample(sample: Metrics) -> str:
    """A prompt, its sensed profile, and its answers side by side."""
    turns = "".join(f"{paragraph(turn['role'], 'role')}{said(turn['content'])}" for turn in sample["prompt"])
    bars = ""
    if sample["sensed"]:
        bars = charts.profile_bars(sample["sensed"], sample["wished"], sample.get("interval"))
    answers = "".join(_sample_answer(answer, sample["target"]) for answer in sample["answers"])
    return f'<div class="sample"><div class="asked">{turns}{bars}</div><div class="answers">{answers}</div></div>'


def _sample_answer(answer: Metrics, target: Metrics) -> str:
    head = answer["condition"]
    if answer["distance"] is not None:
        head += f" · distance {number(answer['distance'], 2)}"
    if not answer["finished"]:
        head += " · cut off"
    bars = (
        charts.profile_bars(answer["values"], target, title="obtained profile", width=_NARROW)
        if answer["values"]
        else ""
    )
    return f'<div class="answer">{paragraph(head, "role")}{said(answer["text"])}{bars}</div>'


def _answers(own: Metrics) -> str:
    header = ["Condition", "Words", "Tokens", "Ended by itself", "Echoes its profile", "Empty", "Seconds", "Tokens/s"]
    rows = []
    for name, each in own["conditions"].items():
        row = [name, estimated(each["words"], 1), estimated(each["tokens"], 1), percent(each["finished"]["value"])]
        row += [percent(each["echoes"]["value"]), numeric(each["empty"], 0)]
        rows.append([*row, numeric(each["cost"]["seconds"], 1), numeric(each["cost"]["tokens_per_second"], 1)])
    shown = table(header, rows, "Length, endings, echoes and generation cost", kind="wrap")
    return section("The answers' form and cost", shown, _training_cost(own.get("cost")))


def _training_cost(cost: Metrics | None) -> str:
    """What the policy cost, in a sentence; nothing where training left no record."""
    words = {
        "train_seconds": "{} seconds of training",
        "train_steps": "{} steps",
        "train_tokens": "{} tokens",
        "peak_memory_mib": "{} MiB of memory at most",
        "models_at_inference": "models held to answer: {}",
        "adapters": "adapters: {}",
    }
    cost = cost or {}
    known = [text.format(numeric(cost[key], 0).text) for key, text in words.items() if cost.get(key) is not None]
    return paragraph(f"Cost: {', '.join(known)}.") if known else ""


def _notes(own: Metrics) -> str:
    """What was left out, and why."""
    test = own["test"]
    counted = [key for key in test if key.startswith(("dropped", "left")) and test[key]]
    items = [f"{key.replace('_', ' ')}: {test[key]}" for key in counted]
    items += [f"{name} does not score answers: {why}" for name, why in own["unscored"].items()]
    listed = bullets([*items, *own["notes"]])
    return section("Notes", listed) if listed else ""
