"""Answers are those of `Policy.generate`, whatever they share a batch with, and however requests come and go."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paretune.policy.engine import Sampling, decode, prefill, row_seed
from paretune.policy.head import HeadConfig
from paretune.server.request import Ask, Ended, Token
from server.engine.listening import PROMPTS, Heard, make, send, user

TOKENS = 20


@pytest.fixture
def policy(tiny_model, policy_of):
    return policy_of(tiny_model)


@pytest.fixture
def qwen(tiny_qwen, policy_of):
    return policy_of(tiny_qwen)


def expected(policy, prompts, **options):
    """Answers one by one, by `Policy.generate`."""
    return policy.generate([user(each) for each in prompts], max_new_tokens=TOKENS, batch_size=1, **options)


@pytest.mark.parametrize("limits", [{}, {"max_batch": 2, "prefill_tokens": 16, "prefix_cache_mib": 0}])
def test_greedy_answers_are_those_of_generate(policy, engine_of, limits):
    engine = engine_of(policy, **limits)
    heard = [send(engine, Ask(user(each), max_new_tokens=TOKENS)) for each in PROMPTS]
    for found, wanted in zip(heard, expected(policy, PROMPTS), strict=True):
        assert found.text == wanted.text
        assert [event.tokens for event in found.of(Ended)] == [wanted.tokens]
        assert found.reasons == ["stop" if wanted.finished else "length"]
        begun = found.begun
        assert begun.used == pytest.approx(wanted.profile, abs=1e-6)
        assert begun.sensed.profile == pytest.approx(wanted.sensed, abs=1e-6)
        assert begun.weights is None


def test_pins_are_obeyed_and_what_is_sensed_alone_is_told(policy, engine_of):
    pins = {"cheer": 0.9}
    found = send(engine_of(policy), Ask(user(PROMPTS[1]), pins=pins, max_new_tokens=TOKENS))
    (wanted,) = expected(policy, PROMPTS[1:2], pins=pins)
    assert (found.text, found.begun.used["cheer"]) == (wanted.text, 0.9)
    assert found.begun.sensed.profile == pytest.approx(wanted.sensed, abs=1e-6)


def test_without_sensing_the_pins_alone_are_asked_for(policy, engine_of):
    engine = engine_of(policy)
    found = send(engine, Ask(user(PROMPTS[1]), pins={"cheer": 0.9}, sense=False, max_new_tokens=TOKENS))
    (wanted,) = expected(policy, PROMPTS[1:2], pins={"cheer": 0.9}, condition="none")
    assert (found.text, found.begun.used, found.begun.sensed) == (wanted.text, {"cheer": 0.9}, None)
    plain = send(engine, Ask(user(PROMPTS[1]), sense=False, max_new_tokens=TOKENS))
    (wanted,) = expected(policy, PROMPTS[1:2], condition="none")
    assert (plain.text, plain.begun.used) == (wanted.text, None)


def test_a_policy_without_a_head_answers(tiny_llama, engine_of):
    policy = make(tiny_llama, head=None)
    found = send(engine_of(policy), Ask(user(PROMPTS[2]), max_new_tokens=TOKENS))
    assert found.text == expected(policy, PROMPTS[2:3])[0].text
    assert (found.begun.sensed, found.begun.used) == (None, None)


def test_sampled_answers_are_the_same_alone_and_in_a_batch(policy, engine_of):
    heats, masses = [1.0, 0.0, 0.7, 1.5, 1.0, 0.3], [1, 1, 0.9, 0.5, 0.95, 1]
    asks = [
        Ask(user(each), max_new_tokens=TOKENS, temperature=heat, top_p=mass, seed=i)
        for i, (each, heat, mass) in enumerate(zip(PROMPTS, heats, masses, strict=True))
    ]
    together = engine_of(policy)
    heard = [send(together, ask) for ask in asks]
    alone = engine_of(policy, max_batch=1, prefix_cache_mib=0)
    assert [each.text for each in heard] == [send(alone, ask).text for ask in asks]


def test_each_of_n_answers_draws_with_its_own_seed_on_one_prefill(qwen, engine_of):
    ask = Ask(user(PROMPTS[1]), n=4, temperature=1.0, top_p=0.9, seed=7, max_new_tokens=TOKENS)
    engine = engine_of(qwen)
    found = send(engine, ask)
    seeds = [row_seed(7, "answer", k) for k in range(4)]
    wanted = qwen.generate(
        [user(PROMPTS[1])] * 4, max_new_tokens=TOKENS, temperature=1.0, top_p=0.9, seed=seeds, batch_size=1
    )
    assert found.texts == [each.text for each in wanted]
    assert len(set(found.texts)) > 1
    assert send(engine, ask).texts == found.texts


def test_a_plain_text_goes_on_without_template_and_profile(policy, engine_of):
    found = send(engine_of(policy), Ask(text="Human: How do I bake", max_new_tokens=TOKENS))
    ids = policy.tokenizer("Human: How do I bake")["input_ids"]
    rest = policy.causal.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=False,
        max_new_tokens=TOKENS, eos_token_id=sorted(policy.renderer.stop_ids(None)), pad_token_id=0,
    )[0, len(ids) :]  # fmt: skip
    assert found.text == policy.tokenizer.decode(rest, skip_special_tokens=True)
    assert (found.begun.prompt_tokens, found.begun.used, found.begun.sensed) == (len(ids), None, None)


def test_logprobs_are_those_of_a_pass_without_a_cache(policy, engine_of):
    found = send(engine_of(policy), Ask(user(PROMPTS[3]), max_new_tokens=8, logprobs=3, temperature=0.8, seed=1))
    prefix, suffix = (
        policy.renderer.prefix(user(PROMPTS[3])),
        policy.renderer.suffix(user(PROMPTS[3]), found.begun.used),
    )
    (answer,) = decode(
        policy.causal, prefill(policy.causal, [prefix], 0), [suffix], sampling=Sampling(8, 0.8), pad_id=0,
        stop_ids=policy.renderer.stop_ids(None), seeds=[row_seed(1, "answer", 0)],
    )  # fmt: skip
    told = [event.logprob for event in found.of(Token)]
    assert len(told) == len(answer.ids) > 3
    with torch.no_grad():
        logits = policy.causal(torch.tensor([[*prefix, *suffix, *answer.ids]]), use_cache=False).logits[0]
    wanted = torch.log_softmax(logits[len(prefix) + len(suffix) - 1 : -1].float(), -1)
    for row, token, each in zip(wanted, answer.ids, told, strict=True):
        assert each.logprob == pytest.approx(float(row[token]), abs=1e-4)
        assert [one.logprob for one in each.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)
        assert policy.tokenizer.decode([token]) == each.token
    assert b"".join(each.bytes for each in told).decode("utf-8", "replace") == found.text


def test_no_logprobs_where_none_are_asked_for(qwen, engine_of):
    engine = engine_of(qwen)
    plain, none = (send(engine, Ask(user("Hi"), max_new_tokens=3, logprobs=each)) for each in (None, 0))
    assert {event.logprob for event in plain.wait().of(Token)} == {None}
    assert all(event.logprob.top == () for event in none.wait().of(Token))


@pytest.mark.parametrize("layer", [0.5, 1.0])
@pytest.mark.parametrize("span", ["last", "mean"])
def test_the_prefix_cache_changes_nothing(tiny_llama, engine_of, layer, span):
    policy = make(tiny_llama, head=HeadConfig(width=16, depth=1, readout=span, layer=layer))
    turns = [{"role": "system", "content": "You are a poet who loves rivers, maps and bread."}, *user(PROMPTS[1])]
    chats = [
        turns,
        [*turns, {"role": "assistant", "content": "Because of the air."}, *user("And at night?")],
        [*turns[:1], *user(PROMPTS[3])],
        turns,
    ]
    wanted = policy.generate(chats, max_new_tokens=TOKENS, batch_size=1)
    for mib in (0, 16):
        engine = engine_of(policy, prefix_cache_mib=mib, prefill_tokens=32)
        heard = [send(engine, Ask(chat, max_new_tokens=TOKENS)).wait() for chat in chats]
        assert [each.text for each in heard] == [each.text for each in wanted]
        for found, plain in zip(heard, wanted, strict=True):
            assert found.begun.sensed.profile == pytest.approx(plain.sensed, abs=1e-5)
        cached = [each.begun.cached_tokens for each in heard]
        assert cached[0] == 0
        if mib:
            lengths = [len(policy.renderer.prefix(chat)) for chat in chats]
            assert cached[1] >= lengths[0] - 32 and cached[2] >= 16
            assert cached[3] < lengths[3] - (policy.renderer.user_tokens(turns) if span == "mean" else 0)
            assert cached[3] > 0
        else:
            assert not any(cached)


def test_a_long_prompt_does_not_hold_up_running_answers(qwen, engine_of):
    """Its pieces and the others' tokens alternate: between two tokens at most `prefill_tokens` are computed."""
    engine = engine_of(qwen, prefill_tokens=16, prefix_cache_mib=0)
    order: list[str] = []
    long = [user("apples, pears and plums " * 12)]
    pieces = -(-len(qwen.renderer.prefix(long[0])) // 16)
    started = threading.Event()

    class Runs(Heard):
        def __call__(self, event):
            if isinstance(event, Token):
                order.append("token")
                started.set()
            super().__call__(event)

    running = Runs()
    ask = Ask(user("Hi"), max_new_tokens=300, seed=3, temperature=1.5)
    engine.submit(ask, running)
    assert started.wait(10)
    at = len(order)
    joining = send(engine, Ask(long[0], max_new_tokens=2))
    while not joining.events:
        time.sleep(0.001)
    between = len(order) - at
    assert running.done.is_set() or between >= pieces - 2


SCHEDULES = st.lists(
    st.tuples(
        st.sampled_from(range(len(PROMPTS))),  # the prompt
        st.integers(1, 12),  # tokens
        st.sampled_from([None, 0, 3]),  # cancelled after so many events
        st.booleans(),  # wait for its end before the next comes
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=SCHEDULES, batch=st.integers(1, 4), chunk=st.sampled_from([16, 40, 256]))
def test_any_schedule_of_joins_and_leaves_gives_the_same_answers(qwen, engine_of, schedule, batch, chunk):
    if not hasattr(qwen, "known"):
        qwen.known = [each.text for each in qwen.generate([user(p) for p in PROMPTS], max_new_tokens=12, batch_size=1)]
    engine = engine_of(qwen, max_batch=batch, prefill_tokens=chunk)
    heard = []
    for prompt, tokens, cancelled, waits in schedule:
        found = send(engine, Ask(user(PROMPTS[prompt]), max_new_tokens=tokens))
        heard.append((prompt, tokens, cancelled, found))
        if cancelled is not None:
            end = time.monotonic() + 10
            while len(found.events) < cancelled and not found.done.is_set() and time.monotonic() < end:
                time.sleep(0.001)
            found.ticket.cancel()
        elif waits:
            found.wait()
    for prompt, tokens, cancelled, found in heard:
        text = found.text
        # a text that was cut within a character ends in the mark of that
        assert qwen.known[prompt].startswith(text.removesuffix("\ufffd"))
        if cancelled is None:
            assert found.reasons[0] in ("stop", "length")
            assert len(found.of(Token)) == found.of(Ended)[0].tokens <= tokens
    assert engine.drain(10)
    assert engine.load().running == 0
    engine.close()
