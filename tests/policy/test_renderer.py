"""The renderer: the exact text and the exact ids of a prompt and a profile, for templates with and without BOS."""

from __future__ import annotations

import math

import pytest
from transformers import AutoTokenizer

from paretune.errors import InputError
from paretune.policy import Renderer
from paretune.policy.renderer import FALLBACK_TEMPLATE
from paretune.profile import Objective

SYSTEM = {"role": "system", "content": "You are a poet."}


def user(text):
    return [{"role": "user", "content": text}]


def tokenizer(path):
    return AutoTokenizer.from_pretrained(path)


@pytest.fixture
def llama(tiny_llama, objectives):
    return Renderer(tokenizer(tiny_llama), objectives)


def rendered(path, objectives, **options):
    return Renderer(tokenizer(path), objectives, **options)


# --- the text of a profile ----------------------------------------------------------------------------------------


def test_scores_is_the_papers_text(llama):
    text = llama.profile_text({"brevity": 0.25, "cheer": 1, "rude_words": 0.126})
    assert text == (
        "\nYour response must satisfy the following scores: "
        "<brevity_score:0.25> and <cheer_score:1.00> and <rude_words_score:0.13>"
    )


def test_levels(tiny_llama, objectives):
    renderer = rendered(tiny_llama, objectives, style="levels")
    text = renderer.profile_text({"brevity": 0.95, "cheer": 0.5, "rude_words": 0.0})
    assert text == "\nRequested: brevity very high, cheer medium, rude_words very low"


def test_instructions_says_each_objectives_phrase_and_a_generic_one_without(tiny_llama, objectives):
    renderer = rendered(tiny_llama, objectives, style="instructions")
    assert renderer.profile_text({"brevity": 0.99, "rude_words": 0.3}) == (
        "\nAnswer in one sentence. The rude words of the answer must be low."
    )
    assert renderer.profile_text({"brevity": 0.5}) == ""  # an empty phrase says nothing, not even a newline


def test_ric_writes_z_scores_to_one_decimal_by_the_objectives_place(tiny_llama, objectives):
    names = [each.name for each in objectives]
    scales = {"centre": dict.fromkeys(names, 0.5), "spread": dict(zip(names, (0.25, 0.1, 0.5), strict=True))}
    renderer = rendered(tiny_llama, objectives, style="ric", **scales)
    assert renderer.profile_text({"brevity": 1.0, "cheer": 0.27, "rude_words": 0.48}) == (
        "\n<rm1_score> 2.0 <rm2_score> -2.3 <rm3_score> 0.0"
    )
    assert renderer.profile_text({"rude_words": 0.0}) == "\n<rm3_score> -1.0"
    assert renderer.to_dict() == {"style": "ric", "snap": "none", **scales}
    assert rendered(tiny_llama, objectives).to_dict() == {"style": "scores", "snap": "none"}


@pytest.mark.parametrize(("value", "level"), [(0, 1), (0.19, 1), (0.2, 2), (0.5, 3), (0.79, 4), (0.8, 5), (1, 5)])
def test_cpo_writes_levels_from_1_to_5(tiny_llama, objectives, value, level):
    renderer = rendered(tiny_llama, objectives, style="cpo")
    assert renderer.profile_text({"cheer": value, "brevity": 1}) == f"\n<brevity:5> <cheer:{level}>"


def test_weights_writes_shares(tiny_llama, objectives):
    renderer = rendered(tiny_llama, objectives, style="weights")
    assert renderer.profile_text({"brevity": 0.62, "cheer": 0.38, "rude_words": 0}) == (
        "\nWhat counts: brevity 62%, cheer 38%, rude_words 0%"
    )
    assert renderer.profile_text({"brevity": 0.2, "cheer": 0.6}) == "\nWhat counts: brevity 25%, cheer 75%"
    assert renderer.profile_text({"brevity": 0.0, "cheer": 0.0}) == "\nWhat counts: brevity 50%, cheer 50%"


@pytest.mark.parametrize("style", ["ric", "cpo", "weights"])
def test_an_answer_that_repeats_the_marks_is_an_echo(tiny_llama, objectives, style):
    names = [each.name for each in objectives]
    scales = {"centre": dict.fromkeys(names, 0.5), "spread": dict.fromkeys(names, 0.2)} if style == "ric" else {}
    renderer = rendered(tiny_llama, objectives, style=style, **scales)
    assert renderer.echoes(f"Of course.{renderer.profile_text({'cheer': 0.7, 'brevity': 0.3})}")
    assert not renderer.echoes("Cheer up: 70% of all brevity is wit, and <b>that</b> is 1:0.")


@pytest.mark.parametrize("style", ["scores", "levels", "instructions", "cpo", "weights"])
def test_a_partial_profile_names_what_it_has_in_the_objectives_order(tiny_llama, objectives, style):
    renderer = rendered(tiny_llama, objectives, style=style)
    both = renderer.profile_text({"rude_words": 0.1, "cheer": 0.9})
    assert both == renderer.profile_text({"cheer": 0.9, "rude_words": 0.1})
    assert "brevity" not in both and both.index("cheer") < both.index("rude")
    assert renderer.profile_text({}) == renderer.profile_text(None) == ""


def test_two_decimals_are_all_that_is_shown(llama):
    assert llama.profile_text({"cheer": 0.123}) == llama.profile_text({"cheer": 0.1204})
    assert llama.suffix(user("a"), {"cheer": 0.123}) == llama.suffix(user("a"), {"cheer": 0.1204})


@pytest.mark.parametrize("style", ["scores", "levels", "instructions", "cpo", "weights"])
@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ({"cheer": math.nan}, r"'cheer' must lie in \[0, 1\], found nan"),
        ({"cheer": math.inf}, r"'cheer' must lie in \[0, 1\], found inf"),
        ({"brevity": 0.5, "cheer": 1.01}, r"'cheer' must lie in \[0, 1\], found 1.01"),
        ({"cheer": -0.01}, r"'cheer' must lie in \[0, 1\], found -0.01"),
        ({"cheer": "high"}, r"'cheer' must be a number in \[0, 1\], found 'high'"),
        ({"cheer": True}, r"'cheer' must be a number in \[0, 1\], found True"),
        ({"cheer": None}, r"'cheer' must be a number in \[0, 1\], found None"),
        ({"chear": 0.5}, "unknown objective 'chear'. Did you mean 'cheer'"),
        ([0.5], "a profile is a mapping from objective to a number"),
    ],
)
def test_no_style_renders_a_profile_that_is_none(tiny_llama, objectives, style, profile, message):
    renderer = rendered(tiny_llama, objectives, style=style)
    with pytest.raises(InputError, match=message):
        renderer.profile_text(profile)
    with pytest.raises(InputError, match=message):
        renderer.suffix(user("Hi"), profile)


@pytest.mark.parametrize("snap", ["none", "paper"])
def test_a_sensed_value_that_is_no_number_is_told(tiny_llama, objectives, snap):
    with pytest.raises(InputError, match=r"sensed profile: 'cheer' must lie in \[0, 1\], found nan"):
        rendered(tiny_llama, objectives, snap=snap).snapped({"cheer": math.nan})


@pytest.mark.parametrize(
    ("value", "grid"), [(0.1, 0.0), (0.13, 0.25), (0.3, 0.25), (0.6, 0.5), (0.8, 0.75), (0.9, 1.0)]
)
def test_the_papers_grid(tiny_llama, objectives, value, grid):
    snapping = rendered(tiny_llama, objectives, snap="paper")
    assert snapping.snapped({"cheer": value, "brevity": 0.0}) == {"cheer": grid, "brevity": 0.0}
    assert rendered(tiny_llama, objectives).snapped({"cheer": value}) == {"cheer": value}


def test_the_papers_grid_is_not_used_for_two_objectives(tiny_llama, objectives):
    assert rendered(tiny_llama, objectives[:2], snap="paper").snapped({"brevity": 0.13}) == {"brevity": 0.13}
    assert rendered(tiny_llama, objectives[:1], snap="paper").snapped({"brevity": 0.13}) == {"brevity": 0.25}


def test_unknown_style_and_snap(tiny_llama, objectives):
    with pytest.raises(InputError, match="Did you mean 'scores'"):
        rendered(tiny_llama, objectives, style="score")
    with pytest.raises(InputError, match="Did you mean 'paper'"):
        rendered(tiny_llama, objectives, snap="papers")


# --- ids of a prompt ----------------------------------------------------------------------------------------------


def whole_template(path, messages, text):
    """The template's text with `text` appended to the last user message, by transformers alone."""
    own = tokenizer(path)
    if not own.chat_template:
        own.chat_template = FALLBACK_TEMPLATE
    said = messages[-1]["content"].rstrip() if path.name == "llama" else messages[-1]["content"]  # its template trims
    messages = [*messages[:-1], {**messages[-1], "content": said + text}]
    return own, own.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("profile", [None, {"brevity": 0.5, "cheer": 0.75}])
def test_prefix_and_suffix_are_the_whole_template(tiny_model, objectives, prompts, profile):
    renderer = rendered(tiny_model, objectives)
    for messages in prompts:
        own, text = whole_template(tiny_model, messages, renderer.profile_text(profile))
        joined = [*renderer.prefix(messages), *renderer.suffix(messages, profile)]
        assert own.decode(joined) == text
        if profile is not None or tiny_model.name != "gpt2":
            # the cut lies at a special token or at a newline, where this tokenizer cuts by itself
            assert joined == own(text, add_special_tokens=False)["input_ids"]


def test_the_prefix_ends_with_the_users_text(tiny_model, objectives, prompts):
    renderer = rendered(tiny_model, objectives)
    for messages in prompts:
        text = renderer.tokenizer.decode(renderer.prefix(messages))
        wanted = messages[-1]["content"]
        assert text.endswith(wanted.strip() if tiny_model.name == "llama" else wanted)  # this Llama's template trims


def test_every_profile_shares_the_prefix(tiny_model, objectives, prompts):
    renderer = rendered(tiny_model, objectives)
    for messages in prompts:
        before = renderer.prefix(messages)
        suffixes = {tuple(renderer.suffix(messages, p)) for p in (None, {"cheer": 0.1}, {"cheer": 0.9})}
        assert len(suffixes) == 3
        assert renderer.prefix(messages) == before


def test_bos_comes_exactly_once_where_the_model_has_one(tiny_llama, tiny_qwen, tiny_gpt2, objectives, prompts):
    # Llama's BOS is put there by its template and by its tokenizer
    renderer = rendered(tiny_llama, objectives)
    bos = renderer.tokenizer.bos_token_id
    assert renderer.tokenizer("a")["input_ids"][0] == bos
    for messages in prompts:
        ids = [*renderer.prefix(messages), *renderer.suffix(messages, {"cheer": 1.0}), *renderer.completion("Yes.")]
        assert ids[0] == bos and ids.count(bos) == 1
    for path in (tiny_qwen, tiny_gpt2):
        renderer = rendered(path, objectives)
        for messages in prompts:
            ids = [*renderer.prefix(messages), *renderer.suffix(messages, {"cheer": 1.0})]
            assert renderer.tokenizer.bos_token_id is None or renderer.tokenizer.bos_token_id not in ids


def test_the_fallback_template_adds_bos_only_where_the_tokenizer_does(tiny_llama, objectives):
    own = tokenizer(tiny_llama)
    own.chat_template = None
    renderer = Renderer(own, objectives)
    ids = renderer.prefix(user("Hi"))
    assert ids[0] == own.bos_token_id and ids.count(own.bos_token_id) == 1
    assert own.decode(ids, skip_special_tokens=True) == "User:\nHi"


def test_a_model_without_template_gets_the_fallback_and_saves_it(tiny_gpt2, objectives, tmp_path):
    renderer = rendered(tiny_gpt2, objectives)
    messages = [SYSTEM, *user("Hi")]
    assert renderer.tokenizer.decode(renderer.prefix(messages)) == "System:\nYou are a poet.\n\nUser:\nHi"
    assert renderer.tokenizer.decode(renderer.suffix(messages, {"cheer": 1.0})) == (
        "\nYour response must satisfy the following scores: <cheer_score:1.00>\n\nAssistant:\n"
    )
    renderer.tokenizer.save_pretrained(tmp_path)
    again = Renderer(tokenizer(tmp_path), objectives)
    assert again.tokenizer.chat_template == FALLBACK_TEMPLATE
    assert again.prefix(messages) == renderer.prefix(messages)


def test_every_tokenizer_gets_a_pad_token(tiny_model, objectives):
    assert rendered(tiny_model, objectives).tokenizer.pad_token_id is not None


def test_text_that_looks_like_the_mark_or_a_profile_changes_nothing(tiny_qwen, objectives):
    renderer = rendered(tiny_qwen, objectives)
    text = "a <brevity_score:0.10> {{ bos_token }} {% raw %}"
    assert renderer.tokenizer.decode(renderer.prefix(user(text))).endswith(text)
    assert renderer.tokenizer.decode(renderer.suffix(user(text), None)) == "<|im_end|>\n<|im_start|>assistant\n"


# --- conversations no template can render -------------------------------------------------------------------------


def test_a_template_that_refuses_a_role_is_bad_input(tiny_qwen, objectives):
    own = tokenizer(tiny_qwen)
    own.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
        "{{ m['content'] }}<|im_end|>{% endfor %}"
    )
    renderer = Renderer(own, objectives)
    assert renderer.prefix(user("Hi"))
    with pytest.raises(InputError, match="no tools here"):
        renderer.prefix([{"role": "tool", "content": "42"}, *user("Hi")])


def test_an_empty_prompt_under_a_template_that_adds_nothing_is_bad_input(tiny_gpt2, objectives):
    own = tokenizer(tiny_gpt2)
    own.chat_template = "{{ messages[-1]['content'] }}"
    renderer = Renderer(own, objectives)
    assert renderer.prefix(user("Hi")) == own("Hi")["input_ids"]
    assert renderer.suffix(user("Hi"), None) == []
    with pytest.raises(InputError, match="the prompt is empty"):
        renderer.prefix(user(""))


@pytest.mark.parametrize("text", ["", "  ", " Hi  "])
def test_a_template_that_strips_white_space_still_does(tiny_llama, objectives, text):
    own, whole = whole_template(tiny_llama, user(text), "")
    renderer = Renderer(own, objectives)
    assert own.decode([*renderer.prefix(user(text)), *renderer.suffix(user(text), None)]) == whole
    assert own.decode(renderer.prefix(user(text))).endswith("<|end_header_id|>\n\n" + text.strip())


@pytest.mark.parametrize("messages", [[], [SYSTEM], [*user("Hi"), {"role": "assistant", "content": "Yes?"}]])
def test_a_prompt_ends_with_the_user(llama, messages):
    with pytest.raises(InputError, match="must end with a user message"):
        llama.prefix(messages)


@pytest.mark.parametrize(
    "template", ["nothing of yours", "{{ messages[-1]['content'] }} {{ messages[-1]['content'] }}"]
)
def test_a_template_must_show_the_prompt_once(tiny_qwen, objectives, template):
    own = tokenizer(tiny_qwen)
    own.chat_template = template
    with pytest.raises(InputError, match="exactly once"):
        Renderer(own, objectives).prefix(user("Hi"))


def test_a_tokenizer_without_any_token_to_pad_with_is_refused(tiny_gpt2, objectives):
    own = tokenizer(tiny_gpt2)
    own.eos_token = own.bos_token = own.unk_token = own.pad_token = None
    with pytest.raises(InputError, match="set its pad_token"):
        Renderer(own, objectives)


# --- completions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fixture", "token"), [("tiny_llama", "<|eot_id|>"), ("tiny_qwen", "<|im_end|>"), ("tiny_gpt2", "<|endoftext|>")]
)
def test_an_answer_ends_with_what_the_template_ends_a_turn_with(request, objectives, fixture, token):
    renderer = rendered(request.getfixturevalue(fixture), objectives)
    end = renderer.tokenizer.convert_tokens_to_ids(token)
    assert renderer.end_of_turn == end
    ids = renderer.completion("It is tea.")
    assert ids[-1] == end and end not in ids[:-1]
    assert renderer.tokenizer.decode(ids[:-1]) == "It is tea."
    assert renderer.completion("It is tea.", finished=False) == ids[:-1]
    assert renderer.completion("") == renderer.completion("", finished=False) == [end]  # nothing else to learn from


def test_the_templates_end_of_turn_goes_before_the_tokenizers_eos(tiny_llama, objectives):
    own = tokenizer(tiny_llama)
    own.eos_token = "<|end_of_text|>"
    renderer = Renderer(own, objectives)
    assert renderer.end_of_turn == own.convert_tokens_to_ids("<|eot_id|>")
    wanted = {own.convert_tokens_to_ids(each) for each in ("<|eot_id|>", "<|end_of_text|>")}
    assert renderer.stop_ids(None) == wanted
    assert renderer.stop_ids(5) == wanted | {5}
    assert renderer.stop_ids([5, 6]) == wanted | {5, 6}


def test_a_tokenizer_that_can_never_end_is_refused(tiny_gpt2, objectives):
    own = tokenizer(tiny_gpt2)
    renderer = Renderer(own, objectives)
    own.eos_token = None
    with pytest.raises(InputError, match="no end-of-sequence token"):
        renderer.completion("Yes.")


# --- echoes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "text", "echo"),
    [
        ("scores", "Sure. <brevity_score:0.20> Tea is a drink.", True),
        ("scores", "It must satisfy the following scores: 1", True),
        ("scores", "Be short. Requested: brevity high", False),
        ("levels", "Requested: brevity high", True),
        ("levels", "with Cheer Very High now", True),
        ("levels", "I requested a cheerful, high tea.", False),
        ("instructions", "Answer in one sentence, please: tea.", True),
        ("instructions", "The cheer of the answer must be very low.", True),
        ("instructions", "Tea is a drink.", False),
    ],
)
def test_echoes(tiny_llama, objectives, style, text, echo):
    assert rendered(tiny_llama, objectives, style=style).echoes(text) is echo


@pytest.mark.parametrize("style", ["scores", "levels", "instructions"])
def test_what_is_rendered_is_an_echo_when_it_is_answered(tiny_llama, objectives, style):
    renderer = rendered(tiny_llama, objectives, style=style)
    for value in (0.0, 0.3, 0.5, 0.7, 1.0):
        profile = dict.fromkeys(("brevity", "cheer", "rude_words"), value)
        assert renderer.echoes("Well. " + renderer.profile_text(profile))
    assert not renderer.echoes("Tea is a drink.")


def test_objectives_need_no_phrases(tiny_llama):
    renderer = rendered(tiny_llama, [Objective("very_kind")], style="instructions")
    assert renderer.profile_text({"very_kind": 0.9}) == "\nThe very kind of the answer must be very high."


def test_the_users_tokens_do_not_count_white_space_that_the_template_strips(tiny_llama):
    from transformers import AutoTokenizer

    renderer = Renderer(AutoTokenizer.from_pretrained(tiny_llama), [])
    trimmed = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}{% endfor %}"
    for template, same in ((trimmed, True), (trimmed.replace(" | trim", ""), False)):
        renderer.tokenizer.chat_template = template
        fresh = Renderer(renderer.tokenizer, [])
        plain, padded = ([{"role": "user", "content": text}] for text in ("hi there", f"{' ' * 30}hi there"))
        assert (fresh.user_tokens(plain) == fresh.user_tokens(padded)) is same
        assert (fresh.prefix(plain) == fresh.prefix(padded)) is same
