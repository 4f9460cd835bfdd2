"""`paretune chat` from a pipe: what is said, shown, commanded and refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from paretune.cli.app import app
from paretune.cli.output import printable
from paretune.policy import Policy, Renderer, load_policy, save_policy
from paretune.policy.backbone import hidden_size, load_backbone
from paretune.policy.head import HeadConfig, SensingHead
from paretune.profile import Objective


def save_tiny(model: Path, folder: Path, *, head: bool = True) -> Path:
    """A policy without an adapter, whose head is random and calibrated."""
    causal, tokenizer = load_backbone(str(model), dtype="float32")
    objectives = [Objective("brevity", "column:brevity"), Objective("cheer", "column:cheer")]
    torch.manual_seed(0)
    sensing = SensingHead(hidden_size(causal), 2, HeadConfig(width=8, depth=1)).eval()
    raw_NP, targets_NM = torch.randn(60, 2), torch.rand(60, 2)
    sensing.calibrate(raw_NP, raw_NP, targets_NM, targets_NM)
    policy = Policy(
        causal=causal,
        tokenizer=tokenizer,
        renderer=Renderer(tokenizer, objectives),
        objectives=objectives,
        method="sga" if head else "sft",
        base=str(model),
        head=sensing if head else None,
        metadata={"dtype": "float32"},
    )
    save_policy(policy, folder, metrics={})
    return folder


@pytest.fixture(scope="module")
def policy_folder(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tiny_llama, tmp_path_factory.mktemp("chat") / "policy")


@pytest.fixture
def talk(policy_folder: Path) -> Callable[..., Any]:
    """Pipe lines into the verb."""

    def run(*lines: str, options: tuple[str, ...] = (), policy: Path = policy_folder) -> Any:
        arguments = ["chat", str(policy), "--max-new-tokens", "12", *options]
        done = CliRunner().invoke(app, arguments, input="".join(f"{line}\n" for line in lines))
        assert done.exit_code == 0, (done.output, done.exception)
        return done

    return run


def test_an_answer_is_the_policys_and_what_was_sensed_stands_before_it(
    talk: Callable[..., Any], policy_folder: Path
) -> None:
    policy = load_policy(policy_folder)
    answer = policy.generate(["Why is the sky blue?"], max_new_tokens=12)[0]
    sensed = policy.predict(["Why is the sky blue?"])[0]
    assert sensed.interval is not None
    out = talk("Why is the sky blue?").stdout
    head, _, said = out.partition("\n  cheer")
    assert head.startswith("senses:\n  brevity")
    low, high = sensed.interval["brevity"]
    assert f"{sensed.profile['brevity']:.2f} [{low:.2f}, {high:.2f}]" in head
    assert said.partition("\n")[2].rstrip("\n") == printable(answer.text).rstrip("\n")


def test_a_conversation_goes_on(talk: Callable[..., Any], policy_folder: Path, tmp_path: Path) -> None:
    talk("What is tea?", "And coffee?", f"/save {tmp_path / 'said.json'}", options=("--system", "You are a poet."))
    said = json.loads((tmp_path / "said.json").read_text())
    assert [turn["role"] for turn in said["messages"]] == ["user", "assistant"] * 2
    policy = load_policy(policy_folder)
    first, second = said["messages"][1], said["messages"][3]
    system = {"role": "system", "content": "You are a poet."}
    question = {"role": "user", "content": "What is tea?"}
    answer = policy.generate([[system, question]], max_new_tokens=12)[0]
    assert first["content"] == answer.text
    again = [
        system,
        question,
        {"role": "assistant", "content": answer.text},
        {"role": "user", "content": "And coffee?"},
    ]
    assert second["content"] == policy.generate([again], max_new_tokens=12)[0].text


def test_pins_are_asked_for_until_they_are_released(talk: Callable[..., Any], tmp_path: Path) -> None:
    done = talk(
        "/pin brevity=0.9 cheer=0.1",
        "Hi",
        "/profile",
        "/unpin cheer",
        "/unpin",
        "Hi",
        f"/save {tmp_path / 'said.json'}",
    )
    lines = done.stdout.splitlines()
    assert "pinned: brevity=0.9, cheer=0.1" in lines and "pinned: brevity=0.9" in lines and "pinned: nothing" in lines
    assert sum(line.endswith("0.90  pinned") for line in lines) == 2  # before the answer, and at /profile
    told = [turn["paretune"] for turn in json.loads((tmp_path / "said.json").read_text())["messages"][1::2]]
    assert told[0]["used"] == {"brevity": 0.9, "cheer": 0.1}
    assert told[1]["used"] == told[1]["sensed"] != told[0]["used"]


def test_sense_shows_what_the_verb_shows(talk: Callable[..., Any], policy_folder: Path) -> None:
    shown = talk("/pin brevity=0.9", "/sense Tell me a joke.").stdout.splitlines()[2:]
    verb = CliRunner().invoke(app, ["sense", str(policy_folder), "--prompt", "Tell me a joke.", "--pin", "brevity=0.9"])
    assert [line.strip() for line in shown] == verb.stdout.splitlines()


def test_retry_draws_anew_in_the_place_of_the_last_answer(talk: Callable[..., Any], tmp_path: Path) -> None:
    talk("/temperature 2", "Hi", f"/save {tmp_path / 'a.json'}", "/retry", f"/save {tmp_path / 'b.json'}")
    first, again = (json.loads((tmp_path / name).read_text())["messages"] for name in ("a.json", "b.json"))
    assert len(first) == len(again) == 2 and first[0] == again[0]
    assert first[1]["content"] != again[1]["content"]


def test_what_is_wrong_is_told_and_the_chat_goes_on(talk: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    long = "tea " * 600
    done = talk(
        "/pni brevity=1",
        "/pin brevty=1",
        "/pin brevity=7",
        "/pin",
        "/unpin cheer",
        "/weights brevity=1",
        "/temperature hot",
        "/temperature -1",
        "/sense",
        "/retry",
        "/profile",
        f"/save {tmp_path / 'there'}",
        f"/save {tmp_path / 'there' / 'inside'}",
        long,
        "",
        "Hi",
        f"/save {tmp_path / 'said.json'}",
        "/quit",
        "never read",
    )
    errors = done.stderr.splitlines()
    for words, line in zip(
        (
            "unknown command '/pni'. Did you mean 'pin'?",
            "unknown objective 'brevty'. Did you mean 'brevity'?",
            "[0, 1]",
            "/pin name=value",
            "'cheer' is not pinned",
            "takes no preference weights",
            "found 'hot'",
            "temperature must be 0 or more",
            "/sense TEXT",
            "no message to answer again",
            "nothing was answered yet",
            "exists already",
            "there",
            "context is 512",
        ),
        [line for line in errors if line.startswith("error: ")],
        strict=True,
    ):
        assert words in line
    said = json.loads((tmp_path / "said.json").read_text())["messages"]
    assert [turn["content"] for turn in said if turn["role"] == "user"] == ["Hi"]
    assert (tmp_path / "there").read_text() == "mine"


def test_names_that_no_file_can_have_end_nothing(talk: Callable[..., Any], tmp_path: Path) -> None:
    name = str(tmp_path / "a\0b")
    done = talk(f"/save {name}", "/save ~nobody-has-this-name/a", f"/save {'x' * 300}", "/pin\tcheer=1")
    assert [line.partition("cannot be written")[1] for line in done.stderr.splitlines()] == ["cannot be written"] * 3
    assert "pinned: cheer=1" in done.stdout  # a tab ends a command's name too
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "words"),
    [("--pin", "was not trained on profiles"), ("--weights", "takes no preference weights")],
)
def test_what_a_policy_cannot_be_asked_for_is_refused_at_once(
    tiny_llama: Path, tmp_path: Path, option: str, words: str
) -> None:
    folder = save_tiny(tiny_llama, tmp_path / "sft", head=False)
    done = CliRunner().invoke(app, ["chat", str(folder), option, "cheer=1"], input="Hi\n")
    assert (done.exit_code, done.stdout) == (2, "") and words in done.stderr


def test_an_interrupted_command_ends_alone_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from paretune.cli import chat as verb

    class Interrupted:
        def hear(self, line: str) -> bool:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    assert verb._heard(Interrupted(), "/sense Hi") is True  # type: ignore[arg-type]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    with pytest.raises(KeyboardInterrupt):
        verb._heard(Interrupted(), "/sense Hi")  # type: ignore[arg-type]


def test_a_line_typed_in_another_encoding_is_left_out(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from paretune.cli import chat as verb

    typed = iter([UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "invalid"), "Hi", EOFError()])

    def read(prompt: str) -> str:
        each = next(typed)
        if isinstance(each, Exception):
            raise each
        return each

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", read)
    assert list(verb.lines()) == ["Hi"]
    assert "not UTF-8, and is left out" in capsys.readouterr().err


def test_slashes_help_clear_and_bytes_that_are_no_text(
    talk: Callable[..., Any], policy_folder: Path, tmp_path: Path
) -> None:
    done = talk("//etc is a folder", f"/save {tmp_path / 'a.json'}", "/clear", f"/save {tmp_path / 'b.json'}", "/help")
    assert json.loads((tmp_path / "a.json").read_text())["messages"][0]["content"] == "/etc is a folder"
    assert json.loads((tmp_path / "b.json").read_text())["messages"] == []
    for name in (
        "/pin name=value ...",
        "/unpin",
        "/weights",
        "/sense TEXT",
        "/system",
        "/retry",
        "/save FILE",
        "/quit",
    ):
        assert name in done.stdout
    raw = CliRunner().invoke(app, ["chat", str(policy_folder)], input=b"caf\xe9\n/pin cheer=1\n")
    assert raw.exit_code == 0
    assert "line 1 is not UTF-8" in raw.stderr and "pinned: cheer=1" in raw.stdout


def test_a_policy_without_a_head_answers_and_senses_nothing(
    talk: Callable[..., Any], tiny_llama: Path, tmp_path: Path
) -> None:
    done = talk("Hi", "/sense Hi", "/pin cheer=1", policy=save_tiny(tiny_llama, tmp_path / "sft", head=False))
    assert "senses:" not in done.stdout and done.stdout.strip()
    assert "has no sensing head" in done.stderr and "was not trained on profiles" in done.stderr


def test_bad_options_are_refused_before_the_model_is_loaded(policy_folder: Path) -> None:
    for words, options in (
        ("unknown objective 'brevty'", ["--pin", "brevty=1"]),
        ("weights must sum to 1", ["--weights", "brevity=0.1"]),
        ("temperature must be 0 or more", ["--temperature", "-1"]),
    ):
        done = CliRunner().invoke(app, ["chat", str(policy_folder), *options], input="Hi\n")
        assert done.exit_code == 2 and words in done.stderr and done.stdout == ""
    done = CliRunner().invoke(app, ["chat", str(policy_folder / "none")], input="Hi\n")
    assert done.exit_code == 2 and "no such policy folder" in done.stderr


def test_interrupt_ends_the_answer_and_not_the_chat(policy_folder: Path, tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "paretune", "chat", str(policy_folder), "--max-new-tokens", "400"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    chat = subprocess.Popen(
        [*arguments, "--temperature", "5", "--seed", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert chat.stdin is not None and chat.stdout is not None
    chat.stdin.write(b"Hi\n")
    chat.stdin.flush()
    assert chat.stdout.readline() == b"senses:\n"
    chat.send_signal(signal.SIGINT)
    _, errors = chat.communicate(f"/save {tmp_path / 'said.json'}\n".encode(), timeout=120)
    assert chat.returncode == 0, errors
    assert b"Traceback" not in errors
    said = json.loads((tmp_path / "said.json").read_text())["messages"]
    assert [turn.get("finish_reason") for turn in said] in ([], [None, "cancelled"])  # nothing was written yet, or some
