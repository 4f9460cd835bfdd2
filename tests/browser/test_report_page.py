"""report.html in Chromium: keyboard and mouse, without a script, on paper, narrow and wide, and with hostile text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evaluation.made_up import HOSTILE, OBJECTIVES, POLICIES

Visit = Callable[..., Any]
_FRONT = "#front-common"


def _selected(page: Any) -> str:
    return str(page.locator(f"{_FRONT} [role=option][aria-selected=true]").get_attribute("aria-label"))


def test_the_page_never_scrolls_sideways(visit: Visit) -> None:
    for name in ("several", "hostile"):
        page = visit(name, width=1600)
        for width in (1600, 900, 380):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("name", "dark", "width"), [("several", True, 380), ("one", False, 1200)])
def test_axe_finds_nothing(visit: Visit, name: str, dark: bool, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = visit(name, width=width, dark=dark)
    found = axe.Axe().run(page).response["violations"]
    assert [(each["id"], [node["target"] for node in each["nodes"]][:3]) for each in found] == []


def test_the_front_by_keyboard(visit: Visit) -> None:
    page = visit("several")
    page.locator(f"{_FRONT} .legend input").last.focus()
    page.keyboard.press("Tab")
    options = page.locator(f"{_FRONT} [role=option]")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "option"
    page.keyboard.press("Home")
    seen = [_selected(page)]
    for _ in range(options.count() - 1):
        page.keyboard.press("ArrowRight")
        seen.append(_selected(page))
    assert len(set(seen)) == options.count()  # every point is reached, from left to right
    across = [float(label.split("helpful ")[-1].split(",")[0]) for label in seen]
    assert across == sorted(across)
    page.keyboard.press("ArrowRight")
    assert _selected(page) == seen[-1]
    detail = page.locator(f"{_FRONT} .detail")
    assert seen[-1].startswith(detail.locator(".headline").inner_text())
    assert "How do I bake bread?" in detail.inner_text()
    page.keyboard.press("Tab")  # one stop for all points
    assert page.evaluate("document.activeElement.getAttribute('role')") != "option"


def test_any_two_objectives_and_a_third(visit: Visit) -> None:
    page = visit("several")
    front = page.locator(_FRONT)
    across, up = front.get_by_label("Across"), front.get_by_label("Up")
    across.select_option("harmless")  # what the other axis shows: they change places
    assert (across.input_value(), up.input_value()) == ("harmless", "helpful")
    assert front.locator(".axis").all_text_contents() == ["harmless →", "↑ helpful"]
    up.select_option("brevity")
    before = front.locator(".point use").first.get_attribute("transform")
    front.get_by_label("Size").select_option("helpful")
    assert front.locator(".point use").first.get_attribute("transform") != before
    assert "size: helpful" in front.locator("svg.live").text_content()


def test_hover_and_the_legend(visit: Visit) -> None:
    page = visit("several")
    front = page.locator(_FRONT)
    point = front.locator("[role=option]").filter(has=page.locator(".p2")).first
    point.hover(force=True)
    assert point.get_attribute("aria-selected") == "true"
    name = front.locator(".detail .headline").inner_text()
    assert str(point.get_attribute("aria-label")).startswith(f"{name}: ")
    count = front.locator("[role=option]").count()
    front.get_by_role("checkbox", name="ric").uncheck()
    assert front.locator("[role=option] .p2").count() == 0
    assert 0 < front.locator("[role=option]").count() < count
    for other in POLICIES:
        front.get_by_role("checkbox", name=other, exact=True).uncheck()
    assert "Nothing to draw" in front.locator(".plot").inner_text()
    front.get_by_role("checkbox", name="sga").check()
    assert front.locator("[role=option] .p0").count() > 0


def test_a_policy_keeps_its_colour_and_shape(visit: Visit) -> None:
    page = visit("several")
    for index in range(len(POLICIES)):
        marks = page.locator(f"{_FRONT} .point .p{index}")
        assert {marks.nth(i).get_attribute("href") for i in range(marks.count())} == {f"#shape-{index}"}


def test_tables_are_sorted_by_keyboard(visit: Visit) -> None:
    page = visit("several")
    table = page.locator("table.sortable").filter(has_text="Policies compared").first
    button = table.get_by_role("button", name="Hypervolume")
    button.focus()
    page.keyboard.press("Enter")  # numbers: the best first
    assert table.locator("tbody th").all_inner_texts() == list(POLICIES)
    page.keyboard.press("Enter")
    assert table.locator("tbody th").all_inner_texts() == list(reversed(POLICIES))
    assert table.locator("th[aria-sort=ascending]").inner_text().startswith("Hypervolume")
    table = page.locator("table.sortable").filter(has_text="Mean scores and length").first
    for _ in range(2):
        table.get_by_role("button", name="Inner product").press("Enter")
        assert table.locator("tbody th").all_inner_texts()[-1] == "dpo"  # it has none: last, whichever way


def test_without_a_script_a_drawing_and_a_table_remain(visit: Visit) -> None:
    page = visit("several", scripts=False)
    front = page.locator(_FRONT)
    assert front.locator("form").is_hidden() and front.locator(".detail").is_hidden()
    drawing = front.locator("svg[role=img]")
    assert drawing.is_visible() and drawing.locator(".stairs").count() == 1
    assert "sga: helpful 1" in str(drawing.get_attribute("aria-label"))
    rows = page.get_by_role("group", name="Common front: all points").locator("tbody tr")
    assert rows.count() == drawing.locator("use").count() > len(POLICIES)


def test_paper_shows_everything(visit: Visit) -> None:
    page = visit("several", dark=True)
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    cut = page.evaluate(
        "[...document.querySelectorAll('.scroll, .said')].filter((n) => n.scrollHeight > n.clientHeight + 1"
        " && getComputedStyle(n).overflowY !== 'visible').length"
    )
    assert cut == 0
    for heading in ("What was found", "The front", "Head to head", "Tests", "Held-out judge", "Words and figures"):
        assert page.get_by_text(heading, exact=True).first.is_visible()
    assert page.locator("form.controls").first.is_hidden()
    assert page.pdf()[:4] == b"%PDF"


def test_hostile_text_is_text(visit: Visit) -> None:
    page = visit("hostile")
    page.locator(f"{_FRONT} [role=option]").first.focus()
    page.keyboard.press("End")
    assert page.evaluate("window.broken") is None
    assert page.locator("img, iframe, b").count() == 0
    shown = page.locator(f"{_FRONT} .detail").inner_text()
    assert '<img src=x onerror="window.broken=2">' in shown and "</script>" in shown
    assert HOSTILE[:40] in page.locator("h2").nth(1).inner_text()
    assert page.locator("#made").count() == 1  # nothing after the text was swallowed


def test_the_policy_lets_no_other_script_or_style_in(visit: Visit, reports: dict[str, Any], browser: Any) -> None:
    text = reports["one"].read_text(encoding="utf-8")
    forged = text.replace(
        "</main>", "<script>window.broken=1</script><p id='p' style='color:red' onclick='x()'>p</p></main>"
    )
    path = reports["one"].with_name("forged.html")
    path.write_text(forged, encoding="utf-8")
    page = browser.new_page()
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto(path.as_uri())
    assert page.evaluate("window.broken") is None
    assert page.evaluate("getComputedStyle(document.querySelector('#p')).color") != "rgb(255, 0, 0)"
    assert len([each for each in refused if "Content Security Policy" in each]) >= 2
    assert page.locator("[role=option]").count() == 6 + 7  # our own script runs all the same: two fronts
    page.close()


def test_one_policy_has_its_fronts_and_profiles(visit: Visit) -> None:
    page = visit("one")
    assert page.locator("#comparison").count() == 0
    assert page.locator("h1").inner_text() == "sga"
    assert page.locator(".verdict .headline").inner_text() == "Sensing helps on this data."
    bars = page.locator(".sample svg").first
    assert f"{OBJECTIVES[0]} 0.60 (between 0.40 and 0.85), target 0.70" in str(bars.get_attribute("aria-label"))
    assert bars.locator("line.reach").count() == 3 * len(OBJECTIVES)
