"""The page in Chromium when something is odd: refusals, keys, broken streams, hostile text, other policies, widths."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from paretune.errors import InputError
from paretune.policy.requests import Sensed
from paretune.server.request import Ask
from server.conftest import Running
from server.fake_engine import SENSED, FakeEngine
from server.page.conftest import TEA, finished, say, speaking

Visit = Callable[..., Any]
HOSTILE = (
    '<img src=x onerror="window.broken=1"><script>window.broken=2</script> [click](javascript:window.broken=3)\n\n'
    '![spy](http://elsewhere.example/pixel.png) <b>bold</b> <a href="/v1/models" onclick="window.broken=4">a</a>'
)


def _note(page: Any, text: str) -> Any:
    note = page.locator(".answer .note").filter(has_text=text)
    note.wait_for()
    return note


def test_hostile_answers_and_messages_do_nothing(visit: Visit) -> None:
    page = visit(FakeEngine((HOSTILE,)))
    say(page, HOSTILE)
    finished(page)
    assert page.evaluate("window.broken") is None
    assert page.locator("#turns :is(img, script, b, iframe)").count() == 0
    assert '<img src=x onerror="window.broken=1">' in page.locator(".answer .said").inner_text()
    assert '<img src=x onerror="window.broken=1">' in page.locator(".user .said").inner_text()
    assert page.locator(".answer a[href^='javascript']").count() == 0


def test_the_policy_runs_no_script_from_elsewhere(visit: Visit) -> None:
    page = visit(speaking("Tea."), provoked=True)
    blocked = page.evaluate(
        """() => new Promise((done) => {
             const found = [];
             document.addEventListener("securitypolicyviolation", (event) => {
               found.push(event.effectiveDirective);
               if (found.length === 3) done(found);
             });
             const script = document.createElement("script");
             script.textContent = "window.broken = 1";
             const image = document.createElement("img");
             image.src = "http://127.0.0.1:9/x.png";
             const text = document.createElement("p");
             text.setAttribute("style", "color: red");
             document.body.append(script, image, text);
           })"""
    )
    assert sorted(blocked) == ["img-src", "script-src-elem", "style-src-attr"]
    assert page.evaluate("window.broken") is None


def test_a_busy_server_says_when_to_come_back(visit: Visit) -> None:
    engine = speaking("Tea.")
    engine.busy = True
    page = visit(engine)
    say(page)
    note = _note(page, "The server is busy. Try again in 7 seconds.")
    engine.busy = False
    note.get_by_role("button", name="Try again").click()
    finished(page)
    assert page.locator(".answer .said").inner_text().strip() == "Tea." and page.locator(".note.wrong").count() == 0


def test_a_context_that_overflows_is_told_with_what_to_do(visit: Visit) -> None:
    engine = speaking("Tea.")
    engine.refuses = InputError("the prompt has 900 tokens, but the model's context is 512")
    page = visit(engine)
    say(page)
    text = _note(page, "too long").inner_text()
    assert "900" in text and "512" in text and "Clear the conversation" in text
    assert page.locator(".answer").get_by_role("button", name="Try again").count() == 0
    engine.refuses = None
    say(page, "Short?")  # the page lives on, and what failed is not told to the model
    finished(page)
    assert [each["content"] for each in engine.tickets[-1].ask.messages] == ["Short?"]


def test_an_answer_that_fails_midway_keeps_what_came(visit: Visit) -> None:
    engine = speaking("Tea is a drink.", pace=0.1)
    engine.fails, engine.fails_after = RuntimeError("inside"), 3
    page = visit(engine)
    say(page)
    note = _note(page, "The answer failed")
    assert "inside" not in note.inner_text() and note.get_by_role("button", name="Try again").is_visible()
    said = page.locator(".answer .said").inner_text()
    assert said and "Tea is a".startswith(said)


def test_a_server_that_is_gone_is_told(visit: Visit) -> None:
    page = visit(speaking("Tea " * 400, pace=0.05))
    say(page)
    page.get_by_text("Tea Tea").wait_for()
    page.running.server.should_exit = page.running.server.force_exit = True
    note = _note(page, re.compile("broke off|failed|stopping"))
    page.get_by_label("Message", exact=True).fill("x")
    note.get_by_role("button", name="Try again").click()
    _note(page, "The server cannot be reached. Is it still running?")
    assert page.get_by_role("button", name="Send").is_enabled()


def test_a_key_is_asked_for_and_kept_in_memory(visit: Visit) -> None:
    page = visit(speaking("Tea."), keys=("secret",), ready=False)
    notice = page.get_by_role("alert")
    notice.filter(has_text="API key").wait_for()
    field = notice.get_by_label("API key")
    assert field.get_attribute("type") == "password"
    field.fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_role("alert").filter(has_text="is not one of").wait_for()
    page.get_by_label("API key").fill("secret")
    page.get_by_role("button", name="Use it").click()
    page.locator("#send:enabled").wait_for()
    assert page.get_by_role("alert").count() == 0
    say(page)
    finished(page)
    assert page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])") == '[{},{},""]'
    page.reload()
    page.get_by_role("alert").filter(has_text="API key").wait_for()


def test_a_page_without_its_server_offers_another_try(visit: Visit) -> None:
    page = visit(speaking("Tea."), ready=False)
    page.route("**/v1/objectives", lambda route: route.abort())
    page.reload()
    alert = page.get_by_role("alert")
    alert.filter(has_text="cannot be reached").wait_for()
    page.unroute("**/v1/objectives")
    alert.get_by_role("button", name="Try again").click()
    page.locator("#send:enabled").wait_for()
    assert page.get_by_role("alert").count() == 0


class Weighing(FakeEngine):
    """Answers under weights, and senses nothing."""

    def submit(self, ask: Ask, listener: Any) -> Any:
        from paretune.server.request import Begun

        def told(event: Any) -> None:
            if isinstance(event, Begun):
                weights = dict(ask.weights or {"brevity": 0.5, "cheer": 0.5})
                event = replace(event, used=None, weights=weights)
            listener(event)

        return super().submit(ask, told)


def test_weights_sum_to_one(visit: Visit) -> None:
    soups = replace(TEA, method="soups", senses=False, takes_profile=False, rule="soup", front=None)
    page = visit(Weighing(("Tea.",)), served=soups)
    assert page.get_by_role("button", name="Sense only").count() == 0
    say(page)
    finished(page)
    assert page.running.engine.tickets[0].ask.weights is None  # nothing was set: the policy's own
    page.get_by_role("slider", name="brevity").fill("30")
    page.get_by_role("slider", name="cheer").fill("60")
    assert page.get_by_role("slider", name="cheer").get_attribute("aria-valuetext") == "67% of the weight"
    say(page, "Again")
    finished(page, 2)
    weights = page.running.engine.tickets[1].ask.weights
    assert weights == pytest.approx({"brevity": 1 / 3, "cheer": 2 / 3}, abs=1e-4) and sum(weights.values()) == 1
    assert "weight 0.67" in page.locator(".answer").nth(1).inner_text()
    page.get_by_role("button", name="Reset").click()
    say(page, "And now")
    finished(page, 3)
    assert page.running.engine.tickets[2].ask.weights is None


def test_a_policy_that_takes_nothing_shows_no_slider(visit: Visit) -> None:
    plain = replace(TEA, method="dpo", senses=False, takes_profile=False, rule=None, front=None)
    page = visit(speaking("Tea."), served=plain)
    assert page.get_by_text("takes no profile").is_visible()
    assert page.locator("#editors").get_by_role("slider").count() == 0 and page.locator("#front-box").is_hidden()
    say(page)
    finished(page)
    assert "obtained 0.99" in page.locator(".bars").inner_text()


def test_an_objective_may_be_called_what_every_object_has(visit: Visit) -> None:
    named = replace(TEA, objectives=(TEA.objectives[0], replace(TEA.objectives[1], name="constructor")), front=None)
    page = visit(speaking("Tea."), served=replace(named, mean={"brevity": 0.5, "constructor": 0.5}))
    page.get_by_role("slider", name="brevity").fill("0.9")
    page.get_by_label("Sense the others").uncheck()
    say(page)
    finished(page)
    assert page.locator(".note.wrong").count() == 0
    assert page.locator(".bars .badge").count() == 1  # what is pinned is brevity alone
    assert page.locator(".bars p").all_inner_texts() == ["used 0.90 · obtained 0.99", "obtained: not scored"]


def test_a_fault_of_the_page_is_not_blamed_on_the_connection(visit: Visit) -> None:
    page = visit(speaking("Tea."))
    page.evaluate("() => { requestAnimationFrame = () => { throw new Error('no frames') } }")
    say(page)
    assert "The page failed: no frames." in _note(page, "The page failed").inner_text()


def test_the_front_over_any_two_objectives(visit: Visit) -> None:
    page = visit(speaking("Tea is a drink."))
    assert page.locator("#front .dot").count() == 3 and page.locator("#front .dot.full").count() == 2
    assert page.locator("#front .here").count() == 0
    across, up = page.get_by_label("Across"), page.get_by_label("Up")
    across.select_option("cheer")  # what the other axis shows: they change places
    assert (across.input_value(), up.input_value()) == ("cheer", "brevity")
    say(page)
    finished(page)
    label = str(page.locator("#front svg").get_attribute("aria-label"))
    assert "profile: cheer 0.50, brevity 0.75" in label and page.locator("#front .here").count() == 1
    page.get_by_text("As a table").click()
    assert page.locator("#front tbody tr").count() == 3


def test_the_request_as_code_runs(visit: Visit) -> None:
    page = visit(speaking("Tea."))
    page.get_by_label("Message", exact=True).fill('What\'s "tea" 茶 🍵 $HOME \\ `x`?\nSay.')
    page.get_by_role("slider", name="brevity").fill("0.9")
    page.get_by_text("This request as code").click()
    shown = page.get_by_label("The request as code").filter(has_text="curl")
    shown.wait_for()  # a browser tells of an opened box a moment later
    done = subprocess.run(["bash", "-c", shown.inner_text()], capture_output=True, text=True, timeout=60)
    assert '"content":"Tea."' in done.stdout
    page.locator("#code").get_by_role("combobox").first.select_option("python")
    text = page.get_by_label("The request as code").inner_text()
    assert "extra_body=" in text
    pytest.importorskip("openai")
    exec(compile(text, "shown", "exec"), {})
    asks = [ticket.ask for ticket in page.running.engine.tickets]
    assert len(asks) == 2
    for ask in asks:
        assert ask.messages[-1]["content"] == 'What\'s "tea" 茶 🍵 $HOME \\ `x`?\nSay.'
        assert ask.pins == {"brevity": 0.9}


def test_copying(visit: Visit) -> None:
    page = visit(speaking("**Tea**."))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    say(page)
    finished(page).get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "**Tea**."


@pytest.mark.parametrize(("dark", "width"), [(False, 1600), (True, 380)])
def test_axe_finds_nothing(visit: Visit, dark: bool, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = visit(speaking("## Tea\n\n`x` is\n\n    a drink\n\n|a|\n|-|\n|b|"), dark=dark, width=width)
    for step in ("before", "after"):
        if step == "after":
            page.get_by_label("Compare").check()
            say(page)
            finished(page, 2)
            page.get_by_text("This request as code").click()
            page.get_by_text("Settings").click()
            page.get_by_text("As a table").click()
        found = axe.Axe().run(page).response["violations"]
        assert [(each["id"], [node["target"] for node in each["nodes"]][:3]) for each in found] == []


def test_the_page_never_scrolls_sideways(visit: Visit) -> None:
    long = "a" * 300
    page = visit(FakeEngine((f"{long}\n\n```\n{long}\n```\n\n|{long}|b|\n|-|-|\n|c|{long}|",)), width=1600)
    page.get_by_label("Compare").check()
    say(page, long)
    finished(page, 2)
    page.get_by_text("This request as code").click()
    for width in (1600, 900, 380, 320):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_message_field_is_at_the_bottom_of_every_screen(visit: Visit) -> None:
    page = visit(speaking("Tea is a drink.\n\n" * 60))
    for width in (1600, 900, 380):
        page.set_viewport_size({"width": width, "height": 800})
        for _ in range(2):
            box = page.locator("#composer").bounding_box()
            assert box["y"] + box["height"] == pytest.approx(800, abs=2)
            if page.locator(".turn").count() == 0:
                say(page)
                finished(page)


def test_the_theme_is_kept_and_nothing_else(visit: Visit) -> None:
    page = visit(speaking("Tea."))
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_label("Theme").select_option("dark")
    dark = page.evaluate(background)
    assert light != dark
    say(page)
    finished(page)
    page.reload()
    page.locator("#send:enabled").wait_for()
    assert page.evaluate(background) == dark
    assert page.evaluate("JSON.stringify(localStorage)") == '{"paretune-theme":"dark"}'
    assert page.locator(".turn").count() == 0  # the conversation was in memory alone
    page.get_by_label("Theme").select_option("system")
    assert page.evaluate(background) == light and page.evaluate("localStorage.length") == 0


def test_an_interval_that_is_not_known(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.fake_engine.SENSED", Sensed(SENSED.profile, None))
    page = visit(speaking("Tea."))
    say(page)
    finished(page)
    assert page.locator(".bars p").first.inner_text() == "sensed 0.75 · used 0.75 · obtained 0.99"
    assert page.locator(".bars .whisker").count() == 0


def test_the_whole_way_with_a_policy(visit: Visit, start: Callable[..., Running], tiny_qwen: Any) -> None:
    from paretune.server.engine import BatchEngine, EngineLimits
    from paretune.server.served import Served
    from server.engine.listening import make

    policy = make(tiny_qwen)
    served = Served.of(policy, "tiny")
    page = visit(server=start(BatchEngine(policy, EngineLimits(max_batch=4)), served=served))
    page.get_by_text("Settings").click()
    page.get_by_label("Longest answer").fill("24")
    page.get_by_role("slider", name="cheer").fill("0.25")
    say(page, "Why is the sky blue?")
    answer = page.locator(".answer")
    page.locator(".answer[aria-busy=false]").wait_for()
    sensed = policy.predict(["Why is the sky blue?"])[0].profile
    text = answer.locator(".bars").inner_text()
    assert f"sensed {sensed['brevity']:.2f}" in text and "used 0.25" in text and "obtained: not scored" in text
    assert answer.locator(".badge").count() == 1
    page.get_by_label("Compare").check()
    say(page, "Tell me a joke.")
    page.locator(".answer[aria-busy=false]").nth(2).wait_for()
    assert page.locator(".note.wrong").count() == 0
