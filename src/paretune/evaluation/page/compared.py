"""The report's sections about several policies: what was found, the table of methods, the front, pairs and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paretune.evaluation import charts
from paretune.evaluation.charts import Mark, escape, interval, number
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
from paretune.evaluation.page.front import Plot, front_facts, front_figure, is_natural, prompt_text
from paretune.evaluation.page.shapes import colour, icon

Metrics = Mapping[str, Any]
FIGURES = {
    "multi_win": "mean win rate",
    "win_only": "mean of wins alone",
    "hypervolume": "hypervolume",
    "distance": "distance to the target",
    "inner_product": "inner product",
}
_SHARED = 4
"""How many prompts are shown with every policy's answer."""


def found(metrics: Metrics) -> str:
    """What the comparison shows, in words, and each policy's own verdict."""
    compared, policies = metrics["comparison"], list(metrics["policies"])
    claims = bullets(compared.get("claims") or ())
    if not claims:
        claims = paragraph(f"{len(policies)} policies were compared on {compared['prompts']} prompts.")
    items = "".join(
        f'<li><a href="#policy-{i}">{icon(i)}{escape(name)}</a>: {escape(own["verdict"]["headline"])}</li>'
        for i, (name, own) in enumerate(metrics["policies"].items())
    )
    note = (
        f"Compared on the {compared['prompts']} prompts that all policies were tested on"
        f"{'' if compared['same_prompts'] else ', which are not all prompts of each'}, by the first policy's scales; "
        f"objectives: {', '.join(compared['objectives']) or 'none in common'}."
    )
    return (
        f'<section class="verdict">{paragraph("What was found", "eyebrow")}{claims}'
        f'<p class="eyebrow">Does sensing help?</p><ul>{items}</ul>{paragraph(note, "muted")}</section>'
    )


def comparison(metrics: Metrics, samples: Mapping[str, Sequence[Metrics]]) -> str:
    """All sections of the comparison after what was found, as HTML."""
    compared, names = metrics["comparison"], list(metrics["policies"])
    parts = [_methods(metrics), _front(compared, names), _pairs(compared, names), _tests(compared)]
    parts.append(_side_by_side(metrics, samples))
    notes = bullets(compared.get("notes") or ())
    if notes:
        parts.append(section("Notes on the comparison", notes))
    return f'<article id="comparison"><h2>Comparison</h2>{"".join(parts)}</article>'


def _methods(metrics: Metrics) -> str:
    """Who is where in what, and what it cost."""
    figures = _charts(metrics)
    quality = _quality(metrics)
    header = ["Policy", "Training, seconds", "Steps", "Tokens", "Peak memory, MiB", "Models held", "Adapters"]
    rows: list[list[object]] = []
    for name, own in metrics["policies"].items():
        cost = own.get("cost") or {}
        keys = ("train_seconds", "train_steps", "train_tokens", "peak_memory_mib", "models_at_inference", "adapters")
        row: list[object] = [name, *(numeric(cost.get(key), 0) for key in keys)]
        speed = cost.get("tokens_per_second") or _natural(metrics, name)["cost"]["tokens_per_second"]
        rows.append([*row, numeric(speed, 1)])
    prices = table(
        *without_empty([*header, "Tokens/s, answering"], rows),
        "What each policy cost to train, and needs to answer",
        kind="sortable wrap",
    )
    return section("Methods", grid(figures, "two") if figures else "", quality, prices)


def _natural(metrics: Metrics, name: str) -> Metrics:
    """The condition a policy is compared at."""
    condition: Metrics = metrics["policies"][name]["conditions"][metrics["comparison"]["conditions"][name]]
    return condition


def _quality(metrics: Metrics) -> str:
    """How good each policy's natural answers, and its front, are."""
    compared = metrics["comparison"]
    rows: list[list[object]] = []
    told: list[Metrics | None] = []
    for name, own in metrics["policies"].items():
        each = (compared.get("policies") or {}).get(name) or {}
        condition = compared["conditions"][name]
        joint = each.get("joint") or own["wins"][condition]["joint"]
        distance = each.get("distance") or own["conditions"][condition]["distance"]
        sums = [each.get("multi_win"), each.get("win_only")]
        row: list[object] = [name, own["method"], condition, *(estimated(one, 2) for one in sums), _as_good(joint)]
        rows.append([*row, *(estimated(one) for one in (each.get("hypervolume"), distance))])
        told += [*sums, each.get("hypervolume"), distance]
    header = ["Policy", "Method", "Answers", "Mean win rate", "Wins alone", "At least as good in all", "Hypervolume"]
    caption = (
        "Policies compared, with 95% intervals. Win rates are against the data's chosen completions; distance is to "
        "the target profile (less is better); figures are explained at the end"
    )
    shown = table(*without_empty([*header, "Distance to target"], rows), caption, kind="sortable wrap")
    return shown + reasons(told) + _details(metrics)


def _details(metrics: Metrics) -> str:
    """Scores and length of the natural answers, and how the points of each policy's front lie."""
    compared = metrics["comparison"]
    natural = {p.get("policy") or p["name"]: p["values"] for p in _points(compared) if is_natural(p)}
    rows: list[list[object]] = []
    for name, own in metrics["policies"].items():
        each = (compared.get("policies") or {}).get(name) or {}
        words = each.get("words") or own["conditions"][compared["conditions"][name]]["words"]
        row: list[object] = [name, numeric(own["test"]["prompts"], 0)]
        row += [numeric(natural.get(name, {}).get(objective)) for objective in compared["objectives"]]
        row += [estimated(words, 0), numeric(each.get("points"), 0), numeric(each.get("sparsity"), 4)]
        rows.append([*row, numeric(each.get("spacing"), 4), estimated(each.get("inner_product"), 2)])
    header = ["Policy", "Prompts", *compared["objectives"], "Words", "Points", "Sparsity", "Spacing", "Inner product"]
    caption = "Mean scores and length of the natural answers; how many points each policy's front has, and how they lie"
    return table(*without_empty(header, rows), caption, kind="sortable wrap")


def _as_good(joint: Metrics) -> Cell:
    if joint["win"]["value"] is None:
        return Cell(charts.DASH)
    share = joint["win"]["value"] + joint["tie"]["value"]
    return Cell(percent(share), share)


def _charts(metrics: Metrics) -> list[str]:
    """The two figures that everybody asks for first."""
    each = metrics["comparison"].get("policies") or {}
    out = []
    captions = {
        "multi_win": "Mean win rate over objectives against the chosen completion, ties half; right of the line is "
        "better than the data's own choice.",
        "hypervolume": "Hypervolume of the policy's own front; further right is better.",
    }
    for figure_name, caption in captions.items():
        marks = [
            Mark(name, each[name][figure_name], colour(i))
            for i, name in enumerate(metrics["policies"])
            if (each.get(name) or {}).get(figure_name)
        ]
        if any(mark.estimate["value"] is not None for mark in marks):
            rule = 0.5 if figure_name == "multi_win" else None
            title = FIGURES[figure_name].capitalize()
            out.append(figure(charts.interval_chart(marks, title, rule=rule), caption))
    return out


def _points(compared: Metrics) -> Sequence[Metrics]:
    front = compared.get("front")
    points: Sequence[Metrics] = front["points"] if front else ()
    return points


def _front(compared: Metrics, names: Sequence[str]) -> str:
    front = compared.get("front")
    if not front:
        return ""
    # a point that names no policy is one: the policy itself, as it answers
    points = [point if point.get("policy") else {**point, "policy": point["name"]} for point in front["points"]]
    plot = Plot("front-common", "Common front", front["objectives"], points, names)
    lead = (
        "Every point is one way a policy can answer. The front is made of the points that no other point beats: those "
        "are the trade-offs worth having."
    )
    return section("The front", front_facts({**front, "points": points}), front_figure(plot), lead=lead)


def _pairs(compared: Metrics, names: Sequence[str]) -> str:
    """Everybody against everybody: the mean win rate as a square, and the shares as a list."""
    pairs = compared.get("head_to_head") or []
    if not pairs:
        return ""
    rates: dict[tuple[str, str], Metrics] = {}
    for pair in pairs:
        rates[pair["first"], pair["second"]] = pair["multi_win"]
        rates[pair["second"], pair["first"]] = turned(pair["multi_win"])
    square = [
        [name, *("" if name == other else _against(rates.get((name, other))) for other in names)] for name in names
    ]
    lead = (
        "Natural answers of two policies to the same prompts, compared objective by objective. Above .5 the policy of "
        "the row is ahead of that of the column; coloured and marked where the 95% interval excludes .5."
    )
    header = ["Row against column", *names]
    matrix = table(header, square, "Mean win rate of the row against the column, ties half", kind="square")
    objectives = list(pairs[0]["objectives"])
    rows = [
        [
            f"{pair['first']} against {pair['second']}",
            estimated(pair["multi_win"], kind="figure"),
            _shares(pair["joint"]),
            *(_shares(pair["objectives"][name]) for name in objectives),
        ]
        for pair in pairs
    ]
    columns = ["Pair", "Mean win rate", "Jointly", *objectives]
    shares = table(columns, rows, "Win / tie / loss of the first, jointly and per objective", kind="sortable")
    return section("Head to head", matrix, shares, lead=lead)


def turned(estimate: Metrics) -> dict[str, Any]:
    """A share seen from the other side: one minus it."""
    sides = {"value": "value", "low": "high", "high": "low"}
    return {**estimate, **{key: None if estimate[of] is None else 1 - estimate[of] for key, of in sides.items()}}


def _against(rate: Metrics | None) -> Cell:
    if rate is None or rate["value"] is None:
        return Cell(charts.DASH)
    kind, sign = "same", ""
    if rate["low"] is not None and rate["low"] > 0.5:
        kind, sign = "better", " ▲"
    elif rate["high"] is not None and rate["high"] < 0.5:
        kind, sign = "worse", " ▼"
    return Cell(interval(rate, 2) + sign, rate["value"], f"figure {kind}")


def _shares(shares: Metrics) -> Cell:
    values = [shares[key]["value"] for key in ("win", "tie", "loss")]
    if values[0] is None:
        return Cell(charts.DASH)
    return Cell(" / ".join(f"{100 * value:.0f}" for value in values) + " %", values[0], "figure")


def _tests(compared: Metrics) -> str:
    """Every paired test, with its correction, in words."""
    tests = compared.get("tests") or []
    if not tests:
        return ""
    rows = [
        [
            f"{test['first']} − {test['second']}",
            FIGURES.get(test["figure"], test["figure"]),
            Cell(_chance(test["p_adjusted"]), test["p_adjusted"], "better" if test["significant"] else ""),
            "yes" if test["significant"] else "no",
            estimated(test["difference"], kind="figure"),
            Cell(_chance(test["p"]), test["p"]),
            Cell(test["claim"], kind="words"),
        ]
        for test in tests
    ]
    shown = sum(bool(test["significant"]) for test in tests)
    lead = (
        f"Each two policies on the same prompts, figure by figure: {shown} of {len(tests)} differences are shown. p is "
        "adjusted by Holm's method over all tests of the same figure, for with many tests some differences come up by "
        "chance."
    )
    header = ["Pair", "Figure", "p, adjusted", "Shown", "Difference", "p", "In words"]
    return section("Tests", table(header, rows, "Paired tests of differences", kind="sortable"), lead=lead)


def _chance(p: float | None) -> str:
    return "< 0.001" if p is not None and p < 0.001 else number(p)


def _side_by_side(metrics: Metrics, samples: Mapping[str, Sequence[Metrics]]) -> str:
    """A few prompts with the natural answer of every policy, where all policies were shown the same prompts."""
    by_prompt = [{prompt_text(sample["prompt"]): sample for sample in own} for own in samples.values()]
    if not by_prompt:
        return ""
    cards = []
    for asked in [key for key in by_prompt[0] if all(key in own for own in by_prompt)][:_SHARED]:
        answers = []
        for i, (name, own) in enumerate(zip(samples, by_prompt, strict=True)):
            condition = metrics["comparison"]["conditions"][name]
            given = [each for each in own[asked]["answers"] if each["condition"] == condition]
            answers += [_answer(i, name, each) for each in given]
        if len(answers) > 1:
            cards.append(
                f'<div class="sample"><div class="asked">{paragraph("user", "role")}{said(asked)}</div>'
                f'<div class="answers">{"".join(answers)}</div></div>'
            )
    lead = "The same prompts, drawn at random and not picked; each policy as it answers by itself."
    return section("Answers side by side", *cards, lead=lead) if cards else ""


def _answer(index: int, name: str, answer: Metrics) -> str:
    values = ", ".join(f"{objective} {number(value, 2)}" for objective, value in answer["values"].items())
    return (
        f'<div class="answer"><p class="role">{icon(index)}{escape(name)}</p>{said(answer["text"])}'
        f"{paragraph(values, 'muted')}</div>"
    )
