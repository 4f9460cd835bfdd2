"""What rows say: labels, preferences, ratings, margins; what is refused; how prompts become packed items."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paretune.data.rows import Completion, Row
from paretune.errors import InputError
from paretune.policy.packed import Branch
from paretune.profile import Objective
from paretune.reward_model.config import RewardConfig
from paretune.reward_model.examples import RewardExample, items_of
from paretune.reward_model.supervision import Comparison, Rating, Supervision, choose_objectives
from tiny_rewards import pair_row


def rated(*scores, name="good", **row):
    completions = tuple(Completion(f"answer {k}", {name: score}) for k, score in enumerate(scores))
    return Row([{"role": "user", "content": "Hi"}], completions, id=row.pop("id", "r"), **row)


def fitted(rows, names=("good",), **config):
    objectives = [Objective(n.removeprefix("-"), direction="minimise" if n[0] == "-" else "maximise") for n in names]
    supervision = Supervision(objectives, RewardConfig(**config))
    supervision.fit(rows)
    return supervision


def test_labels_are_about_the_named_objective_and_all_of_them_count():
    row = pair_row(0, "yes", "no")
    more = replace(row, completions=(*row.completions, Completion("nay", label="rejected")))
    pairs, equal = fitted([more], ("safe",), preference="safe").pairs(more)
    assert pairs == [Comparison(0, 1, 0), Comparison(0, 2, 0)] and equal == 0


def test_preferences_of_several_objectives_may_disagree():
    row = rated(None, None, None, preferences={"good": ((0, 1), (1, 2)), "safe": ((2, 0),)})
    pairs, _ = fitted([row], ("good", "safe")).pairs(row)
    assert pairs == [Comparison(0, 1, 0), Comparison(1, 2, 0), Comparison(2, 0, 1)]


def test_pairs_of_equal_texts_say_nothing_and_are_counted():
    rows = [pair_row(0, "same", "same"), pair_row(1, "a", "b")]
    supervision = fitted(rows, ("preference",))
    assert supervision.pairs(rows[0]) == ([], 1)


def test_ratings_become_pairs_beyond_the_margin_and_by_direction():
    row = rated(1.0, 3.0, 3.5, None)
    assert [(p.winner, p.loser) for p in fitted([row], pairs_from_ratings=True).pairs(row)[0]] == [
        (1, 0),
        (2, 0),
        (2, 1),
    ]
    far = fitted([row], pairs_from_ratings=True, pair_margin=0.5)
    assert [(p.winner, p.loser) for p in far.pairs(row)[0]] == [(1, 0), (2, 0)]
    turned = fitted([row], ("-good",), pairs_from_ratings=True, pair_margin=0.5)
    assert [(p.winner, p.loser) for p in turned.pairs(row)[0]] == [(0, 1), (0, 2)]


def test_many_pairs_of_ratings_are_drawn_by_the_seed():
    row = rated(*range(12))

    def drawn(**config):
        return fitted([row], pairs_from_ratings=True, **config).pairs(row)[0]

    assert len(drawn(max_pairs=0)) == 66 and len(drawn(max_pairs=10)) == 10
    assert drawn(max_pairs=10) == drawn(max_pairs=10) != drawn(max_pairs=10, seed=1)
    assert all(pair.winner > pair.loser for pair in drawn(max_pairs=10))


def test_margins_are_rating_differences_in_standard_deviations():
    rows = [pair_row(0, "a", "b", chosen={"good": 4.0}, rejected={"good": 1.0}), pair_row(1, "c", "d")]
    settings = {"preference": "good", "margin": "ratings"}
    supervision = fitted(rows, **settings)
    assert supervision.scales[0].std == 1.5
    assert [p.margin for row in rows for p in supervision.pairs(row)[0]] == [2.0, 0.0]
    assert fitted(rows, **settings, margin_scale=0.5).pairs(rows[0])[0][0].margin == 1.0
    assert fitted(rows, preference="good").pairs(rows[0])[0][0].margin == 0


def test_source_says_what_is_used_and_units_follow():
    row = rated(1.0, 2.0, preferences={"good": ((1, 0),)})

    def found(**config):
        supervision = fitted([row], **config)
        return supervision.units, len(supervision.pairs(row)[0]), len(supervision.ratings(row))

    assert found() == (["rating"], 1, 2)
    assert found(source="pairs") == (["logit"], 1, 0)
    assert found(source="ratings") == (["rating"], 0, 2)
    assert found(loss="ordinal") == (["ordinal"], 1, 2)
    assert found(source="ratings", pairs_from_ratings=True, rating_weight=0) == (["logit"], 1, 0)


@pytest.mark.parametrize(
    ("rows", "config", "message"),
    [
        ([rated(2.0, 2.0)], {}, "all 2 ratings of objective 'good' equal 2"),
        ([rated(None, None)], {}, "says anything about objective 'good'"),
        ([rated(1.0, 2.0)], {"source": "pairs"}, "says anything about objective 'good'"),
        ([rated(1.0, 2.0)], {"source": "ratings", "rating_weight": 0}, "says anything about"),
        ([rated(*(i / 7 for i in range(12)))], {"loss": "ordinal"}, "12 distinct ratings"),
        ([rated(-1e308, 1e308)], {}, "float32 cannot tell such numbers apart"),
        ([rated(1e200, 2e200)], {}, "give them another unit"),
        ([rated(0.0, 1e-60)], {}, "give them another unit"),
        ([rated(1e9, 1e9 + 2)], {}, "subtract a constant"),
    ],
)
def test_what_nothing_can_be_learnt_from_is_refused(rows, config, message):
    with pytest.raises(InputError, match=message):
        fitted(rows, **config)


def test_objectives_are_found_by_source_and_named_wrongly_they_are_refused(tmp_path):
    rows = [rated(1.0, 2.0, preferences={"safe": ((0, 1),)}), pair_row(0, "a", "b")]

    def names(wanted=(), **config):
        return [each.name for each in choose_objectives(tmp_path / "rows.jsonl", rows, RewardConfig(**config), wanted)]

    assert names() == ["good", "safe", "preference"]
    assert names(source="pairs", preference="liked") == ["safe", "liked"]
    assert names(source="ratings") == ["good"]
    assert names(["safe", "good"]) == ["safe", "good"]
    [only] = choose_objectives(tmp_path / "rows.jsonl", rows, RewardConfig(), ["-safe"])
    assert only.direction == "minimise"
    with pytest.raises(InputError, match="Did you mean 'safe'"):
        names(["save"])
    with pytest.raises(InputError, match="no row has scores"):
        choose_objectives(tmp_path / "rows.jsonl", rows[1:], RewardConfig(source="ratings"), [])


def test_directions_come_from_the_objectives_beside_the_rows(tmp_path):
    from paretune.data import store_objectives

    store_objectives(tmp_path / "rows.jsonl", [Objective("good", "column:good", "minimise")])
    [objective] = choose_objectives(tmp_path / "rows.jsonl", [rated(1.0, 2.0)], RewardConfig(), [])
    assert (objective.name, objective.direction) == ("good", "minimise")
    [told] = choose_objectives(tmp_path / "other.jsonl", [rated(1.0, 2.0)], RewardConfig(), [], {"good"})
    assert told.direction == "minimise", "by the format of the data"


def example(pairs, ratings, count, length=10):
    branches = {k: Branch([1], [100 + k] * length) for k in range(count)}
    return RewardExample(rated(1.0), [5, 6, 7], branches, pairs, ratings)


def test_an_example_within_the_budget_is_one_item():
    pairs, ratings = [Comparison(1, 0, 0, 0.5), Comparison(1, 2, 1)], [Rating(k, 0, float(k)) for k in range(4)]
    [item] = items_of(example(pairs, ratings, 4), budget=1000)
    texts = [each.completion[0] - 100 for each in item.branches]
    assert sorted(texts) == [0, 1, 2, 3]
    assert {(texts[p.winner], texts[p.loser], p.objective, p.margin) for p in item.pairs} == {
        (1, 0, 0, 0.5),
        (1, 2, 1, 0.0),
    }
    assert sorted((texts[r.answer], r.value) for r in item.ratings) == [(k, float(k)) for k in range(4)]


def test_a_large_example_is_split_and_every_pair_and_rating_stands_in_one_item():
    pairs = [Comparison(i, j, 0) for i in range(8) for j in range(8) if i > j]
    ratings = [Rating(k, m, k + m / 10) for k in range(10) for m in range(2)]
    items = items_of(example(pairs, ratings, 10), budget=50)
    assert len(items) > 2 and all(item.packed.length <= 50 for item in items)

    def text(item, k):
        return item.branches[k].completion[0] - 100

    found = [(text(item, p.winner), text(item, p.loser)) for item in items for p in item.pairs]
    assert sorted(found) == sorted((p.winner, p.loser) for p in pairs)
    rated_ = [(text(item, r.answer), r.objective, r.value) for item in items for r in item.ratings]
    assert sorted(rated_) == sorted((r.answer, r.objective, r.value) for r in ratings)


def test_one_pair_always_fits():
    [item] = items_of(example([Comparison(0, 1, 0)], [], 2, length=40), budget=10)
    assert len(item.branches) == 2 and len(item.pairs) == 1
