"""The rooms of the house import one way: down. Imports inside functions count too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import paretune

ROOT = Path(paretune.__file__).parent
GROUND = {"bootstrap", "errors", "files", "pretrained", "progress", "template", "unpack", "yaml_text"}
"""What every room may use."""
FLOORS = [
    *("profile", "tracking", "data", "rewards", "policy", "training", "reward_model"),
    *("methods", "evaluation", "harness", "demo", "server", "cli"),
]
"""From the ground up; a room may skip floors downward, never upward."""
ABOVE_ALL = {"__init__", "__main__"}
"""The package's front door, which leads (lazily) to every room."""


def room_of(path: Path) -> str:
    """profile.py -> profile, data/read.py -> data."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def may_import(room: str, other: str) -> bool:
    """Is the import of `other` from `room` one of the allowed ones?"""
    if room in ABOVE_ALL or room == other or (other in GROUND and room not in GROUND):
        return True
    if room in GROUND:
        return other == "errors"
    if other == "pareto":
        return room in FLOORS and FLOORS.index(room) > 0
    if room == "pareto":
        return other == "profile"
    if room in ("evaluation", "harness") and other == "methods":
        return False  # a policy is judged by what it does, not by how it was made
    return other in FLOORS and FLOORS.index(other) < FLOORS.index(room)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, room) of every import of ours in a file, at whatever depth."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
            if node.module == "paretune":
                names = [f"paretune.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [resolve(path, node)]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "paretune" and rest != "__version__":
                yield node.lineno, rest.split(".")[0] or "__init__"


def resolve(path: Path, node: ast.ImportFrom) -> str:
    """A relative import's absolute name."""
    package = ["paretune", *path.relative_to(ROOT).parts[:-1]]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, node.module or node.names[0].name])


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_imports_run_one_way(path: Path) -> None:
    room = room_of(path)
    assert room in {*FLOORS, *GROUND, *ABOVE_ALL, "pareto"}, f"'{room}' has no floor in this test"
    wrong = [f"line {line}: {room} imports {other}" for line, other in imports(path) if not may_import(room, other)]
    assert not wrong, wrong


def test_the_rule_is_strict() -> None:
    assert may_import("policy", "data") and not may_import("data", "policy")
    assert may_import("evaluation", "policy") and not may_import("evaluation", "methods")
    assert may_import("harness", "policy") and not may_import("harness", "methods")
    assert may_import("pareto", "profile") and not may_import("pareto", "data")
    assert may_import("cli", "methods") and not may_import("methods", "cli")
    assert not may_import("errors", "files") and may_import("files", "errors")
    assert not may_import("data", "__init__")


def test_imports_in_functions_and_relative_ones_are_seen(tmp_path: Path) -> None:
    text = (
        "def f() -> None:\n    from paretune.cli.app import main\n\nfrom ..methods import train\nfrom . import read\n"
    )
    path = ROOT / "data" / "made_up.py"
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.level]
    assert sorted(resolve(path, node) for node in nodes) == ["paretune.data.read", "paretune.methods"]
    sample = tmp_path / "sample.py"
    sample.write_text("def f() -> None:\n    from paretune.cli.app import main\n    import paretune.data.read\n")
    assert sorted(imports(sample)) == [(2, "cli"), (3, "data")]


HEAVY = ("torch", "transformers", "datasets", "peft", "matplotlib", "plotly", "numpy", "moocore")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom paretune.cli.app import app\n"
        "try:\n    app(['train', '--help'])\nexcept SystemExit:\n    pass\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_every_public_name_has_a_home() -> None:
    for name in paretune.__all__:
        assert getattr(paretune, name) is not None
    assert set(paretune.__all__) <= set(dir(paretune))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = paretune.nothing
