"""Chromium for the tests of pages: one browser a file, a fresh page a test that notes what goes wrong in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluation import made_up
from paretune.evaluation.report import render

_FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium of the system; the tests are skipped where there is none, or no Playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if found is None:
        pytest.skip("no Chromium on the PATH")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=_FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of four policies, of one, and of four whose every text is hostile."""
    folder = tmp_path_factory.mktemp("reports")
    names = tuple(made_up.POLICIES)
    bad = (made_up.HOSTILE, "dpo", "ric", "modpo")
    pages = {
        "several": render(made_up.metrics(), made_up.samples()),
        "one": render(made_up.metrics(names[:1]), made_up.samples(names[:1])),
        "hostile": render(made_up.metrics(bad, made_up.HOSTILE), made_up.samples(bad, made_up.HOSTILE)),
    }
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in pages}


@pytest.fixture
def visit(browser: Any, reports: dict[str, Path]) -> Iterator[Callable[..., Any]]:
    """Open a report in a page of its own: `visit("one", width=380, dark=True)`. Afterwards none may have complained,
    and none may have asked for anything but itself."""
    contexts, wrong, asked = [], [], []

    def opened(name: str, *, width: int = 1200, dark: bool = False, scripts: bool = True) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(reports[name].as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []
    assert all(url.startswith("file://") and url.endswith(".html") for url in asked)
    assert len(asked) == len(contexts)
