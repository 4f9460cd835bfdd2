"""The judge in trouble: what is tried again, what is given up and counted, what stops the run, and the limits kept."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from paretune.errors import InputError
from paretune.rewards.judge import parse_spec
from paretune.rewards.judge.reward import MAX_BACKOFF, JudgeReward
from rewards.judge_server import HANG, Asked, FakeClock, JudgeServer, Reply, error, judge_of, prompts, says, verdict

TEXTS = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff"]


def by_length(asked: Asked) -> Any:
    return verdict(len(asked.answer))


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_what_passes_is_tried_again(tmp_path: Path, status: int) -> None:
    with JudgeServer(lambda asked: error(status) if asked.number < 2 else by_length(asked)) as server:
        reward = judge_of(server, tmp_path)
        assert reward(prompts(1), ["aaa"], {}) == [3.0]
        counts = reward.take_counts()
        assert (counts["requests"], counts["retries"], counts["failed"]) == (3, 2, 0)


def test_a_reply_that_does_not_come_is_given_up_and_counted(tmp_path: Path) -> None:
    with JudgeServer(lambda asked: HANG if asked.answer == "bb" else by_length(asked)) as server:
        reward = judge_of(server, tmp_path, timeout=0.5, retries=1)
        scores, details = reward.detailed(prompts(6), TEXTS, {})
        assert scores == [1.0, None, 3.0, 4.0, 5.0, 6.0]
        assert details[1] == {"failed": "no reply within 0.5 s"}
        assert Counter(asked.answer for asked in server.asked)["bb"] == 2
        counts = reward.take_counts()
        assert (counts["requests"], counts["retries"], counts["failed"]) == (7, 1, 1)


def test_the_timeout_is_for_all_of_a_reply(tmp_path: Path) -> None:
    drip = Reply(verdict(5).body, drip=0.05)
    with JudgeServer(lambda asked: drip if asked.number == 0 else verdict(5)) as server:
        reward = judge_of(server, tmp_path, timeout=0.5)
        assert reward(prompts(1), ["a"], {}) == [5.0]
        assert reward.take_counts()["retries"] == 1


def test_a_slow_reply_is_waited_for_within_the_timeout(tmp_path: Path) -> None:
    with JudgeServer(lambda asked: verdict(5, after=0.1)) as server:
        assert judge_of(server, tmp_path, timeout=20, retries=0)(prompts(1), ["a"], {}) == [5.0]


GARBAGE = [
    says("I would say it is a good one."),
    says('{"reason": "cut", "sco'),
    says(None),
    says(""),
    says([{"type": "text", "text": "score: 5"}]),
    verdict(11),
    verdict(0),
    Reply(b"<html>Welcome</html>"),
    Reply(b'{"choices": [{"message": {"content": "{\\"sc'),
    Reply(b'{"choices": []}'),
    Reply(b"[]"),
    Reply(b"null"),
    Reply(b"\xff\xfe"),
    Reply(b""),
]


@pytest.mark.parametrize("rubbish", GARBAGE, ids=[str(reply.body[-40:]) for reply in GARBAGE])
def test_a_reply_that_cannot_be_used_is_asked_for_once_more(tmp_path: Path, rubbish: Reply) -> None:
    def reply(asked: Asked) -> Reply:
        return rubbish if asked.answer == "never" or asked.number == 0 else verdict(4)

    with JudgeServer(reply) as server:
        reward = judge_of(server, tmp_path, concurrency=1)
        scores, details = reward.detailed(prompts(2), ["later", "never"], {})
        assert scores == [4.0, None] and "could not be used" in details[1]["failed"]
        counts = reward.take_counts()
        assert (counts["requests"], counts["parse failures"], counts["retries"], counts["failed"]) == (4, 3, 0, 1)
        assert "A reply before this one could not be used" in server.asked[1].text
        assert "A reply before this one" not in server.asked[0].text


def test_the_second_reading_says_what_was_wrong(tmp_path: Path) -> None:
    with JudgeServer(lambda asked: verdict(70 if asked.number == 0 else 7)) as server:
        assert judge_of(server, tmp_path)(prompts(1), ["a"], {}) == [7.0]
        assert "its score was not on the scale" in server.asked[1].text


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (error(401, "Incorrect API key: sk-secret"), "answered 401 .*PARETUNE_JUDGE_API_KEY"),
        (error(402), "no credit"),
        (error(403), "may not use this model"),
        (error(404, "no model 'm'"), "answered 404 .no model 'm'.*ends in /v1"),
        (error(429, "pay first", code="insufficient_quota"), "answered 429 .pay first.*no credit"),
        (error(429, retry_after="3600"), "left alone for 3600 s"),
        (Reply(b"who are you, sk-secret?\n" * 100, 401), "who are you, \\*\\*\\*"),
    ],
)
def test_what_no_request_can_mend_stops_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: Reply, cause: str
) -> None:
    monkeypatch.setenv("PARETUNE_JUDGE_API_KEY", "sk-secret")
    with JudgeServer(lambda asked: reply) as server:
        reward = judge_of(server, tmp_path)
        with pytest.raises(InputError, match=cause) as raised:
            reward(prompts(6), TEXTS, {})
        assert server.url in str(raised.value) and "'m'" in str(raised.value)
        assert "Nothing had been judged" in str(raised.value)
        assert len(str(raised.value)) < 800 and "\n" not in str(raised.value)
        chain: BaseException | None = raised.value
        while chain is not None:
            assert "secret" not in str(chain)
            chain = chain.__cause__
        assert len(server.asked) == reward.take_counts()["requests"] == 1, "the first request goes alone"


def test_other_refusals_are_failures_of_one_answer(tmp_path: Path) -> None:
    with JudgeServer(lambda asked: error(413, "too big") if asked.answer == "bb" else by_length(asked)) as server:
        reward = judge_of(server, tmp_path)
        scores, details = reward.detailed(prompts(3), TEXTS[:3], {})
        assert scores == [1.0, None, 3.0] and details[1] == {"failed": "answered 413 (too big)"}
        assert len(server.asked) == 3


def test_an_endpoint_that_stays_down_stops_the_run_and_what_was_judged_is_kept(tmp_path: Path) -> None:
    down = True

    def reply(asked: Asked) -> Reply:
        return error(503, "overloaded") if down and len(asked.answer) > 2 else by_length(asked)

    with JudgeServer(reply) as server:
        reward = judge_of(server, tmp_path, concurrency=1, retries=1, stop_after=3)
        with pytest.raises(InputError) as raised:
            reward(prompts(6), TEXTS, {})
        text = str(raised.value)
        assert "judged none of 3 answers in a row, each tried up to 2 times" in text
        assert "answered 503 (overloaded)" in text and server.url in text
        assert "2 verdicts had been given; the cache keeps" in text and "run it again" in text
        assert len(server.asked) == 2 + 3 * 2, "the sixth answer was not asked about"
        with pytest.raises(InputError, match="3 answers in a row"):
            reward(prompts(6), TEXTS, {})
        assert len(server.asked) == 2 * (2 + 3 * 2) - 2, "the next run has the same patience, and two verdicts"
        down = False
        again = judge_of(server, tmp_path)
        assert again(prompts(6), TEXTS, {}) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        assert again.take_counts()["cached"] == 2
        down = True
        with pytest.raises(InputError, match="2 verdicts had been given, and cache=off keeps none"):
            judge_of(server, "off", concurrency=1, retries=0, stop_after=3)(prompts(6), TEXTS, {})


def test_a_verdict_between_failures_goes_on(tmp_path: Path) -> None:
    with JudgeServer(lambda asked: error(500) if len(asked.answer) % 2 else by_length(asked)) as server:
        reward = judge_of(server, tmp_path, concurrency=1, retries=0, stop_after=2)
        assert reward(prompts(6), TEXTS, {}) == [None, 2.0, None, 4.0, None, 6.0]


def test_answers_that_are_refused_for_themselves_stop_only_a_judge_that_never_judged(tmp_path: Path) -> None:
    def reply(asked: Asked) -> Reply:
        return by_length(asked) if asked.answer == "a" else error(400, "too long")

    with JudgeServer(reply) as server:
        options: dict[str, Any] = {"concurrency": 1, "stop_after": 2}
        with pytest.raises(InputError, match=r"2 answers in a row.*too long"):
            judge_of(server, tmp_path, **options)(prompts(4), TEXTS[1:5], {})
        assert judge_of(server, tmp_path, **options)(prompts(5), TEXTS[:5], {}) == [1.0, None, None, None, None]


def test_nobody_at_home(tmp_path: Path) -> None:
    with JudgeServer(by_length) as server:
        pass
    reward = judge_of(server, tmp_path, retries=1)
    scores, details = reward.detailed(prompts(1), ["a"], {})
    assert scores == [None] and "no connection" in details[0]["failed"]
    assert reward.take_counts()["requests"] == 2
    with pytest.raises(InputError, match="no connection"):
        judge_of(server, tmp_path, retries=0, stop_after=4)(prompts(6), TEXTS, {})


@pytest.mark.parametrize(
    ("header", "value", "least", "most"),
    [
        ("retry_after", "30", 30, 30),
        ("retry_after", "0.5", 0.5, 0.5),
        ("retry_after_ms", "1500", 1.5, 1.5),
        ("retry_after", "in 300 s", 200, 300),
        ("retry_after", "Sun, 06 Nov 1994 08:49:37 GMT", 0, 0),
    ],
)
def test_retry_after_is_honoured(tmp_path: Path, header: str, value: str, least: float, most: float) -> None:
    if value.startswith("in"):  # a date, counted from when the test runs
        value = format_datetime(datetime.now(UTC) + timedelta(seconds=300), usegmt=True)
    clock = FakeClock()
    with JudgeServer(lambda asked: error(429, **{header: value}) if asked.number == 0 else verdict(5)) as server:
        assert judge_of(server, tmp_path, clock, backoff=9)(prompts(1), ["a"], {}) == [5.0]
    assert least <= clock.time <= most


def test_retry_after_holds_every_request_back(tmp_path: Path) -> None:
    clock = FakeClock()
    times: list[tuple[str, float]] = []

    def reply(asked: Asked) -> Reply:
        times.append((asked.answer, clock.now()))
        return error(429, retry_after="30") if asked.answer == "a" and asked.number == 0 else by_length(asked)

    with JudgeServer(reply) as server:
        assert judge_of(server, tmp_path, clock)(prompts(3), TEXTS[:3], {}) == [1.0, 2.0, 3.0]
    assert times[0] == ("a", 0.0) and {answer for answer, _ in times[1:]} == {"a", "bb", "ccc"}
    assert all(at >= 30 for _, at in times[1:])


@pytest.mark.parametrize("value", ["soon", "", "-3", "nan"])
def test_a_retry_after_that_says_nothing_is_passed_over(tmp_path: Path, value: str) -> None:
    clock = FakeClock()
    with JudgeServer(lambda asked: error(503, retry_after=value) if asked.number == 0 else verdict(5)) as server:
        assert judge_of(server, tmp_path, clock, backoff=8)(prompts(1), ["a"], {}) == [5.0]
    assert 4 <= clock.time < 8


def test_the_wait_doubles_and_is_the_same_each_time(tmp_path: Path) -> None:
    clock = FakeClock()
    with JudgeServer(lambda asked: error(500) if asked.number < 3 else verdict(5)) as server:
        judge_of(server, tmp_path / "a", clock, backoff=8)(prompts(1), ["a"], {})
        first, second, third = clock.slept
        assert 4 <= first < 8 <= second < 16 <= third < 32
        reward = judge_of(server, tmp_path / "b", backoff=8)
        question = reward._questions(prompts(1)[0], "a")[0]
        assert [reward.wait_before(attempt, question.key) for attempt in range(3)] == clock.slept
        assert len({reward.wait_before(0, str(key)) for key in range(50)}) == 50, "others wait otherwise"
        assert reward.wait_before(99, "k") <= MAX_BACKOFF


def together(rewards: list[JudgeReward], texts: list[str]) -> list[list[float | None]]:
    """Call several judges at the same time, each in a thread of its own."""
    found: dict[int, list[float | None]] = {}

    def call(at: int) -> None:
        found[at] = rewards[at](prompts(len(texts)), texts, {})

    threads = [threading.Thread(target=call, args=(at,)) for at in range(len(rewards))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[at] for at in range(len(rewards))]


def test_objectives_at_one_endpoint_keep_its_concurrency_together(tmp_path: Path) -> None:
    with JudgeServer(lambda asked: verdict(len(asked.answer), after=0.02)) as server:
        rewards = [
            judge_of(server, tmp_path, rubric=rubric, concurrency=3) for rubric in ("honesty", "clarity", "humour")
        ]
        assert together(rewards, TEXTS) == [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]] * 3
        assert 1 < server.most <= 3 and len(server.asked) == 18


def test_one_at_a_time(tmp_path: Path) -> None:
    with JudgeServer(by_length) as server:
        rewards = [judge_of(server, tmp_path, rubric=rubric, concurrency=1) for rubric in ("honesty", "clarity")]
        together(rewards, TEXTS)
        assert server.most == 1


def test_no_more_than_the_rate_in_any_minute(tmp_path: Path) -> None:
    clock = FakeClock()
    times: list[float] = []

    def reply(asked: Asked) -> Reply:
        times.append(clock.now())
        return by_length(asked)

    texts = ["a" * length for length in range(1, 10)]
    with JudgeServer(reply) as server:
        first = judge_of(server, tmp_path, clock, concurrency=1, rate=4)
        other = parse_spec(f"m@{server.url}?rubric=honesty&rate=4&concurrency=1&cache=off")
        second = JudgeReward(other, first.endpoint)
        first(prompts(9), texts, {})
        assert times == [0.0] * 4 + [60.0] * 4 + [120.0]
        second(prompts(5), texts[:5], {})
        assert times[9:] == [120.0] * 3 + [180.0] * 2, "another objective shares the minute"
        JudgeReward(parse_spec(f"m@{server.url}?rubric=clarity&cache=off"), first.endpoint)(prompts(9), texts, {})
        assert times[14:] == [180.0] * 9, "without a rate there is no limit"


def test_retries_count_against_the_rate(tmp_path: Path) -> None:
    clock = FakeClock()
    with JudgeServer(lambda asked: error(500) if asked.number < 2 else verdict(5)) as server:
        assert judge_of(server, tmp_path, clock, rate=1, backoff=0.1)(prompts(1), ["a"], {}) == [5.0]
    assert clock.time == pytest.approx(120)


def test_an_interrupt_ends_the_requests_under_way(tmp_path: Path) -> None:
    def reply(asked: Asked) -> Reply:
        if asked.answer == "a":
            os.kill(os.getpid(), signal.SIGINT)
            return HANG
        return by_length(asked)

    with JudgeServer(reply) as server:
        reward = judge_of(server, tmp_path)
        with pytest.raises(KeyboardInterrupt):
            reward(prompts(1), ["a"], {})
        deadline = time.monotonic() + 10
        while reward.endpoint._under_way and time.monotonic() < deadline:
            time.sleep(0.01)
        assert reward.endpoint._under_way == 0
        assert reward(prompts(1), ["bb"], {}) == [2.0], "and the next call works"
