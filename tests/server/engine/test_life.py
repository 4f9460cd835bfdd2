"""Requests that are cancelled, late, too many or broken; engines that drain, close and die."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import wraps

import pytest
import torch

from paretune.errors import InputError
from paretune.policy.backbone import context_length
from paretune.policy.engine import feed
from paretune.server.engine import EngineLimits
from paretune.server.engine import batch as engine_module
from paretune.server.engine.errand import slices
from paretune.server.engine.plan import CHARACTERS, make_plan
from paretune.server.request import Ask, Begun, Busy, Ended, Failed, Load, Token
from server.engine.listening import PROMPTS, Heard, make, send, user

ENDLESS = Ask(user("Hi"), max_new_tokens=10_000, fit=True, temperature=1.0)


@pytest.fixture(scope="module")
def qwen(tiny_qwen):
    """A policy that never ends an answer of its own."""
    policy = make(tiny_qwen)
    policy.renderer.stop_ids = lambda eos: set()
    return policy


def until(condition, seconds=20):
    """Wait for something that the engine's thread does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


class Held:
    """A model that waits, before each pass over the decoder, until it is let on."""

    def __init__(self, policy, monkeypatch):
        self.gate, self.waits = threading.Event(), threading.Event()
        forward = policy.causal.model.forward

        @wraps(forward)
        def slow(*args, **kwargs):
            self.waits.set()
            assert self.gate.wait(20)
            return forward(*args, **kwargs)

        monkeypatch.setattr(policy.causal.model, "forward", slow)


# --- leaving ------------------------------------------------------------------------------------------------------


def test_a_cancelled_request_frees_its_place_within_a_step(qwen, engine_of):
    engine = engine_of(qwen, max_batch=1)
    running, waiting = send(engine, ENDLESS), send(engine, Ask(user("Hi"), max_new_tokens=3))
    until(lambda: len(running.of(Token)) > 2)
    assert not waiting.events
    running.ticket.cancel()
    told = len(running.of(Token))
    assert waiting.wait().reasons == ["length"]
    assert running.reasons == ["cancelled"]
    assert len(running.of(Token)) <= told + 1


def test_a_cancelled_request_that_waits_is_told_so_without_being_begun(qwen, engine_of):
    engine = engine_of(qwen, max_batch=1)
    running, waiting = send(engine, ENDLESS), send(engine, Ask(user("Hi"), max_new_tokens=3))
    until(lambda: running.of(Token))
    waiting.ticket.cancel()
    assert waiting.wait().events == [Ended(0, "cancelled", 0)]
    running.ticket.cancel()
    assert engine.drain(10)


def test_the_deadline_counts_from_arrival(qwen, engine_of):
    engine = engine_of(qwen, max_batch=1, deadline=0.4)
    running, late = send(engine, ENDLESS), send(engine, Ask(user("Hi"), deadline=0.1))
    assert late.wait().events == [Ended(0, "deadline", 0)]
    assert running.reasons == ["deadline"]
    assert running.of(Ended)[0].tokens == len(running.of(Token)) > 0


def test_a_stop_text_ends_an_answer_and_is_no_part_of_it(tiny_qwen, policy_of, engine_of):
    policy = policy_of(tiny_qwen)
    whole = policy.generate([user(PROMPTS[3])], max_new_tokens=30)[0].text
    stop = whole[9:12]
    found = send(engine_of(policy), Ask(user(PROMPTS[3]), max_new_tokens=30, stop=("never", stop)))
    assert found.text == whole[: whole.index(stop)]
    assert found.reasons == ["stop"]


def test_a_listener_that_raises_is_gone(qwen, engine_of):
    engine = engine_of(qwen)
    seen = []

    def broken(event):
        seen.append(event)
        raise OSError("the client has left")

    engine.submit(ENDLESS, broken)
    assert send(engine, Ask(user("Hi"), max_new_tokens=5)).reasons == ["length"]
    assert engine.drain(10)
    assert isinstance(seen[0], Begun)
    assert len(seen) <= 3


# --- too many -----------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_and_says_when_to_come_back(qwen, engine_of):
    engine = engine_of(qwen, max_batch=1, max_queue=2)
    running = send(engine, ENDLESS)
    until(lambda: running.of(Token))
    waiting = [send(engine, Ask(user("Hi"), max_new_tokens=3)) for _ in range(2)]
    assert engine.load() == Load(1, 2, 1, 2)
    with pytest.raises(Busy) as refused:
        send(engine, Ask(user("Hi")))
    assert 1 <= refused.value.retry_after <= 120
    running.ticket.cancel()
    assert [each.reasons for each in waiting] == [["length"]] * 2


def test_the_time_to_come_back_is_the_pace_of_what_ended(qwen, engine_of):
    engine = engine_of(qwen)
    engine._ends.extend([100.0, 103.0, 104.0])  # 2 s apart
    assert engine._retry_after() == 2
    engine._ends.extend([1e6])
    assert engine._retry_after() == 120


def test_answers_of_more_tokens_than_there_is_memory_for_wait(qwen, engine_of):
    ask = Ask(user("Hi"), max_new_tokens=30, temperature=1.0)
    tokens = send(engine_of(qwen), ask).begun.prompt_tokens + 30 + 16
    engine = engine_of(qwen, max_batch_tokens=2 * tokens + 8)
    heard = [send(engine, ask) for _ in range(5)]
    most = 0
    while not all(each.done.is_set() for each in heard):
        most = max(most, engine.load().running)
    assert most == 2
    assert len({each.text for each in heard}) == 1


def test_what_cannot_fit_is_refused_with_both_numbers(qwen, engine_of):
    engine = engine_of(qwen)
    limit = context_length(qwen.causal)
    used = send(engine, Ask(user("Hi"), max_new_tokens=1)).begun.prompt_tokens
    with pytest.raises(InputError, match=rf"the prompt has {used} tokens and {limit} more .* context is {limit}"):
        send(engine, Ask(user("Hi"), max_new_tokens=limit))
    with pytest.raises(InputError, match=rf"and 1 more are wanted, but the model's context is {limit}"):
        send(engine, Ask(user("apples, pears, " * 200), fit=True))
    with pytest.raises(InputError, match="the limit for each of 4 answers at once is 50"):
        send(engine_of(qwen, max_batch_tokens=200), Ask(user("Hi"), n=4))


def test_a_text_that_could_never_fit_is_not_even_tokenised(qwen, engine_of, monkeypatch):
    engine, limit = engine_of(qwen), context_length(qwen.causal)
    monkeypatch.setattr(type(qwen.renderer), "_encode", lambda *_: pytest.fail("tokenised"))
    long = "a" * (limit * CHARACTERS)
    said = rf"{len(long) + 3:,} characters, and at most {len(long):,} are read, .* context is {limit}"
    with pytest.raises(InputError, match=said):
        send(engine, Ask([{"role": "system", "content": "abc"}, *user(long)], fit=True))
    with pytest.raises(InputError, match="characters"):
        send(engine, Ask(text=long + "a", sense=False, fit=True))
    with pytest.raises(InputError, match=f"prompt 2: the prompt has {len(long) + 1:,} characters"):
        engine.sense([user("Hi"), user(long + "a")], {})
    with pytest.raises(InputError, match=f"at most {50 * CHARACTERS:,} are read, .* each of 4 answers at once is 50"):
        send(engine_of(qwen, max_batch_tokens=200), Ask(user("a" * 50 * CHARACTERS + "a"), n=4))


def test_a_long_text_is_tokenised_beside_others(qwen, engine_of, monkeypatch):
    engine, encode = engine_of(qwen), type(qwen.renderer)._encode
    held, begun = threading.Event(), threading.Event()

    def slow(renderer, text):
        if "apples" in text:
            begun.set()
            assert held.wait(20)
        return encode(renderer, text)

    monkeypatch.setattr(type(qwen.renderer), "_encode", slow)
    found = []
    thread = threading.Thread(target=lambda: found.append(send(engine, Ask(user("apples"), max_new_tokens=2))))
    thread.start()
    assert begun.wait(20)
    assert send(engine, Ask(user("Hi"), max_new_tokens=2)).reasons == ["length"]
    assert len(engine.sense([user("Hi")], {})) == 1
    held.set()
    thread.join(20)
    assert found[0].reasons == ["length"]


def test_many_threads_get_the_tokens_that_one_gets(qwen, engine_of):
    engine = engine_of(qwen)
    asks = [Ask(user(text * times), max_new_tokens=8, fit=True) for text in PROMPTS for times in (1, 2)] * 8
    alone = [make_plan(qwen, ask, engine.limits) for ask in asks]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda ask: make_plan(qwen, ask, engine.limits), asks))
    assert [(plan.prefix, plan.span, plan.suffix) for plan in together] == [
        (plan.prefix, plan.span, plan.suffix) for plan in alone
    ]


def test_a_request_that_named_no_length_gets_what_the_context_leaves(qwen, engine_of):
    found = send(engine_of(qwen), ENDLESS)
    assert found.reasons == ["length"]
    assert found.begun.prompt_tokens + len(found.of(Token)) == context_length(qwen.causal)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n": 0}, "n must be at least 1"),
        ({"n": 99}, "n must be at most 32"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"temperature": float("inf")}, "temperature must be a finite number"),
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\]"),
        ({"stop": ("",)}, "stop text"),
        ({"logprobs": -1}, "logprobs must be at least 0"),
        ({"logprobs": 101}, "logprobs must be at most 100"),
        ({"deadline": 0}, "deadline must be above 0"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"pins": {"cheer": 1.5}}, "cheer"),
        ({"pins": {"chear": 0.5}}, "Did you mean 'cheer'"),
        ({"weights": {"cheer": 1.0}}, "takes no preference weights"),
        ({"messages": []}, "must end with a user message"),
        ({"text": "Hi"}, "not both"),
        ({"messages": [], "text": "Hi", "pins": {"cheer": 0.5}}, "takes no profile"),
    ],
)
def test_what_is_wrong_is_told_at_once(qwen, engine_of, wrong, message):
    with pytest.raises(InputError, match=message):
        send(engine_of(qwen), Ask(**({"messages": user("Hi")} | wrong)))


def test_limits_are_checked():
    with pytest.raises(InputError, match="max_batch must be at least 1"):
        EngineLimits(max_batch=0)
    with pytest.raises(InputError, match="deadline must be above 0"):
        EngineLimits(deadline=0)


# --- breaking -----------------------------------------------------------------------------------------------------


def test_a_prompt_that_cannot_be_computed_fails_alone(tiny_qwen, engine_of):
    policy = make(tiny_qwen)
    with torch.no_grad():  # a token that no other prompt has
        policy.causal.get_input_embeddings().weight[policy.tokenizer("Z")["input_ids"][0]] = float("nan")
    engine = engine_of(policy, prefix_cache_mib=16)
    fine, broken, after = (send(engine, Ask(user(each), max_new_tokens=8)) for each in ("Hi", "Zebra Z", "Hi"))
    assert isinstance(broken.error, FloatingPointError)
    assert not broken.of(Failed)[0].by_user
    assert fine.text == after.text


def test_prompts_that_failed_together_are_computed_one_by_one(qwen, engine_of, monkeypatch):
    wanted = [send(engine_of(qwen), Ask(user(each), max_new_tokens=9)).text for each in ("Hi", "Tea", "No")]
    rows = []

    def picky(causal, state, pieces, pad_id, layer=None):
        rows.append(len(pieces))
        if len(pieces) > 1 or bad[0] in pieces[0]:
            raise RuntimeError("no kernel for this")
        return feed(causal, state, pieces, pad_id, layer)

    held = Held(qwen, monkeypatch)
    engine = engine_of(qwen)
    first = send(engine, Ask(user("Hi"), max_new_tokens=9))
    assert held.waits.wait(10)
    bad = qwen.tokenizer("Z")["input_ids"]
    monkeypatch.setattr("paretune.server.engine.prompt.feed", picky)
    heard = [send(engine, Ask(user(each), max_new_tokens=9)) for each in ("Tea", "Z", "No")]
    held.gate.set()
    assert [each.text for each in (first, heard[0], heard[2])] == wanted
    assert str(heard[1].error) == "no kernel for this"
    assert 3 in rows
    assert all(len(each.of(Begun)) == 1 for each in (first, heard[0], heard[2]))


def test_an_answer_whose_logits_are_not_finite_fails_alone(tiny_qwen, engine_of, monkeypatch):
    policy = make(tiny_qwen)
    project = engine_module.mixed_logits
    rows = []

    def poisoned(causal, voices):
        logits = project(causal, voices)
        rows.append(len(logits))
        if len(logits) == 2:
            logits[1] = float("nan")
        return logits

    monkeypatch.setattr("paretune.server.engine.group.mixed_logits", poisoned)
    engine = engine_of(policy)
    found = send(engine, Ask(user("Hi"), max_new_tokens=60, temperature=1.0))
    until(lambda: found.of(Token))
    other = send(engine, Ask(user("Hi"), max_new_tokens=60, temperature=1.0, seed=1))
    assert isinstance(other.error, FloatingPointError)
    assert found.reasons[0] in ("stop", "length")
    assert 2 in rows


def test_without_memory_the_last_to_come_fails_and_the_others_go_on(qwen, engine_of, monkeypatch):
    ask = Ask(user(PROMPTS[1]), max_new_tokens=40)
    wanted = send(engine_of(qwen), ask).text
    real, failed = engine_module.Group.step, []

    def short(group):
        if len(group.answers) == 3:
            failed.append(engine.prefixes.bytes)
            # as it happens: after keys and values of the first layers were written
            monkeypatch.setattr("paretune.server.engine.group.advance", half_way)
        try:
            return real(group)
        finally:
            monkeypatch.setattr("paretune.server.engine.group.advance", advance)

    from paretune.server.engine.group import advance

    def half_way(causal, state, tokens):
        advance(causal, state, tokens)
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(engine_module.Group, "step", short)
    engine = engine_of(qwen, max_batch=3)
    heard = [send(engine, Ask(user("Hi"), max_new_tokens=40, temperature=1.0, seed=i)) for i in range(2)]
    until(lambda: all(each.of(Token) for each in heard))
    last = send(engine, ask)
    assert isinstance(last.error, torch.OutOfMemoryError)
    assert [each.reasons for each in heard] == [["length"]] * 2
    assert failed[0] > 0 == failed[1]  # what the prefix cache held went first
    assert send(engine, ask).text == wanted


def test_without_memory_for_the_logits_a_step_is_as_if_it_had_not_been(qwen, engine_of, monkeypatch):
    ask = Ask(user(PROMPTS[1]), max_new_tokens=12)
    wanted = send(engine_of(qwen), ask).text
    project, steps = engine_module.mixed_logits, []

    def short(causal, voices):
        steps.append(0)
        if len(steps) == 4:
            raise torch.OutOfMemoryError("no memory left")
        return project(causal, voices)

    monkeypatch.setattr("paretune.server.engine.group.mixed_logits", short)
    assert send(engine_of(qwen), ask).text == wanted
    assert len(steps) == 12  # eleven after the first token, and the one that failed


def test_tokens_that_cannot_be_chosen_end_their_requests_and_not_the_engine(qwen, engine_of, monkeypatch):
    engine = engine_of(qwen)
    running = send(engine, ENDLESS)
    until(lambda: running.of(Token))
    choose, broken = engine_module.choose, threading.Event()

    def once(*args):
        if not broken.is_set():
            broken.set()
            raise torch.OutOfMemoryError("no memory left")
        return choose(*args)

    monkeypatch.setattr(engine_module, "choose", once)
    assert isinstance(running.error, torch.OutOfMemoryError)
    assert send(engine, Ask(user("Hi"), max_new_tokens=3)).reasons == ["length"]


def test_a_thread_that_dies_takes_all_with_it_and_says_so(qwen, engine_of, monkeypatch):
    engine = engine_of(qwen, max_batch=1)
    running, waiting = send(engine, ENDLESS), send(engine, ENDLESS)
    until(lambda: running.of(Token))
    monkeypatch.setattr(engine, "_tidy", lambda: 1 / 0)
    for each in (running, waiting):
        assert isinstance(each.error, RuntimeError)
    until(lambda: not engine._thread.is_alive())
    for call in (engine.load, lambda: send(engine, ENDLESS), lambda: engine.sense([user("Hi")], {})):
        with pytest.raises(RuntimeError, match="has stopped after an error"):
            call()
    assert engine.drain(1)


# --- stopping -----------------------------------------------------------------------------------------------------


def test_drain_lets_what_runs_end_and_admits_nothing(qwen, engine_of):
    engine = engine_of(qwen, max_batch=1)
    heard = [send(engine, Ask(user("Hi"), max_new_tokens=30)) for _ in range(3)]
    assert engine.drain(20)
    assert [each.reasons for each in heard] == [["length"]] * 3
    with pytest.raises(Busy, match="stopping"):
        send(engine, Ask(user("Hi")))
    assert engine.load().running == 0


def test_drain_cancels_what_does_not_end_in_time(qwen, engine_of, monkeypatch):
    held = Held(qwen, monkeypatch)
    engine = engine_of(qwen, max_batch=1)
    heard = [send(engine, ENDLESS) for _ in range(2)]
    assert held.waits.wait(10)
    threading.Timer(0.3, held.gate.set).start()
    assert not engine.drain(0.1)
    assert [each.reasons for each in heard] == [["cancelled"]] * 2


def test_close_cancels_what_runs(qwen, engine_of):
    engine = engine_of(qwen, max_batch=1)
    heard = [send(engine, ENDLESS) for _ in range(2)]
    until(lambda: heard[0].of(Token))
    engine.close()
    assert [each.reasons for each in heard] == [["cancelled"]] * 2
    engine.close()
    with pytest.raises(Busy, match="stopping"):
        send(engine, ENDLESS)


# --- sensing ------------------------------------------------------------------------------------------------------


def test_sensing_alone_shares_the_thread(qwen, engine_of):
    engine = engine_of(qwen, prefill_tokens=64)
    chats = [user(each) for each in PROMPTS] * 2
    asked = [{}, {"cheer": 0.25}]
    wanted = [qwen.predict(chats, pins) for pins in asked]
    running = send(engine, Ask(user("Hi"), max_new_tokens=100))
    for pins, predicted in zip(asked, wanted, strict=True):
        found = engine.sense(chats, pins)
        for each, other in zip(found, predicted, strict=True):
            assert each.profile == pytest.approx(other.profile, abs=1e-5)
    assert running.reasons == ["length"]
    with pytest.raises(InputError, match="Did you mean 'cheer'"):
        engine.sense(chats, {"chear": 0.5})
    with pytest.raises(InputError, match="prompt 2: the prompt must end with a user message"):
        engine.sense([user("Hi"), [{"role": "assistant", "content": "Hi"}]], {})


def test_a_policy_without_a_head_cannot_sense(tiny_qwen, engine_of):
    with pytest.raises(InputError, match="cannot sense"):
        engine_of(make(tiny_qwen, head=None)).sense([user("Hi")], {})


def test_prompts_are_sensed_a_few_at_a_time():
    assert slices([5, 5, 5, 20, 1], 10) == [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 5)]
    assert slices([], 10) == []


def test_listeners_hear_begun_then_tokens_then_ends(qwen, engine_of):
    found = send(engine_of(qwen), Ask(user("Hi"), n=3, max_new_tokens=4, temperature=1.0)).wait()
    assert isinstance(found.events[0], Begun)
    for index in range(3):
        own = [type(event) for event in found.events[1:] if event.index == index]
        assert own == [Token] * 4 + [Ended]
    assert isinstance(found, Heard)
