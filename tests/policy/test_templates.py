"""The renderer over the kinds of chat templates there are: where it cuts, system prompts, several turns, BOS.

The templates are small ones of our own, written the way those of the model families are. The reference is the
template's own text as transformers renders it, tokenised in one piece.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from paretune.policy import Renderer
from paretune.policy.renderer import FALLBACK_TEMPLATE
from tiny_models import CHATML_TEMPLATE, LLAMA_TEMPLATE, SENTENCES, tiny_tokenizer

CHATML_DEFAULT = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    + CHATML_TEMPLATE
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] + ' [/INST]' }}{% else %}{{ ' ' + m['content'] + '</s>' }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else 'user') + '\n' }}"
    "{{ m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
DROPS_SYSTEM = (
    "{% for m in messages %}{% if m['role'] != 'system' %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{{ '<|im_end|>\n' }}{% endif %}{% endfor %}<|im_start|>assistant\n"
)


@dataclass(frozen=True)
class Kind:
    """A template, the special tokens it needs, and whether it has a place for a system prompt."""

    template: str | None
    specials: tuple[str, ...] = ()
    system: bool = True
    bos: str | None = None
    turn_end: str = "<|endoftext|>"


HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
KINDS = {
    "chatml": Kind(CHATML_TEMPLATE, ("<|im_start|>", "<|im_end|>"), turn_end="<|im_end|>"),
    "chatml-default": Kind(CHATML_DEFAULT, ("<|im_start|>", "<|im_end|>"), turn_end="<|im_end|>"),
    "drops-system": Kind(DROPS_SYSTEM, ("<|im_start|>", "<|im_end|>"), system=False, turn_end="<|im_end|>"),
    "llama3": Kind(LLAMA_TEMPLATE, HEADERS, bos="<s>", turn_end="<|eot_id|>"),
    "mistral": Kind(MISTRAL, ("[INST]", "[/INST]", "</s>"), False, "<s>", "</s>"),
    "gemma": Kind(GEMMA, ("<start_of_turn>", "<end_of_turn>"), False, "<bos>", "<end_of_turn>"),
    "none": Kind(None),
}

SYSTEM = {"role": "system", "content": "You are a poet."}
FIRST = [{"role": "user", "content": "What is tea?"}, {"role": "assistant", "content": "A drink."}]
LAST = {"role": "user", "content": "Why is the sky blue?"}
CHATS = {
    "one": [LAST],
    "system": [SYSTEM, LAST],
    "turns": [*FIRST, LAST],
    "system-turns": [SYSTEM, *FIRST, LAST],
}


def tokenizer_of(kind):
    """The GPT-2-like byte-level tokenizer (no pad token), with the kind's special tokens and template."""
    own = tiny_tokenizer("gpt2")
    own.add_tokens([AddedToken(text, special=True) for text in (*kind.specials, *filter(None, [kind.bos]))])
    own.bos_token, own.chat_template = kind.bos, kind.template
    return own


def folded(chat, kind):
    """The conversation as a template of this kind takes it."""
    if kind.system or chat[0]["role"] != "system":
        return chat
    return [{"role": "user", "content": f"{chat[0]['content']}\n\n{chat[1]['content']}"}, *chat[2:]]


def with_text(chat, text):
    """The conversation with `text` at the end of the last user message."""
    return [*chat[:-1], {**chat[-1], "content": chat[-1]["content"] + text}]


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(params=CHATS)
def chat(request):
    return CHATS[request.param]


@pytest.mark.parametrize("profile", [None, {"brevity": 0.5, "cheer": 0.75}])
def test_prefix_and_suffix_are_the_templates_own_tokenisation(kind, chat, objectives, profile):
    renderer = Renderer(tokenizer_of(kind), objectives)
    own = tokenizer_of(kind)
    own.chat_template = kind.template or FALLBACK_TEMPLATE
    said = with_text(folded(chat, kind), renderer.profile_text(profile))
    text = own.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    joined = [*renderer.prefix(chat), *renderer.suffix(chat, profile)]
    assert own.decode(joined) == text
    if kind.template or profile:  # "?\n\n" of the plain template is one piece of text to this tokenizer
        assert joined == own(text, add_special_tokens=False)["input_ids"]


def test_the_prefix_ends_with_the_users_text_and_holds_all_that_was_said_before(kind, chat, objectives):
    renderer = Renderer(tokenizer_of(kind), objectives)
    text = renderer.tokenizer.decode(renderer.prefix(chat))
    assert text.endswith(LAST["content"])
    said = [message["content"] for message in chat]
    assert [text.count(each) for each in said] == [1] * len(said)
    places = [text.index(each) for each in said]
    assert places == sorted(places)
    after = renderer.tokenizer.decode(renderer.suffix(chat, None))
    assert not any(each in after for each in said)


def test_bos_comes_once_where_the_template_writes_it_and_never_else(kind, chat, objectives):
    from tokenizers import processors

    renderer = Renderer(tokenizer_of(kind), objectives)
    joined = [*renderer.prefix(chat), *renderer.suffix(chat, {"cheer": 1.0}), *renderer.completion("Yes.")]
    bos = renderer.tokenizer.bos_token_id
    assert (bos is None) == (kind.bos is None)
    assert bos is None or (joined[0] == bos and joined.count(bos) == 1)
    if bos is not None:  # nor does it where the tokenizer adds one of its own
        own = tokenizer_of(kind)
        own._tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{kind.bos} $A", special_tokens=[(kind.bos, bos)]
        )
        assert own("a")["input_ids"][0] == bos
        adding = Renderer(own, objectives)
        assert adding.prefix(chat) == renderer.prefix(chat)
        assert adding.suffix(chat, {"cheer": 1.0}) == renderer.suffix(chat, {"cheer": 1.0})


def test_the_turn_ends_as_the_template_ends_it(kind, objectives):
    renderer = Renderer(tokenizer_of(kind), objectives)
    assert renderer.end_of_turn == renderer.tokenizer.convert_tokens_to_ids(kind.turn_end)
    assert renderer.tokenizer.pad_token_id is not None


# --- system prompts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gemma", "mistral", "drops-system"])
def test_a_system_prompt_without_a_place_heads_the_first_user_message(name, objectives):
    renderer = Renderer(tokenizer_of(KINDS[name]), objectives)
    for chat in (CHATS["system"], CHATS["system-turns"]):
        whole = [{"role": "user", "content": f"You are a poet.\n\n{chat[1]['content']}"}, *chat[2:]]
        assert renderer.prefix(chat) == renderer.prefix(whole)
        assert renderer.suffix(chat, {"cheer": 0.5}) == renderer.suffix(whole, {"cheer": 0.5})
        assert chat[0] is SYSTEM and chat[1]["content"] in ("What is tea?", "Why is the sky blue?")  # left as it was
    for empty in ("", "  \n"):
        assert renderer.prefix([{"role": "system", "content": empty}, LAST]) == renderer.prefix([LAST])
    two = [SYSTEM, {"role": "system", "content": "Be brief."}, LAST]
    text = renderer.tokenizer.decode(renderer.prefix(two))
    assert text.endswith("You are a poet.\n\nBe brief.\n\nWhy is the sky blue?")


def test_a_default_system_prompt_is_in_the_prefix_until_one_is_given(objectives):
    renderer = Renderer(tokenizer_of(KINDS["chatml-default"]), objectives)
    default = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nWhy is the sky blue?"
    given = "<|im_start|>system\nYou are a poet.<|im_end|>\n<|im_start|>user\nWhy is the sky blue?"
    assert renderer.tokenizer.decode(renderer.prefix([LAST])) == default
    assert renderer.tokenizer.decode(renderer.prefix([SYSTEM, LAST])) == given
    assert renderer.suffix([LAST], None) == renderer.suffix([SYSTEM, LAST], None)


# --- tokenizers that put a space before every text ---------------------------------------------------------------


@pytest.fixture(params=["first", "always"])
def spacing(request):
    """A SentencePiece-like tokenizer, as those of Llama 2 and Mistral."""
    raw = Tokenizer(models.BPE(byte_fallback=False, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=request.param, split=False)
    raw.decoder = decoders.Metaspace(prepend_scheme=request.param, split=False)
    letters = sorted(set("".join(SENTENCES)) | set("<>_:\n[]/abcdefghijklmnopqrstuvwxyz"))
    specials = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=specials, initial_alphabet=letters, show_progress=False
    )
    raw.train_from_iterator(SENTENCES, trainer)
    own = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    own.chat_template = MISTRAL
    return own


@pytest.mark.parametrize("profile", [None, {"cheer": 0.75}])
def test_the_suffix_opens_without_the_space_that_such_a_tokenizer_puts_before_a_text(spacing, objectives, profile):
    assert spacing.convert_ids_to_tokens(spacing("\n", add_special_tokens=False)["input_ids"])[0].startswith("▁")
    renderer = Renderer(spacing, objectives)
    for chat in (CHATS["one"], CHATS["turns"], CHATS["system"]):
        said = with_text(folded(chat, KINDS["mistral"]), renderer.profile_text(profile))
        text = spacing.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        joined = [*renderer.prefix(chat), *renderer.suffix(chat, profile)]
        wanted = spacing(text, add_special_tokens=False)["input_ids"]
        assert spacing.decode(joined) == spacing.decode(wanted)
        if profile:  # without one, this tokenizer may merge the text's last letter with the space before [/INST]
            assert joined == wanted


# --- the read-out -------------------------------------------------------------------------------------------------


def test_what_is_sensed_depends_on_neither_batch_nor_padding_side(tiny_model, make_policy, prompts):
    policy = make_policy(tiny_model)
    together = policy.sense(prompts)
    for side in ("left", "right"):
        policy.tokenizer.padding_side = side
        assert policy.sense(prompts) == together
        for i, messages in enumerate(prompts):
            assert policy.sense([messages])[0] == pytest.approx(together[i], abs=1e-5)
    assert len({tuple(each.values()) for each in together}) == len(prompts)


def test_what_is_sensed_depends_on_system_prompt_and_history(tiny_model, make_policy):
    policy = make_policy(tiny_model)
    sensed = policy.sense(list(CHATS.values()))
    assert len({tuple(round(value, 6) for value in each.values()) for each in sensed}) == len(CHATS)
