"""The guide says what the program says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/*.md")])


def test_the_page_of_the_command_line_is_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "docs" / "make_cli.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    missing = [link for link in links if link and not (page.parent / link).exists()]
    named = re.findall(r"`((?:src|tests|docs|benchmarks|examples)/[\w./-]+)`", text)
    missing += [path for path in named if "NAME" not in path and not (ROOT / path).exists()]
    assert not missing


def test_the_page_of_objectives_lists_what_there_is() -> None:
    from paretune.rewards import list_rewards

    text = (ROOT / "docs" / "objectives.md").read_text(encoding="utf-8")
    assert [spec for spec, _ in list_rewards() if spec.partition("[")[0].partition("#")[0] not in text] == []


def test_every_verb_in_the_docs_exists() -> None:
    from paretune.cli.app import app

    verbs = {command.callback.__name__ for command in app.registered_commands if command.callback}
    verbs |= {str(group.name) for group in app.registered_groups}
    for page in PAGES:
        used = re.findall(r"^\s*(?:\$ )?paretune ([a-z]+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert set(used) <= verbs, page
