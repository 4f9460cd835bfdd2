"""report.html as text: what stands where, what its content policy lets in, and that older or poorer metrics do too."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from evaluation import made_up
from paretune.evaluation.markup import Cell, numeric, table, without_empty
from paretune.evaluation.page.assets import island
from paretune.evaluation.page.compared import turned
from paretune.evaluation.page.front import Plot, front_figure
from paretune.evaluation.page.shapes import SHAPES, colour, shape
from paretune.evaluation.report import render

VOID = {"meta", "input", "br", "hr", "img"}


class _Outline(HTMLParser):
    """Headings in order, ids, and tags that are left open or closed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.headings: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name == "href" and value]
        if tag in ("h1", "h2", "h3"):
            self.headings.append((tag, ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.headings and self.open[-1] == self.headings[-1][0]:
            self.headings[-1] = (self.open[-1], self.headings[-1][1] + data)


def _outline(text: str) -> _Outline:
    page = _Outline()
    page.feed(text)
    assert page.open == [] and page.wrong == []
    assert len(set(page.ids)) == len(page.ids)
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    return page


@pytest.fixture(scope="module")
def several() -> str:
    return render(made_up.metrics(), made_up.samples())


def test_a_comparison_in_the_order_of_a_reader(several: str) -> None:
    headings = _outline(several).headings
    assert headings[0] == ("h1", "4 policies compared")
    assert [text for tag, text in headings if tag == "h2"] == ["Comparison", *made_up.POLICIES, "How this was made"]
    compared = [text for tag, text in headings[2:8]]
    assert compared[:5] == ["Methods", "The front", "Head to head", "Tests", "Answers side by side"]
    own = [text for tag, text in headings[headings.index(("h2", "sga")) + 1 :] if tag == "h3"]
    assert own[:5] == [
        "Ablation", "Control: requested against obtained", "What the head senses", "Win, tie, loss", "Held-out judge",
    ]  # fmt: skip
    assert several.index("What was found") < several.index("Methods")
    assert several.index("sga is first in mean win rate") < several.index("Methods")
    assert "paretune evaluate runs/sga runs/dpo" in several


def test_one_policy_starts_with_its_verdict() -> None:
    text = render(made_up.metrics(("sga",)), made_up.samples(("sga",)))
    page = _outline(text)
    assert page.headings[:2] == [("h1", "sga"), ("h2", "sga")]
    assert "Comparison" not in [heading for _, heading in page.headings]
    assert text.index("Sensing helps on this data.") < text.index("Ablation")


def test_the_policy_names_exactly_what_stands_in_the_page(several: str) -> None:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', several)
    assert "unsafe" not in policy and policy.startswith("default-src 'none';")
    for kind, pattern in (("style", r"<style>(.*?)</style>"), ("script", r"<script>(.*?)</script>")):
        (content,) = re.findall(pattern, several, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert " style=" not in several and "http-equiv" in several
    assert not re.findall(r"(?:src|href)=\"(?!#)", several)


def test_data_for_the_script_survives_and_cannot_break_out() -> None:
    data = {"text": made_up.HOSTILE, "lone": "\ud800"}
    text = island(data)
    inner = text.removeprefix('<script type="application/json">').removesuffix("</script>")
    assert not set("<>&") & set(inner) and inner.isascii()
    assert json.loads(inner) == data
    with pytest.raises(ValueError, match="JSON compliant"):
        island({"value": float("nan")})


def test_hostile_text_leaves_the_outline_as_it_is() -> None:
    names = (made_up.HOSTILE, "dpo", "ric", "modpo")
    page = _outline(render(made_up.metrics(names, made_up.HOSTILE), made_up.samples(names, made_up.HOSTILE)))
    assert [tag for tag, _ in page.headings].count("h2") == 6
    assert page.headings[-1] == ("h3", "Words and figures")


def _older(metrics: dict[str, Any]) -> dict[str, Any]:
    """As metrics.json was before sweeps, pairs and tests."""
    old = copy.deepcopy(metrics)
    for own in old["policies"].values():
        for key in ("sweep", "multi_win", "win_only", "front_set", "cost", "held_out", "natural"):
            own.pop(key)
    for key in ("policies", "head_to_head", "tests", "claims", "notes"):
        old["comparison"].pop(key)
    front = old["comparison"]["front"]
    keys = ("name", "values", "on_front")
    front["points"] = [{key: p[key] for key in keys} for p in front["points"] if p["kind"] == "natural"]
    return old


def test_metrics_of_before_still_make_a_page() -> None:
    text = render(_older(made_up.metrics()), made_up.samples())
    headings = [heading for _, heading in _outline(text).headings]
    assert "Head to head" not in headings and "Tests" not in headings and "Held-out judge" not in headings
    assert "The front" in headings and "Mean win rate" not in re.findall(r"<th scope=\"col\">([^<]*)", text)
    assert "4 policies were compared on 120 prompts." in text


def test_nothing_scored_nothing_shared_and_no_samples() -> None:
    metrics = made_up.metrics()
    metrics["comparison"] |= {"objectives": [], "front": None, "head_to_head": [], "tests": []}
    for own in metrics["policies"].values():
        own |= {"scored": [], "front": None, "front_set": None, "sweep": [], "held_out": None, "control": None}
        own["unscored"] = {"helpful": "it holds stored scores"}
        for each in own["wins"].values():
            each["joint"] = {key: made_up.estimate(None, why="nothing is scored") for key in ("win", "tie", "loss")}
    text = render(metrics, {})
    assert "none in common" in text and "helpful does not score answers: it holds stored scores" in text
    assert "No objective could be scored on the answers." in text
    _outline(text)


def test_an_undefined_figure_says_why() -> None:
    metrics = made_up.metrics()
    front = metrics["comparison"]["front"]
    front |= {"points": [], "hypervolume": made_up.estimate(None, why="no prompt has every score")}
    metrics["comparison"]["policies"]["dpo"]["multi_win"] = made_up.estimate(None, why="no answer could be scored")
    metrics["comparison"]["tests"][0] |= {"p": None, "p_adjusted": None, "significant": False}
    text = render(metrics, made_up.samples())
    assert "Hypervolume undefined: no prompt has every score." in text
    assert "– : no answer could be scored." in text
    assert "nan" not in re.sub(r"<(style|script).*?</\1>", "", text.lower(), flags=re.DOTALL).split()


def test_the_line_of_the_front_by_hand() -> None:
    """Three points of which two are best: the line runs left, to b, down, to a, down to the axis."""
    values = {"a": (1.0, 0.0), "b": (0.0, 1.0), "c": (0.0, 0.0)}
    points = [
        {"name": name, "values": {"one": x, "two": y}, "on_front": name != "c"} for name, (x, y) in values.items()
    ]
    text = front_figure(Plot("front-x", "Front", ["one", "two"], points, ["p"], "p"))
    # the box is 292 by 214 at (44, 18) and 15% of the range wider than the points on each side
    left, right, top, bottom = (
        44 + 292 * 0.15 / 1.3,
        44 + 292 * 1.15 / 1.3,
        18 + 214 * 0.15 / 1.3,
        18 + 214 * 1.15 / 1.3,
    )
    assert f'd="M44.0,{top:.1f}H{left:.1f}V{bottom:.1f}H{right:.1f}V232.0"' in text
    assert text.count('class="mark p0 full"') == 2 and text.count('class="mark p0 "') == 1
    assert "a 1.000, 0.000 (on the front); b 0.000, 1.000 (on the front); c 0.000, 0.000" in text


def test_a_front_of_one_objective_is_a_table() -> None:
    points = [{"name": "a", "values": {"one": 0.5}, "on_front": True}]
    text = front_figure(Plot("front-x", "Front", ["one"], points, ["p"], "p"))
    assert "<svg" not in text and '<td data-sort="0.5">0.500</td>' in text


def test_a_pair_seen_from_the_other_side() -> None:
    seen = turned({"value": 0.7, "low": 0.6, "high": 0.75, "n": 9})
    assert seen == {"value": pytest.approx(0.3), "low": pytest.approx(0.25), "high": pytest.approx(0.4), "n": 9}
    assert turned(made_up.estimate(None, why="x"))["low"] is None


def test_sixteen_policies_are_told_apart() -> None:
    assert len({(colour(i), shape(i)) for i in range(16)}) == 16
    assert len({colour(i) for i in range(8)}) == len({shape(i) for i in range(8)}) == len(SHAPES) == 8


def test_cells_sort_by_their_number_and_empty_columns_go() -> None:
    assert numeric(1234567, 0) == Cell("1\u202f234\u202f567", 1234567.0)
    assert numeric(None, 0) == Cell("–", None)
    text = table(["a", "b"], [["<x>", Cell("1.0", 1.0, "better")]], "c")
    assert '<tr><th scope="row">&lt;x&gt;</th><td class="better" data-sort="1.0">1.0</td></tr>' in text
    header, rows = without_empty(["a", "b", "c"], [["x", numeric(None), "1"], ["y", Cell("–"), ""]])
    assert (header, rows) == (["a", "c"], [["x", "1"], ["y", ""]])
