"""The page in Chromium: type, stream, stop, edit, pin and release, compare; by keyboard too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from server.conftest import soon
from server.fake_engine import FakeEngine
from server.page.conftest import finished, say, speaking

Visit = Callable[..., Any]


def _asks(page: Any) -> list[Any]:
    return [ticket.ask for ticket in page.running.engine.tickets]


def _messages(ask: Any) -> list[tuple[str, str]]:
    return [(each["role"], each["content"]) for each in ask.messages]


def test_an_answer_streams_as_text_and_ends_as_markdown(visit: Visit) -> None:
    page = visit(speaking("**Tea** is a drink made of " + "leaves " * 40, pace=0.02))
    say(page)
    answer = page.locator(".answer")
    page.get_by_text("**Tea** is a drink").wait_for()  # while it streams it is text
    assert answer.get_attribute("aria-busy") == "true"
    assert page.locator("#status").inner_text() == "Answering."  # no token is read out
    finished(page)
    assert answer.get_attribute("aria-busy") == "false"
    assert answer.locator("strong").inner_text() == "Tea"
    assert page.locator("#status").inner_text().startswith("Answer: **Tea** is a drink")
    assert page.get_by_role("button", name="Send").is_visible()


def test_what_was_sensed_used_and_obtained_stands_beside_the_answer(visit: Visit) -> None:
    page = visit(speaking("Tea is a drink."))
    say(page)
    bars = finished(page).locator(".bars li")
    assert bars.nth(0).locator("p").inner_text() == "sensed 0.75 (0.60 to 0.90) · used 0.75 · obtained 0.96"
    assert bars.nth(1).locator("p").inner_text() == "sensed 0.50 (0.25 to 0.75) · used 0.50 · obtained: not scored"
    assert page.locator(".badge").count() == 0
    slider = page.get_by_role("slider", name="brevity")
    assert slider.input_value() == "0.75" and slider.get_attribute("aria-valuetext") == "0.75, sensed"
    assert page.get_by_text("Say few words.").is_visible()  # the phrase of that level


def test_pin_and_release_by_keyboard(visit: Visit) -> None:
    page = visit(speaking("Tea."))
    slider = page.get_by_role("slider", name="brevity")
    slider.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert slider.get_attribute("aria-valuetext") == "0.99, pinned"
    say(page)
    assert finished(page).locator(".badge").count() == 1
    assert _asks(page)[0].pins == {"brevity": 0.99}
    page.get_by_role("button", name="Release brevity").press("Enter")
    assert page.get_by_role("button", name="Pin brevity").evaluate("each => each === document.activeElement")
    say(page, "Again?")
    finished(page, 2)
    assert _asks(page)[1].pins == {}
    assert page.locator(".answer").nth(1).locator(".badge").count() == 0
    page.get_by_label("Sense the others").uncheck()
    say(page, "And plain?")
    finished(page, 3)
    assert _asks(page)[2].sense is False
    assert "sensed" not in page.locator(".answer").nth(2).inner_text()


def test_stop_frees_the_engine_and_keeps_what_was_said(visit: Visit) -> None:
    page = visit(speaking("Tea " * 500, pace=0.05))
    say(page)
    page.get_by_text("Tea Tea").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.", exact=True).first.wait_for()
    ticket = page.running.engine.tickets[0]
    assert ticket.cancelled.wait(5)
    assert "Tea Tea" in page.locator(".answer .said").inner_text()
    assert page.locator("#draft").evaluate("each => each === document.activeElement")
    page.running.engine.words = ("More.",)
    say(page, "Go on")
    page.get_by_text("More.").first.wait_for()
    assert _messages(_asks(page)[1])[1][1].startswith("Tea Tea")  # the model is told what it had said
    page.running.engine.words = ("Tea ",) * 500
    say(page, "Once more")
    page.locator(".turn").nth(2).get_by_text("Tea Tea").wait_for()
    page.keyboard.press("Escape")
    assert page.running.engine.tickets[2].cancelled.wait(5)


def test_two_profiles_side_by_side(visit: Visit) -> None:
    page = visit(speaking("Tea."), width=1600)
    say(page)
    finished(page)
    page.get_by_label("Compare").check()
    second = page.get_by_role("group", name="Profile B")
    second.get_by_role("slider", name="cheer").focus()
    page.keyboard.press("Home")
    say(page, "And now?")
    answers = finished(page, 3)
    boxes = [answers.nth(at).bounding_box() for at in (1, 2)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    assert sorted(str(ask.pins) for ask in _asks(page)[1:]) == ["{'cheer': 0.0}", "{}"]
    assert answers.nth(1).get_attribute("aria-label") == "Answer A"
    assert answers.nth(2).locator(".badge").count() == 1
    front = str(page.locator("#front svg").get_attribute("aria-label"))
    assert "profile A: brevity 0.75, cheer 0.50" in front and "profile B: brevity 0.75, cheer 0.00" in front
    page.get_by_label("Compare").uncheck()
    assert second.count() == 0 and page.get_by_role("group", name="Profile", exact=True).count() == 1
    say(page, "Third?")
    finished(page, 4)
    assert len(_asks(page)) == 4


def test_again_edit_and_clear(visit: Visit) -> None:
    page = visit(speaking("One."))
    say(page, "First question")
    finished(page)
    page.running.engine.words = ("Two.",)
    page.get_by_role("button", name="Answer again").click()
    page.get_by_text("Two.", exact=True).wait_for()
    assert page.locator(".answer").count() == 1
    one, two = _asks(page)
    assert _messages(one) == _messages(two) == [("user", "First question")] and one.seed != two.seed
    page.get_by_role("button", name="Edit").click()
    draft = page.get_by_label("Message", exact=True)
    assert draft.input_value() == "First question"
    page.get_by_role("button", name="Cancel").click()
    assert draft.input_value() == "" and page.locator(".turn").count() == 1
    page.get_by_role("button", name="Edit").click()
    say(page, "Better question")
    finished(page)
    assert page.locator(".turn").count() == 1
    assert _messages(_asks(page)[2]) == [("user", "Better question")]
    say(page, "Next")
    finished(page, 2)
    assert _messages(_asks(page)[3]) == [("user", "Better question"), ("assistant", "Two."), ("user", "Next")]
    assert page.get_by_role("button", name="Edit").count() == 1  # of the last message only
    page.get_by_role("button", name="Clear").click()
    assert page.locator(".turn").count() == 0 and page.get_by_text("Ask something.").is_visible()
    say(page, "Anew")
    finished(page)
    assert _messages(_asks(page)[4]) == [("user", "Anew")]


def test_settings_are_sent(visit: Visit) -> None:
    page = visit(speaking("Tea is a drink."))
    page.get_by_text("Settings").click()
    page.get_by_label("System message").fill("Be kind.")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Longest answer").fill("2")
    say(page)
    finished(page)
    ask = _asks(page)[0]
    assert _messages(ask) == [("system", "Be kind."), ("user", "What is tea?")]
    assert (ask.temperature, ask.max_new_tokens) == (0, 2)
    assert "Cut off" in page.locator(".answer .note").inner_text()


def test_sense_only_moves_the_sliders_and_answers_nothing(visit: Visit) -> None:
    page = visit(speaking("Tea."))
    page.get_by_label("Message", exact=True).fill("What is tea?")
    page.get_by_role("button", name="Sense only").click()
    page.get_by_text("Say few words.").wait_for()
    assert page.get_by_role("slider", name="brevity").get_attribute("aria-valuetext") == "0.75, sensed"
    assert page.get_by_role("slider", name="cheer").get_attribute("aria-valuetext") == "0.50, sensed"
    assert _asks(page) == [] and page.get_by_label("Message", exact=True).input_value() == "What is tea?"


def test_everything_by_keyboard(visit: Visit) -> None:
    page = visit(speaking("Tea."))
    assert page.evaluate("document.activeElement.id") == "draft"  # one may type at once
    heading = "document.querySelector('h1').tabIndex = -1; document.querySelector('h1').focus()"
    page.evaluate(heading)
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the message field"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "draft"
    page.keyboard.type("Line one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("line two")
    page.keyboard.press("Enter")
    finished(page)
    assert _messages(_asks(page)[0]) == [("user", "Line one\nline two")]
    page.evaluate(heading)
    reached = []
    for _ in range(24):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "(document.activeElement.getAttribute('aria-label') ?? document.activeElement.labels?.[0]?.textContent"
                " ?? document.activeElement.textContent).trim()"
            )
        )
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"  # the focus is seen
        if reached[-1] == "Send":
            break
    wanted = [
        "Compare",
        "Clear",
        "brevity",
        "Pin brevity",
        "Front of the evaluation",
        "Settings",
        "Copy",
        "Edit",
        "Send",
    ]
    places = [reached.index(each) for each in wanted]
    assert places == sorted(places)


def test_two_tabs_at_once(visit: Visit) -> None:
    engine = FakeEngine(("Tea", " is", " good."))
    engine.waits = threading.Event()
    first = visit(engine)
    second = visit(server=first.running)
    say(first, "One")
    say(second, "Two")
    assert soon(lambda: len(engine.tickets) == 2)
    engine.waits.set()
    for page, own, other in ((first, "One", "Two"), (second, "Two", "One")):
        finished(page)
        assert page.locator(".user .said").all_inner_texts() == [own] != [other]
        assert page.locator(".answer .said").inner_text().strip() == "Tea is good."
