"""Tokens to text as they come: nothing is lost, nothing is cut in two, stop texts are never seen."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from paretune.server.engine.text import WINDOW, Shown, Words, byte_alphabet

TEXT = "naïve 🙂 café, 世界! Привет 👩‍👩‍👧 \n\n the end."

BROKEN = [b"\x80", b"\xe2", b"\xf0", b"\x9f"]
"""Bytes that are no character alone."""


@pytest.fixture(scope="module")
def words(tiny_qwen):
    return Words(AutoTokenizer.from_pretrained(tiny_qwen))


@pytest.fixture(scope="module")
def sentencepiece():
    """A tokenizer of Llama 2's kind: spaces as U+2581, characters without a token as byte tokens."""
    pieces = ["<unk>", "▁", "▁the", "▁end", "e", "n", "d", ".", ",", "!"]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, *(f"<0x{byte:02X}>" for byte in range(256))])}
    raw = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Words(PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>"))


def word_ids(words, piece):
    """Token ids of a text, or of one byte."""
    if isinstance(piece, str):
        return words.tokenizer(piece)["input_ids"]
    (char,) = [char for char, byte in byte_alphabet().items() if byte == piece[0]]
    return [words.tokenizer.convert_tokens_to_ids(char)]


def pieces_of(words, ids, stops=()):
    shown = Shown(words, stops)
    out = []
    for token in ids:
        out.append(shown.add(token))
        if shown.stopped:
            return out, True
    return [*out, shown.finish()], shown.stopped


def test_whole_characters_only(words):
    ids = words.tokenizer(TEXT)["input_ids"]
    assert len(ids) > len(TEXT)  # several tokens a character
    pieces, _ = pieces_of(words, ids)
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
    assert sum(map(bool, pieces)) > 20  # and each as soon as it is whole


@settings(deadline=None, max_examples=60)
@given(ids=st.lists(st.integers(0, 399), max_size=120))
def test_put_together_it_is_the_decoding_of_the_whole(words, ids):
    pieces, _ = pieces_of(words, ids)
    assert "".join(pieces) == words.tokenizer.decode(ids, skip_special_tokens=True)


@settings(deadline=None, max_examples=60)
@given(ids=st.lists(st.sampled_from([*BROKEN, "e", " the"]), min_size=40, max_size=120))
def test_broken_characters_in_a_row(words, ids):
    ids = [token for each in ids for token in word_ids(words, each)]
    pieces, _ = pieces_of(words, ids)
    assert "".join(pieces) == words.tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("byte", BROKEN)
def test_a_model_that_repeats_a_broken_character_costs_no_more_than_another(words, monkeypatch, byte):
    shown, (token,) = Shown(words), word_ids(words, byte)
    seen: list[int] = []
    decode = words.decode
    monkeypatch.setattr(words, "decode", lambda ids: (seen.append(len(ids)), decode(ids))[1])
    told = "".join(shown.add(token) for _ in range(300)) + shown.finish()
    assert told == decode([token] * 300)
    assert sum(seen) < 300 * 20 * WINDOW


@settings(deadline=None, max_examples=60)
@given(ids=st.lists(st.one_of(st.integers(1, 9), st.integers(10, 265), st.sampled_from([236, 236 + 2])), max_size=80))
def test_byte_tokens_and_spaces_of_sentencepiece(sentencepiece, ids):
    pieces, _ = pieces_of(sentencepiece, ids)
    assert "".join(pieces) == sentencepiece.tokenizer.decode(ids, skip_special_tokens=True)


def test_a_character_of_byte_tokens_comes_whole(sentencepiece):
    ids = [2, *(10 + byte for byte in "世界".encode()), 3]
    pieces, _ = pieces_of(sentencepiece, ids)
    assert "".join(pieces) == "the世界 end"
    assert pieces[0] == "the"
    assert not any("\ufffd" in piece for piece in pieces)


@settings(deadline=None, max_examples=100)
@given(
    text=st.text(alphabet="aab\n😀.", max_size=40),
    stops=st.lists(st.text(alphabet="ab\n😀", min_size=1, max_size=4), max_size=3),
)
def test_nothing_of_a_stop_text_is_told(words, text, stops):
    ids = words.tokenizer(text)["input_ids"]
    pieces, stopped = pieces_of(words, ids, stops)
    ends = [text.index(stop) for stop in stops if stop in text]
    told = "".join(pieces)
    if not ends:
        assert (told, stopped) == (text, False)
    else:
        # a stop text that is whole first ends it, though a longer one may have begun before
        first = min(text.index(stop) + len(stop) for stop in stops if stop in text)
        assert stopped
        assert text.startswith(told)
        assert len(told) in [text[:end].find(stop) for stop in stops for end in range(first, first + 5)]


def test_what_may_begin_a_stop_text_is_held_back(words):
    shown = Shown(words, ["\n\nUser:"])
    told = [shown.add(token) for token in words.tokenizer("Well.\n\nUse it.")["input_ids"]]
    assert "".join(told) == "Well.\n\nUse it."
    held = "".join(told[: next(i for i, piece in enumerate(told) if "\n" in piece)])
    assert held == "Well."
    assert not any(piece.endswith(("\n", "\nU", "\nUs")) for piece in told)


def test_special_tokens_are_skipped(words):
    end = words.tokenizer.eos_token_id
    ids = [*words.tokenizer("Hi")["input_ids"], end, *words.tokenizer(" you")["input_ids"]]
    assert "".join(pieces_of(words, ids)[0]) == "Hi you"
    assert words.bytes_of(end) == words.tokenizer.eos_token.encode()


def test_bytes_of_tokens_put_together_are_the_text(words, sentencepiece):
    ids = words.tokenizer(TEXT)["input_ids"]
    assert b"".join(words.bytes_of(token) for token in ids) == TEXT.encode()
    assert sentencepiece.bytes_of(10 + 0xE4) == b"\xe4"
    assert sentencepiece.bytes_of(2) == b" the"
    assert words.bytes_of(10**6) == b""


def test_the_byte_alphabet_is_that_of_tokenizers():
    from tokenizers.pre_tokenizers import ByteLevel

    assert set(byte_alphabet()) == set(ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert byte_alphabet()["Ġ"] == ord(" ")
