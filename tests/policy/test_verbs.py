"""The verbs as functions: plain text and messages are the same prompt, a folder and a loaded policy the same policy."""

from __future__ import annotations

import pytest

import paretune
from paretune.data.prompts import as_chat
from paretune.errors import InputError

PROMPTS = ["What is tea?", "Explain at length how bread came to be."]


@pytest.fixture(scope="module")
def folder(tiny_llama, scored_rows, tmp_path_factory):
    out = tmp_path_factory.mktemp("verbs") / "policy"
    paretune.train("sga", scored_rows, str(tiny_llama), out, settings=("epochs=1", "head_epochs=1", "dtype=float32"))
    return out


def test_text_and_messages_and_folder_and_policy_agree(folder):
    policy = paretune.load_policy(folder)
    chats = [as_chat(text, "prompt") for text in PROMPTS]
    assert paretune.sense(folder, PROMPTS) == policy.sense(chats) == paretune.sense(policy, chats)
    one = paretune.generate(folder, PROMPTS, max_new_tokens=6)
    assert one == policy.generate(chats, max_new_tokens=6)


def test_pins_may_differ_from_prompt_to_prompt(folder):
    policy = paretune.load_policy(folder)
    name = policy.names[0]
    both = policy.generate(PROMPTS, pins=[{name: 0.1}, {name: 0.9}], max_new_tokens=6)
    alone = [
        policy.generate([PROMPTS[i]], pins={name: value}, max_new_tokens=6)[0] for i, value in ((0, 0.1), (1, 0.9))
    ]
    assert [each.text for each in both] == [each.text for each in alone]
    assert [each.profile[name] for each in both] == [0.1, 0.9]
    with pytest.raises(InputError, match="1 pins were given for 2 prompts"):
        policy.generate(PROMPTS, pins=[{name: 0.1}])


def test_intervals_are_asked_for(folder):
    policy = paretune.load_policy(folder)
    name = policy.names[0]
    plain = paretune.sense(policy, PROMPTS, pins=[{name: 0.25}, {}])
    found = paretune.sense(policy, PROMPTS, pins=[{name: 0.25}, {}], intervals=True, level=0.5)
    assert [each.profile for each in found] == plain and plain[0][name] == 0.25
    assert found[0].interval[name] == (0.25, 0.25)  # the folder's head was fitted alone, so it is calibrated
    with pytest.raises(InputError, match=r"level must be one of 0\.5, 0\.8, 0\.9, 0\.95"):
        paretune.sense(policy, PROMPTS, level=0.6)


# --- what cannot be a request -------------------------------------------------------------------------------------

BAD_PROMPTS = {
    3: "prompt 2: must be text or a list of messages; found 3",
    None: "prompt 2: there is no prompt",
    "": "prompt 2: the prompt is empty",
    " \n ": "prompt 2: the prompt is empty",
    "a\ud800": r"prompt 2: a text must not hold a lone surrogate",
    (): "prompt 2 .*: a value must be JSON|prompt 2: must be text or a list of messages",
}
BAD_CHATS = [
    ([], "prompt 2: the list of messages is empty"),
    (["a"], r"prompt 2 \(prompt\[0\]\): a message must be an object"),
    ([{"role": "user"}], r"prompt 2 \(prompt\[0\]\.content\)"),
    ([{"role": "user", "content": 1}], r"prompt 2 \(prompt\[0\]\.content\)"),
    ([{"role": "user", "content": "a\udc00"}], r"prompt 2 \(prompt\[0\]\.content\): a text must not hold a lone"),
    ([{"role": "judge", "content": "a"}], r"prompt 2 \(prompt\[0\]\.role\): a role must be one of"),
    ([{"role": "assistant", "content": "a"}], r"prompt 2: the prompt must end with a user message"),
]


@pytest.mark.parametrize(("prompt", "message"), [*BAD_PROMPTS.items(), *BAD_CHATS])
def test_a_prompt_that_no_file_may_hold_is_refused_by_its_number(folder, loaded, prompt, message):
    for call in (loaded.sense, loaded.predict, loaded.generate, loaded.features):
        with pytest.raises(InputError, match=message):
            call(["Hi", prompt])
    with pytest.raises(InputError, match=message):
        loaded.loglik(["Hi", prompt], ["a", "b"], [None, None])
    for verb in (paretune.sense, paretune.generate):
        with pytest.raises(InputError, match=message):
            verb(folder, ["Hi", prompt])


@pytest.fixture(scope="module")
def loaded(folder):
    return paretune.load_policy(folder)


@pytest.mark.parametrize("prompts", [3, None, "Hi", b"Hi", {"role": "user", "content": "Hi"}, iter(["Hi"])])
def test_prompts_that_are_no_list(loaded, prompts):
    for call in (loaded.sense, loaded.generate):
        with pytest.raises(InputError, match="prompts is a list of prompts"):
            call(prompts)


@pytest.mark.parametrize(
    "pins", [5, True, "brevity=0.9", b"x", [5], {"brevity": "0.9"}, {"brevity": None}, {3: 0.5}, 0]
)
def test_pins_and_profiles_of_another_type(loaded, pins):
    for call in (loaded.sense, loaded.predict, loaded.generate):
        with pytest.raises(InputError, match="pin"):
            call(["Hi"], pins=pins)
    if not isinstance(pins, str):
        with pytest.raises(InputError, match="profile"):
            loaded.generate(["Hi"], condition=pins)


@pytest.mark.parametrize("huge", [10**400, -(10**400)])
def test_a_whole_number_larger_than_any_float_is_no_pin(loaded, huge):
    with pytest.raises(InputError, match=r"'brevity' must lie in \[0, 1\]"):
        loaded.sense(["Hi"], {"brevity": huge})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": "5"}, "max_new_tokens must be a whole number, found '5'"),
        ({"max_new_tokens": 1.5}, "max_new_tokens must be a whole number"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"temperature": "hot"}, "temperature must be a finite number, found 'hot'"),
        ({"temperature": float("inf")}, "temperature must be a finite number"),
        ({"temperature": -1}, "temperature must be 0 or more"),
        ({"top_p": None}, "top_p must be a finite number"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": "8"}, "batch_size must be a whole number"),
        ({"condition": "oness"}, "Did you mean 'ones'"),
    ],
)
def test_what_is_cheap_to_tell_is_told_before_the_model_is_loaded(folder, monkeypatch, options, message):
    with pytest.raises(InputError, match=message):
        paretune.load_policy(folder).generate(["Hi"], **options)
    monkeypatch.setattr("paretune.policy.verbs.load_policy", lambda *_: pytest.fail("the model was loaded"))
    with pytest.raises(InputError, match=message):
        paretune.generate(folder, ["Hi"], **options)


@pytest.mark.parametrize("level", ["0.8", None, True, [0.8], 0.7, float("nan")])
def test_a_level_that_is_none(loaded, folder, level, monkeypatch):
    for call in (lambda: loaded.predict(["Hi"], level=level), lambda: paretune.sense(folder, ["Hi"], level=level)):
        with pytest.raises(InputError, match="level must be"):
            call()


def test_an_error_of_the_chat_template_names_the_prompt(loaded, monkeypatch):
    template = "{{ raise_exception('no odd talk') if messages[0].content == 'odd' else messages[-1].content }}"
    monkeypatch.setattr(loaded.tokenizer, "chat_template", template)
    with pytest.raises(InputError, match="prompt 2: the chat template cannot render this conversation: no odd talk"):
        loaded.sense(["Hi", [{"role": "user", "content": "odd"}, *[{"role": "user", "content": "b"}]]])
