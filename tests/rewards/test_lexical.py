"""Lexical objectives by hand-worked texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from paretune.errors import InputError
from paretune.rewards import build_reward, list_rewards, parse_objective
from paretune.rewards.lexical import MEASURES, brevity, positivity, question, readability, sentences, words

MEASURED = [*MEASURES]


def score(spec: str, *texts: str) -> list[float | None]:
    return build_reward(parse_objective(f"x={spec}"))(
        [[{"role": "user", "content": "p"}]] * len(texts), list(texts), {}
    )


def test_words_and_sentences() -> None:
    assert words("Don't stop: well-known, 3.5 times_two!") == ["Don't", "stop", "well-known", "3", "5", "times", "two"]
    assert words("你好 world カタ") == ["你", "好", "world", "カ", "タ"]
    assert sentences('He said "No." Then 3.5 came! Why?\n\n- a list\n- ...\n') == [
        'He said "No.',
        "Then 3.5 came!",
        "Why?",
        "- a list",
    ]
    assert sentences("好。吗？") == ["好。", "吗？"]


def test_brevity_and_length() -> None:
    assert score("lexical:brevity", "One two three.", "", "...") == [-3.0, 0.0, 0.0]
    assert score("lexical:length", "One two three.", "") == [3.0, 0.0]
    assert str(brevity("")) == "0.0"


def test_readability_is_minus_the_automated_readability_index() -> None:
    # 3 + 3 + 3 + 2 + 3 + 3 = 17 characters, 6 words, 2 sentences: 4.71 * 17/6 + 0.5 * 6/2 - 21.43
    assert readability("The cat sat. It was fat.") == pytest.approx(-(4.71 * 17 / 6 + 0.5 * 3 - 21.43))
    assert readability("...") is None
    easy, hard = score(
        "lexical:readability",
        "We eat. We nap.",
        "Institutional considerations notwithstanding, parliamentarians deliberated.",
    )
    assert easy is not None and hard is not None and easy > hard


def test_question_share() -> None:
    assert question('Is it? "Is it?" No. Yes!') == 0.5
    assert question("吗？好。") == 0.5
    assert question("") == 0.0


def test_positivity_orders_tones_and_is_a_mean_over_sentences() -> None:
    happy, plain, sad = "I love this wonderful day!", "The box is on the table.", "This is a horrible, sad loss."
    assert positivity(happy) > positivity(plain) == 0.0 > positivity(sad)
    assert positivity(f"{happy} {sad}") == pytest.approx((positivity(happy) + positivity(sad)) / 2)
    assert positivity(" ".join([happy] * 50)) == pytest.approx(positivity(happy))  # length alone adds nothing
    assert positivity("") == 0.0


def test_word_list(tmp_path: Path) -> None:
    path = tmp_path / "polite.txt"
    path.write_text("please # the word\nThank\n\n# nothing\nwell-known\n")
    assert score(f"lexical:words:{path}", "Please, THANK you well-known", "no", "") == [0.75, 0.0, 0.0]


@pytest.mark.parametrize(
    ("content", "cause"), [("a\ntwo words\n", "line 2: one word a line"), ("# none\n", "empty"), (b"\xff", "UTF-8")]
)
def test_bad_word_lists(tmp_path: Path, content: str | bytes, cause: str) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=cause):
        score(f"lexical:words:{path}", "a")
    with pytest.raises(InputError, match="no such word list"):
        score(f"lexical:words:{path}.none", "a")


@pytest.mark.parametrize("name", MEASURED)
def test_every_measure_is_listed_has_five_phrases_and_takes_any_text(name: str) -> None:
    assert f"lexical:{name}" in dict(list_rewards())
    assert len(parse_objective(f"x=lexical:{name}").phrases) == 5
    for text in ("", " ", "?", "\n", "a" * 5000, "🎉🎉", "\x00", "мир", "e.g. i.e. ..."):
        (value,) = score(f"lexical:{name}", text)
        assert value is None or value == value


def test_a_text_without_an_end_takes_no_time_to_speak_of() -> None:
    """Its 120,000 words are one sentence, over which VADER alone would take a quarter of an hour."""
    endless = positivity("good and bad " * 40_000)
    assert -1 <= endless <= 1
    assert positivity("good " * 400) == positivity("good " * 800)  # twice the same part
