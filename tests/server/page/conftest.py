"""Chromium on the page of a real server: over scripted engines for odd states, and over a tiny policy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from browser.conftest import browser  # noqa: F401  (a fixture)
from paretune.profile import Objective, Scale
from paretune.server.served import Served
from server.conftest import SERVED, Running
from server.fake_engine import FakeEngine

PHRASES = ("Say much.", "Say some.", "Say a sentence.", "Say few words.", "Say a word.")
FRONT = {
    "objectives": ["brevity", "cheer"],
    "points": [
        {"name": "sensed", "values": {"brevity": 0.55, "cheer": 0.6}, "on_front": True},
        {"name": "mean", "values": {"brevity": 0.45, "cheer": 0.5}, "on_front": False},
        {"name": "brevity=1", "values": {"brevity": 0.8, "cheer": 0.3}, "on_front": True},
    ],
}
TEA = replace(
    SERVED,
    objectives=(
        Objective(
            "brevity", "lexical:brevity", scale=Scale("fixed", low=-100, high=0), scale_kind="fixed", phrases=PHRASES
        ),
        SERVED.objectives[1],
    ),
    front=FRONT,
)


def speaking(text: str, pace: float = 0.0) -> FakeEngine:
    """An engine that says `text`, a word a token."""
    return FakeEngine(tuple(re.findall(r"\s*\S+", text)), pace)


@pytest.fixture
def visit(browser: Any, start: Callable[..., Running]) -> Iterator[Callable[..., Any]]:  # noqa: F811
    """Open the page of a server: `visit(engine, width=380, dark=True)`, or of one that runs: `visit(server=running)`.

    Afterwards no page may have complained (a refused request aside) or have asked anybody but its server, unless it is
    `provoked`.
    """
    contexts, wrong, asked = [], [], []
    urls: set[str] = set()

    def opened(
        engine: Any = None,
        *,
        server: Running | None = None,
        served: Served = TEA,
        width: int = 1300,
        dark: bool = False,
        ready: bool = True,
        provoked: bool = False,
        **settings: Any,
    ) -> Any:
        running = server or start(engine, served=served, **settings)
        urls.add(running.url)
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        if not provoked:
            page.on("console", lambda message: wrong.append(message.text))
            page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(running.url)
        page.running = running
        if ready:
            page.locator("#send:enabled").wait_for()
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [each for each in wrong if not each.startswith("Failed to load resource")] == []
    assert all(any(each.startswith(url) for url in urls) for each in asked), asked


def say(page: Any, text: str = "What is tea?") -> None:
    """Type a message, and send it by the Enter key."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def finished(page: Any, count: int = 1) -> Any:
    """The answers, once `count` of them are finished and rendered."""
    page.locator(".answer .rendered").nth(count - 1).wait_for()
    return page.locator(".answer")
