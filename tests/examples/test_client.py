"""`examples/client.py` against a server over the scripted engine."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.conftest import Running, Starter

EXAMPLE = Path(__file__).parents[2] / "examples" / "client.py"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    """A server behind a key."""
    starter = Starter()
    yield starter(keys=("sesame",))
    starter.stop()


class Client:
    """The program in this process: its status, and what it printed."""

    def __init__(self, tea: Running, patch: pytest.MonkeyPatch, printed: pytest.CaptureFixture[str]) -> None:
        self.tea, self._patch, self._printed = tea, patch, printed

    def __call__(self, *arguments: str, key: str = "sesame") -> tuple[int, str, str]:
        """(status, stdout, stderr) of one run."""
        self._patch.setattr(sys, "argv", [str(EXAMPLE), "What is tea?", "--url", self.tea.url, *arguments])
        self._patch.setenv("PARETUNE_API_KEY", key)
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(EXAMPLE), run_name="__main__")
        told = self._printed.readouterr()
        return int(end.value.code or 0), told.out, told.err


@pytest.fixture
def run(guarded: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Client:
    """Runs the program against the server."""
    return Client(guarded, monkeypatch, capsys)


def test_two_profiles_are_compared(run: Client) -> None:
    status, out, err = run("--pin", "cheer=0.9", "--against", "cheer=0.1", "--max-tokens", "20", "--seed", "5")
    # "Tea is a drink." has four words, and the scale of brevity is from -100 words to none
    assert (status, out) == (
        0,
        "sensed\n"
        "  brevity      0.75   80% between 0.60 and 0.90\n"
        "  cheer        0.50   80% between 0.25 and 0.75\n"
        "\npinned: cheer 0.9\n"
        "  brevity      0.75   obtained 0.96\n"
        "  cheer        0.90\n"
        "  Tea is a drink.\n"
        "\npinned: cheer 0.1\n"
        "  brevity      0.75   obtained 0.96\n"
        "  cheer        0.10\n"
        "  Tea is a drink.\n",
    ), err
    first, second = (ticket.ask for ticket in run.tea.engine.tickets[-2:])
    assert first.pins == {"cheer": 0.9} and second.pins == {"cheer": 0.1}
    assert first.seed == second.seed == 5 and first.temperature == 0 and first.max_new_tokens == 20


def test_without_a_second_profile_it_is_the_sensed_one(run: Client) -> None:
    _, out, _ = run("--pin", "brevity=0.2")
    assert "pinned: brevity 0.2\n  brevity      0.20" in out
    assert "as sensed\n  brevity      0.75" in out


@pytest.mark.parametrize(
    ("arguments", "key", "said"),
    [
        (("--pin", "cheer"), "sesame", "a pin is written NAME=VALUE, found 'cheer'"),
        ((), "sesame", "nothing to compare"),
        (("--pin", "taste=1"), "sesame", "taste"),
        (("--pin", "cheer=1"), "wrong", "an API key is not one of this server's"),
        (("--pin", "cheer=1", "--url", "http://127.0.0.1:1"), "sesame", "no server at http://127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_said_in_words(run: Client, arguments: tuple[str, ...], key: str, said: str) -> None:
    status, out, err = run(*arguments, key=key)
    assert status == 2 and said in err and not out
