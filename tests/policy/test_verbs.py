"""The verbs as functions: plain text and messages are the same prompt, a folder and a loaded policy the same policy."""

from __future__ import annotations

import pytest

import paretune
from paretune.data.rows import as_messages
from paretune.errors import InputError

PROMPTS = ["What is tea?", "Explain at length how bread came to be."]


@pytest.fixture(scope="module")
def folder(tiny_llama, scored_rows, tmp_path_factory):
    out = tmp_path_factory.mktemp("verbs") / "policy"
    paretune.train("sga", scored_rows, str(tiny_llama), out, settings=("epochs=1", "head_epochs=1", "dtype=float32"))
    return out


def test_text_and_messages_and_folder_and_policy_agree(folder):
    policy = paretune.load_policy(folder)
    chats = [as_messages(text) for text in PROMPTS]
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


@pytest.mark.parametrize(
    "prompt", [3, None, {"role": "user"}, [{"role": "user"}], [{"role": "user", "content": 1}], ["a"]]
)
def test_a_prompt_of_another_type_is_refused(prompt):
    with pytest.raises(InputError):
        as_messages(prompt)
