"""The judge as a reward, against a real endpoint on this machine: what it gives, keeps, counts and asks."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paretune.data.rows import Completion, Row
from paretune.errors import InputError
from paretune.rewards import parse_objective, score_rows
from paretune.rewards.base import CountingReward, DetailedReward
from paretune.rewards.judge.cache import FILE, Cache
from paretune.rewards.judge.prompt import Verdict
from rewards.judge_server import Asked, JudgeServer, error, judge_of, prompts, rest_of, says, verdict


def by_length(asked: Asked) -> Any:
    """A verdict that tells which answer it is about."""
    return verdict(len(asked.answer), f"it has {len(asked.answer)} letters")


TEXTS = ["x" * length for length in range(1, 11)]


def test_scores_come_in_the_order_of_the_answers(tmp_path: Path) -> None:
    def later_first(asked: Asked) -> Any:
        return verdict(len(asked.answer), after=0.005 * (10 - len(asked.answer)))

    with JudgeServer(later_first) as server:
        reward = judge_of(server, tmp_path)
        assert reward(prompts(10), TEXTS, {}) == [float(length) for length in range(1, 11)]
        assert 1 < server.most <= 8


def test_details_and_counts(tmp_path: Path) -> None:
    with JudgeServer(by_length) as server:
        reward = judge_of(server, tmp_path, price="2,10")
        assert isinstance(reward, DetailedReward) and isinstance(reward, CountingReward)
        scores, details = reward.detailed(prompts(3), ["a", "bb", "c" * 11], {})
        assert scores == [1.0, 2.0, None]
        assert details[:2] == [{"reason": "it has 1 letters"}, {"reason": "it has 2 letters"}]
        assert "not on the scale" in details[2]["failed"]
        counts = reward.take_counts()
        # the one off the scale was asked twice
        expected: dict[str, float] = {"requests": 4, "cached": 0, "retries": 0, "parse failures": 2, "failed": 1}
        expected |= {"prompt tokens": 400, "completion tokens": 80, "dollars": (400 * 2 + 80 * 10) / 1e6}
        assert counts == pytest.approx(expected)
        assert set(reward.take_counts().values()) == {0.0}
        assert "dollars" not in judge_of(server, tmp_path).take_counts()


def test_what_an_endpoint_is_sent(tmp_path: Path) -> None:
    with JudgeServer(by_length) as server:
        judge_of(server, tmp_path, temperature=0.5)(prompts(1), ["a"], {})
        judge_of(server, tmp_path, temperature="default")(prompts(1), ["a"], {})
        first, second = (asked.body for asked in server.asked)
        assert first["model"] == "m" and first["temperature"] == 0.5
        assert first["response_format"]["json_schema"]["strict"] is True
        assert "question 0" in first["messages"][0]["content"]
        assert "temperature" not in second


def test_the_same_answer_to_the_same_prompt_is_asked_about_once(tmp_path: Path) -> None:
    with JudgeServer(by_length) as server:
        [prompt, other] = prompts(2)
        reward = judge_of(server, "off")
        assert reward([prompt, other, prompt, prompt], ["aa", "aa", "aa", "b"], {}) == [2.0, 2.0, 2.0, 1.0]
        assert len(server.asked) == 3


def test_a_second_run_asks_nothing(tmp_path: Path) -> None:
    with JudgeServer(by_length) as server:
        first = judge_of(server, tmp_path).detailed(prompts(10), TEXTS, {})
        again = judge_of(server, tmp_path)
        assert again.detailed(prompts(10), TEXTS, {}) == first
        assert len(server.asked) == 10
        counts = again.take_counts()
        assert (counts["cached"], counts["requests"], counts["prompt tokens"]) == (10, 0, 0)


@pytest.mark.parametrize(
    "options",
    [{"rubric": "honesty"}, {"scale": "0-10"}, {"temperature": 1}, {"mode": "json"}, {"samples": 2}],
)
def test_what_a_verdict_depends_on_is_asked_anew(tmp_path: Path, options: dict[str, Any]) -> None:
    with JudgeServer(by_length) as server:
        judge_of(server, tmp_path)(prompts(1), ["a"], {})
        judge_of(server, tmp_path, **options)(prompts(1), ["a"], {})
        assert len(server.asked) == 2


def test_an_edited_rubric_file_is_asked_anew(tmp_path: Path) -> None:
    rubric = tmp_path / "rubric.txt"
    with JudgeServer(by_length) as server:
        for text in ("How green it is.", "How blue it is.", "How green it is."):
            rubric.write_text(text)
            judge_of(server, tmp_path, rubric=rubric)(prompts(1), ["a"], {})
        assert ["green" in asked.text for asked in server.asked] == [True, False]


def test_failures_are_not_kept(tmp_path: Path) -> None:
    with JudgeServer(lambda asked: error(500) if asked.number == 0 else verdict(5)) as server:
        assert judge_of(server, tmp_path, retries=0)(prompts(1), ["a"], {}) == [None]
        assert judge_of(server, tmp_path, retries=0)(prompts(1), ["a"], {}) == [5.0]


def test_without_a_cache_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARETUNE_CACHE", str(tmp_path / "default"))
    with JudgeServer(by_length) as server:
        for _ in range(2):
            judge_of(server, "off")(prompts(1), ["a"], {})
        assert list(tmp_path.iterdir()) == [] and len(server.asked) == 2
        spec = f"x=judge:m@{server.url}?rubric=helpfulness"
        rows = [Row(prompts(1)[0], (Completion("abc"), Completion("a")))]
        [row] = score_rows(rows, [parse_objective(spec)])
        assert [item.scores["x"] for item in row.completions] == [3.0, 1.0]
        assert (tmp_path / "default" / "judge" / FILE).is_file()


def test_the_mean_of_several_samples(tmp_path: Path) -> None:
    marks = [2, 3, 7, 99, 99]

    with JudgeServer(lambda asked: verdict(marks[asked.number], f"number {asked.number}")) as server:
        options = {"samples": 3, "temperature": 1, "concurrency": 1}
        assert judge_of(server, tmp_path, **options).detailed(prompts(1), ["a"], {}) == (
            [4.0],
            [{"reason": "number 0", "scores": [2.0, 3.0, 7.0]}],
        )
        assert len({asked.text for asked in server.asked}) == 1
        # a fourth sample asks one more, which can't be used: the mean is over those that can
        options["samples"] = 4
        scores, details = judge_of(server, tmp_path, **options).detailed(prompts(1), ["a"], {})
        assert scores == [4.0] and details[0]["scores"] == [2.0, 3.0, 7.0]
        assert len(server.asked) == 5


def test_a_schema_that_is_refused_is_tried_once(tmp_path: Path) -> None:
    def no_schema(asked: Asked) -> Any:
        return error(400, "response_format is not supported") if asked.form == "json_schema" else by_length(asked)

    with JudgeServer(no_schema) as server:
        assert judge_of(server, tmp_path)(prompts(10), TEXTS, {}) == [float(length) for length in range(1, 11)]
        assert [asked.form for asked in server.asked] == ["json_schema"] + ["json_object"] * 10
        judge_of(server, tmp_path, rubric="honesty")(prompts(1), ["a"], {})
        assert server.asked[-1].form == "json_object", "another objective at this endpoint knows it"
        assert len(server.asked) == 12


def test_plain_text_is_the_last_resort(tmp_path: Path) -> None:
    def text_only(asked: Asked) -> Any:
        if asked.form:
            return error(422, "unknown field")
        assert "score: number" in asked.text
        return says(f"A fine answer.\nscore: {len(asked.answer)}")

    with JudgeServer(text_only) as server:
        reward = judge_of(server, tmp_path)
        assert reward.detailed(prompts(2), ["a", "bb"], {}) == ([1.0, 2.0], [{"reason": "A fine answer."}] * 2)
        assert [asked.form for asked in server.asked] == ["json_schema", "json_object", "", ""]
        assert reward.take_counts()["requests"] == 4
        judge_of(server, "off", mode="text")(prompts(1), ["a"], {})
        assert [asked.form for asked in server.asked[4:]] == [""]


def test_a_request_that_is_refused_in_every_mode_teaches_nothing(tmp_path: Path) -> None:
    def not_too_long(asked: Asked) -> Any:
        return error(400, "the context is too long") if len(asked.answer) > 3 else by_length(asked)

    with JudgeServer(not_too_long) as server:
        reward = judge_of(server, tmp_path, concurrency=1)
        scores, details = reward.detailed(prompts(3), ["aaaa", "aa", "aaaaa"], {})
        assert scores == [None, 2.0, None] and "the context is too long" in details[0]["failed"]
        forms = [asked.form for asked in server.asked]
        assert forms == ["json_schema", "json_object", "", "json_schema", "json_schema"]


def test_a_judge_is_called_from_a_running_loop(tmp_path: Path) -> None:
    async def notebook(server: JudgeServer) -> list[float | None]:
        return judge_of(server, tmp_path)(prompts(2), ["a", "bb"], {})

    with JudgeServer(by_length) as server:
        assert asyncio.run(notebook(server)) == [1.0, 2.0]


def test_the_key_comes_from_the_environment_and_goes_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    monkeypatch.setenv("PARETUNE_JUDGE_API_KEY", "sk-secret")
    with JudgeServer(lambda asked: verdict(5, f"you sent {asked.headers['authorization']}")) as server:
        result = judge_of(server, tmp_path).detailed(prompts(1), ["a"], {})
        assert result == ([5.0], [{"reason": "you sent Bearer ***"}])
        monkeypatch.delenv("PARETUNE_JUDGE_API_KEY")
        judge_of(server, "off")(prompts(1), ["a"], {})
        monkeypatch.delenv("OPENAI_API_KEY")
        judge_of(server, "off")(prompts(1), ["a"], {})
        sent = [asked.headers["authorization"] for asked in server.asked]
        assert sent == ["Bearer sk-secret", "Bearer sk-other", "Bearer none"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]


@pytest.mark.parametrize("key", ["sk-se\ncret", "sk-sécret"])
def test_a_key_that_no_request_can_carry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with JudgeServer(by_length) as server, pytest.raises(InputError, match="the key in OPENAI_API_KEY") as raised:
        judge_of(server, tmp_path)
    assert "sk-" not in str(raised.value)


def test_a_cache_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("not a database " * 100)
    with JudgeServer(by_length) as server:
        with pytest.raises(InputError, match=r"verdicts\.sqlite.*cache=off"):
            judge_of(server, tmp_path)
        with pytest.raises(InputError, match="is not a folder"):
            judge_of(server, tmp_path / FILE)


def test_the_first_verdict_under_a_key_stays(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("k", Verdict(1.0, "first", 3, 4))
    cache.put("k", Verdict(2.0, "second"))
    many = [f"k{at}" for at in range(1200)]
    for key in many:
        cache.put(key, Verdict(5.0, key))
    assert Cache(tmp_path).get(["k", "none"]) == {"k": Verdict(1.0, "first", 3, 4)}
    assert len(cache.get([*many, "none"])) == 1200
    [mode] = sqlite3.connect(tmp_path / FILE).execute("PRAGMA journal_mode").fetchone()
    assert mode == "wal", "who reads does not wait for who writes"


def test_a_verdict_is_kept_with_all_the_tokens_it_took(tmp_path: Path) -> None:
    with JudgeServer(lambda asked: verdict(99 if asked.number == 0 else 7)) as server:
        reward = judge_of(server, tmp_path)
        reward(prompts(1), ["a"], {})
        [question] = reward._questions(prompts(1)[0], "a")
        assert Cache(tmp_path).get([question.key]) == {question.key: Verdict(7.0, "because", 200, 40)}


WRITER = """
import sys
from pathlib import Path
from paretune.rewards.judge.cache import Cache
from paretune.rewards.judge.prompt import Verdict
print("ready", flush=True)
sys.stdin.readline()
cache = Cache(Path(sys.argv[1]))
for at in range(200):
    cache.put(f"{sys.argv[2]} {at}", Verdict(at, "r"))
    assert cache.get([f"{sys.argv[2]} {at}"])
"""


def test_two_processes_share_a_cache(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, tmp_path, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in "ab"
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    for writer in writers:  # both make the file, at the same moment
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    assert len(Cache(tmp_path).get([f"{name} {at}" for name in "ab" for at in range(200)])) == 400


RUN = """
import json, sys
from paretune.rewards.judge import parse_spec
from paretune.rewards.judge.reward import JudgeReward
prompts, texts = json.loads(sys.argv[2])
JudgeReward(parse_spec(sys.argv[1]))(prompts, texts, {})
"""


def test_verdicts_survive_a_kill(tmp_path: Path) -> None:
    """Six are given, the seventh is under way when the process is killed: the next run asks about four."""
    running: list[subprocess.Popen[bytes]] = []

    def kill_at_seven(asked: Asked) -> Any:
        if len(server.asked) == 7:
            running[0].kill()
        return by_length(asked)

    with JudgeServer(kill_at_seven) as server:
        rest = rest_of(server, tmp_path, concurrency=1)
        running.append(subprocess.Popen([sys.executable, "-c", RUN, rest, json.dumps([prompts(10), TEXTS])]))
        assert running[0].wait(timeout=60) == -9
        again = judge_of(server, tmp_path)
        assert again(prompts(10), TEXTS, {}) == [float(length) for length in range(1, 11)]
        assert again.take_counts()["cached"] == 6 and len(server.asked) == 11
