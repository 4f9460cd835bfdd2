"""benchmarks/serving.py starts a real server, gives every arm the same work, and reports what it counted."""

from __future__ import annotations

import json
import sys

import pytest


@pytest.fixture
def serving(benchmark):
    return benchmark("serving")


@pytest.fixture
def run(serving, benchmark, monkeypatch, capsys):
    """Runs the benchmark; gives what it printed."""

    def go(*arguments):
        monkeypatch.setattr(sys, "argv", ["serving", *map(str, arguments)])
        monkeypatch.setattr(serving.signal, "signal", lambda *given: None)  # the test's process keeps its own
        benchmark("common").run(serving.main)
        return capsys.readouterr()

    return go


def test_figures_by_hand(serving):
    def arm(*rates):
        found = [serving.Answers(seconds=2.0, tokens=2 * rate) for rate in rates]
        found[0].add("a b c", 0, 10.0, [10.5, 10.6, 11.5])
        return found

    arms = {"guided, 1 clients": arm(10, 10), "guided, 4 clients": arm(20, 20), "guided, 16 clients": arm(30, 50)}
    arms |= {"plain, 16 clients": arm(33, 50), "Policy.generate": arm(15, 10)}
    told = serving.figures(arms)
    assert told["throughput_ratio_16_sequential"] == 4.0  # 3 and 5
    assert told["throughput_ratio_16_generate"] == 3.5  # 2 and 5
    assert told["time_ratio_guided_plain"] == 1.05  # 1.1 and 1
    assert told["throughput_ratio_transformers_serve"] is None
    assert told["arms"]["guided, 16 clients"]["tokens_per_second"] == 40
    assert told["arms"]["guided, 16 clients"]["first_token_p50"] == 0.5


def test_the_times_of_an_answer(serving):
    found = serving.Answers(seconds=1.0)
    found.add("one two three", 3, begun=5.0, moments=[5.5, 6.0, 7.5])
    found.add("", 0, begun=5.0, moments=[])
    found.add("one", 1, begun=5.0, moments=[6.0])
    assert found.tokens == 4 and found.first == [0.5, 1.0]
    assert found.gaps == [1.0]  # two seconds for the two tokens after the first
    ranked = [float(number) for number in range(1, 21)]
    assert (serving.quantile(ranked, 0.5), serving.quantile(ranked, 0.95), serving.quantile([], 0.5)) == (10, 19, None)


def test_prompts_do_not_repeat(serving, tiny_llama):
    from transformers import AutoTokenizer

    class Given:
        tokenizer = AutoTokenizer.from_pretrained(tiny_llama)

    asked = serving.questions(Given, 20, 24, "one")
    assert len(set(asked)) == 20 and serving.questions(Given, 20, 24, "one") == asked
    assert not set(asked) & set(serving.questions(Given, 20, 24, "two"))
    assert all(len(Given.tokenizer(each, add_special_tokens=False)["input_ids"]) <= 24 for each in asked)


@pytest.mark.slow
def test_a_run_on_the_tiny_model(run, tiny_llama):
    asked = ("--requests", 3, "--prompt", 16, "--new", 4, "--rounds", 1, "--theirs", "none", "--small", "--json")
    told = json.loads(run("--model", tiny_llama, "--dtype", "float32", *asked).out)
    assert (told["dtype"], told["requests"], told["new_tokens"]) == ("float32", 3, 4)
    assert told["throughput_ratio_transformers_serve"] is None and told["theirs_same_answer"] is None
    arms = told["arms"]
    assert arms.keys() == {
        "guided, 1 clients",
        "guided, 4 clients",
        "guided, 16 clients",
        "plain, 16 clients",
        "Policy.generate",
    }
    assert all(arm["tokens"] > 0 and arm["tokens_per_second"] > 0 for arm in arms.values())
    many, one = arms["guided, 16 clients"], arms["guided, 1 clients"]
    assert told["throughput_ratio_16_sequential"] == pytest.approx(
        many["tokens_per_second"] / one["tokens_per_second"], rel=0.02
    )
    assert many["first_token_p50"] > 0 and arms["Policy.generate"]["first_token_p50"] is None


def test_bad_input(run, capsys):
    for option in ("requests", "prompt", "new", "rounds", "threads"):
        with pytest.raises(SystemExit) as stopped:
            run(f"--{option}", 0)
        told = capsys.readouterr().err
        assert stopped.value.code == 2 and f"--{option} must be at least 1" in told


def test_a_server_that_does_not_start_says_why(serving, tmp_path):
    from paretune.errors import InputError

    command = [sys.executable, "-c", "print('no such luck'); raise SystemExit(3)"]
    with (
        pytest.raises(InputError, match="did not start: no such luck"),
        serving.serving(command, "none", 1, tmp_path / "log"),
    ):
        pass
