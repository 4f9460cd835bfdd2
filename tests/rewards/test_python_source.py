"""The hash of a Python reward's source follows the modules of the user's own that it imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from paretune.rewards.python_source import source_digest

FILES = {
    "plain.py": "import helper\nfrom words.lists import polite\n",
    "helper.py": "import deep\nVALUE = 1\n",
    "deep.py": "import helper\n",
    "words/__init__.py": "",
    "words/lists.py": "from . import more\nfrom .sub.other import X\npolite = []\n",
    "words/more.py": "A = 1\n",
    "words/sub/__init__.py": "from .. import above\n",
    "words/sub/other.py": "X = 1\n",
    "words/above.py": "B = 1\n",
    "stranger.py": "C = 1\n",
    "later.py": "def f():\n    import helper\n",
    "broken.py": "def (\n",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with modules, which is the current one."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "changed", "seen"),
    [
        ("plain", "plain.py", True),
        ("plain", "helper.py", True),
        ("plain", "deep.py", True),
        ("plain", "words/__init__.py", True),
        ("plain", "words/lists.py", True),
        ("plain", "words/more.py", True),
        ("plain", "words/sub/other.py", True),
        ("plain", "words/above.py", True),
        ("plain", "stranger.py", False),
        ("later", "helper.py", True),
        ("words", "words/__init__.py", True),
        ("words", "words/more.py", False),
        ("words.lists", "words/more.py", True),
        ("words.sub", "words/above.py", True),
        ("broken", "broken.py", True),
    ],
)
def test_a_change_is_seen_where_scores_may_depend_on_it(here: Path, module: str, changed: str, seen: bool) -> None:
    before = source_digest(module)
    assert before and before == source_digest(module)
    with (here / changed).open("a") as file:
        file.write("# changed\n")
    assert (source_digest(module) != before) is seen


def test_a_module_that_is_not_there_has_no_source(here: Path) -> None:
    assert source_digest("nowhere.at.all") == "" and source_digest("nowhere") == ""


def test_what_an_installed_module_imports_from_elsewhere_is_not_followed() -> None:
    import json

    assert source_digest("json") == source_digest("json") != ""
    assert Path(json.__file__).name == "__init__.py"  # a package: its own modules are followed
