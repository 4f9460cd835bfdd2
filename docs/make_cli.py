"""Write docs/cli.md from what `paretune VERB --help` prints; `--check` says whether the file is current."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("cli.md")
HEAD = """# The command line

Every verb prints its result on stdout, for people or, with `--json`, as one JSON object; progress and errors go to
stderr.
Exit status: 0 done, 2 bad input (one message, nothing written), 130 interrupted. This page is made by `make docs`.
"""


def help_of(*arguments: str) -> str:
    """What `paretune ARGUMENTS --help` prints on a terminal of 100 columns."""
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "paretune", *arguments, "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def verbs_in(text: str) -> list[str]:
    """The commands that a help text lists."""
    listed = text.partition("Commands:\n")[2].splitlines()
    return [line.split()[0] for line in listed if line.startswith("  ") and not line.startswith("   ")]


def sections(*arguments: str) -> list[str]:
    """A section for every verb below `arguments`; a group of verbs is followed by its own."""
    parts = []
    for verb in verbs_in(help_of(*arguments)):
        path = (*arguments, verb)
        parts += [f"## paretune {' '.join(path)}\n\n```\n{help_of(*path)}\n```\n", *sections(*path)]
    return parts


def page() -> str:
    """The page's text."""
    return "\n".join([HEAD, f"```\n{help_of()}\n```\n", *sections()])


def main() -> None:
    """Write, or check."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        raise SystemExit("docs/cli.md is not what --help says; run `make docs`")


if __name__ == "__main__":
    main()
