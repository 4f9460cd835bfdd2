"""From pairs to encoded examples: what is kept, what is dropped and counted, and what the head is taught."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from paretune.data import Completion, Row, build_pairs
from paretune.errors import InputError
from paretune.methods.examples import Dropped, encode, single_pairs
from paretune.policy import Renderer
from paretune.profile import Objective, Scale

OBJECTIVES = [Objective("a", scale=Scale("fixed")), Objective("b", scale=Scale("fixed"))]


def row(*completions, name="r", prompt="What is tea?", wanted=None):
    return Row([{"role": "user", "content": prompt}], tuple(completions), name, wanted)


def answer(text, a, b=None, **extra):
    return Completion(text, {"a": a, "b": b}, extra=extra)


@pytest.fixture
def renderer(tiny_llama):
    return Renderer(AutoTokenizer.from_pretrained(tiny_llama), OBJECTIVES)


def examples(renderer, rows, max_length=400, **options):
    dropped = Dropped()
    return encode(
        build_pairs(rows, OBJECTIVES)[0], renderer, max_length=max_length, dropped=dropped, **options
    ), dropped


def test_chosen_then_rejected_then_the_rest(renderer):
    texts = [answer("mid", 0.5, 0.5), answer("low", 0.1, 0.2), answer("high", 0.9, 0.8), answer("other", 0.4, None)]
    (example,), dropped = examples(renderer, [row(*texts)])
    assert [renderer.tokenizer.decode(each.ids[:-1]) for each in example.answers] == ["high", "low", "mid", "other"]
    assert [each.profile for each in example.answers] == [
        {"a": 0.9, "b": 0.8},
        {"a": 0.1, "b": 0.2},
        {"a": 0.5, "b": 0.5},
        {"a": 0.4},
    ]
    assert dropped.to_dict() == {}


def test_targets_are_the_chosen_ones_scores_to_two_decimals(renderer):
    (example,), _ = examples(renderer, [row(answer("x", 0.876, None), answer("y", 0.1, 0.2))])
    assert example.target == {"a": 0.88}  # a missing score is absent, not zero
    assert example.answers[0].profile == {"a": 0.876}


def test_wanted_targets(renderer):
    rows = [row(answer("x", 0.9, 0.3), answer("y", 0.1, 0.2), wanted={"a": 0.25})]
    (chosen,), _ = examples(renderer, rows)
    assert renderer.tokenizer.decode(chosen.answers[0].ids[:-1]) == "y"  # the nearest to what is wanted
    assert chosen.target == {"a": 0.1, "b": 0.2}
    (wanted,), _ = examples(renderer, rows, targets="wanted")
    assert wanted.target == {"a": 0.25, "b": 0.2}


def test_an_answer_that_was_cut_off_does_not_teach_to_stop(renderer):
    (example,), _ = examples(renderer, [row(answer("yes", 0.9, finished=False), answer("no", 0.1, finished=True))])
    assert renderer.end_of_turn not in example.answers[0].ids
    assert example.answers[1].ids[-1] == renderer.end_of_turn


def test_rows_that_do_not_fit_are_dropped_and_counted(renderer):
    good = row(answer("yes", 0.9), answer("no", 0.1), name="good")
    long_prompt = row(answer("yes", 0.9), answer("no", 0.1), name="long", prompt="word " * 300)
    long_answer = row(answer("yes " * 300, 0.9), answer("no", 0.1), name="pair")
    long_third = row(answer("yes", 0.9), answer("no", 0.1), answer("hm " * 300, 0.5), name="third")
    kept, dropped = examples(renderer, [good, long_prompt, long_answer, long_third], max_length=200)
    assert [each.row.id for each in kept] == ["good", "third"] and len(kept[1].answers) == 2
    assert dropped.to_dict() == {"prompts_too_long": 1, "pairs_too_long": 1, "completions_too_long": 1}
    for bad, message in (
        (long_prompt, "row 'long': the prompt of"),
        (long_answer, "row 'pair': the pair does not fit"),
    ):
        with pytest.raises(InputError, match=message):
            examples(renderer, [bad], max_length=200, strict=True)


def test_everything_kept_fits(renderer):
    pairs = {n: (answer("yes " * n, 0.9, 0.11), answer("no", 0.1, 1.0)) for n in range(1, 60, 3)}
    rows = [row(*pair, name=str(n), prompt="why " * n) for n, pair in pairs.items()]
    kept, _ = examples(renderer, rows, max_length=200)
    assert 0 < len(kept) < len(rows)
    for example in kept:
        for profile in (None, example.target, {"a": 1.0, "b": 1.0}):
            branch = example.branch(0, profile)
            assert len(example.prefix) + len(branch.suffix) + len(branch.completion) <= 200


def test_single_completions_pair_with_themselves():
    (pair,) = single_pairs([row(answer("only", 0.3, 0.4)), row(answer("x", 0.1), answer("y", 0.2)), row()], OBJECTIVES)
    assert pair.chosen is pair.rejected and pair.target == {"a": 0.3, "b": 0.4}


def test_rows_in_which_nothing_wins_are_of_use_to_methods_that_teach_scored_completions():
    tie, half = row(answer("x", 0.4, 0.6), answer("y", 0.6, 0.4)), row(answer("x", 0.1), answer("y", 0.2, 0.3))
    unscored = row(answer("x", 0.1), answer("y", 0.2))
    assert single_pairs([tie, half, unscored], OBJECTIVES) == []
    first, second = single_pairs([tie, half, unscored], OBJECTIVES, scored=True)
    assert first.row is tie and first.chosen is first.rejected and first.chosen.text == "x"
    assert second.chosen.text == "y" and second.target == {"a": 0.2, "b": 0.3}
