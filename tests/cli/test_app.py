"""What all verbs promise: help, version, exit statuses, one message and no traceback."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import paretune as package
from paretune.errors import InputError

VERBS = [
    *("demo", "sample", "score", "train", "improve", "sense", "generate", "chat", "serve", "export"),
    *("evaluate", "benchmark", "front", "runs", "compare", "methods", "objectives"),
]
LASTING = ["chat", "serve"]
"""Verbs that go on until they are ended, and have no one result."""
GROUPS = ["data", "reward"]
"""Verbs that have verbs of their own, each of which has its own tests."""


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_and_takes_json(invoke: Any, verb: str) -> None:
    done = invoke(verb, "--help")
    assert done.exit_code == 0
    assert "--json" in done.stdout or verb in LASTING


def test_help_lists_every_verb(invoke: Any) -> None:
    listed = invoke("--help").stdout.partition("Commands:")[2]
    names = [line.split()[0] for line in listed.strip().splitlines()]
    assert [name for name in names if name not in GROUPS] == VERBS and set(GROUPS) <= set(names)


def test_version(paretune: Any) -> None:
    done = paretune("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"paretune {package.__version__}\n", "")


def test_the_installed_version_is_the_package_s() -> None:
    from importlib.metadata import version

    assert version("paretune") == package.__version__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["train"], "Missing argument 'METHOD'"),
        (["front", "x.csv", "--maximize", "a"], "No such option: --maximize"),
        (["sample", "x", "--model", "m", "--out", "o", "-n", "0"], "-n"),
        (["sample", "x", "--model", "m", "--out", "o", "-n", "two"], "-n"),
        (["sample", "x", "--model", "m", "--out", "o", "--temperature", "-1"], "--temperature"),
    ],
)
def test_usage_errors(refused: Any, tmp_path: Path, arguments: list[str], message: str) -> None:
    assert message in refused(*arguments, folder=tmp_path, usage=True)


def _front_raises(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("paretune.pareto.front", broken)


def test_input_errors_are_one_message(refused: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _front_raises(monkeypatch, InputError("is odd", file="rows.jsonl", line=3, field="prompt"))
    message = refused("front", "x.csv", "--maximise", "a", "--json", folder=tmp_path)
    assert message == "error: rows.jsonl, line 3, field 'prompt': is odd"


def test_control_characters_of_the_input_do_not_reach_the_terminal(
    refused: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _front_raises(monkeypatch, InputError("found '\x1b[2J'"))
    assert refused("front", "x.csv", folder=tmp_path) == "error: found '\N{REPLACEMENT CHARACTER}[2J'"


def test_what_the_disk_refuses_is_told(refused: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _front_raises(monkeypatch, PermissionError(errno.EACCES, "Permission denied", "/locked/x.csv"))
    assert refused("front", "x.csv", folder=tmp_path) == "error: /locked/x.csv: Permission denied"


def test_our_own_faults_keep_their_traceback(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _front_raises(monkeypatch, RuntimeError("a bug"))
    done = invoke("front", "x.csv")
    assert done.exit_code == 1 and isinstance(done.exception, RuntimeError)


def test_an_interrupt_is_one_line_and_130(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _front_raises(monkeypatch, KeyboardInterrupt())
    done = invoke("front", "x.csv")
    assert (done.exit_code, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_ctrl_c_in_a_real_process(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        # a test run in the background of a shell hands down an ignored SIGINT
        "import signal, time, pathlib, paretune.pareto as pareto\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"def slow(*_, **__):\n    pathlib.Path({str(ready)!r}).touch()\n    time.sleep(60)\n"
        "pareto.front = slow\n"
        "from paretune.cli.app import main\nmain()\n"
    )
    started = [sys.executable, "-c", code, "front", "x.csv", "--maximise", "a"]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 30
        while not ready.exists() and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


def test_a_bad_input_in_a_real_process(paretune: Any, tmp_path: Path) -> None:
    done = paretune("front", "missing.csv", "--maximise", "a", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: missing.csv: no such file\n"
    assert list(tmp_path.iterdir()) == []
