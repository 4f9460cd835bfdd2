"""The parts of online rounds, worked out by hand: goals, keep rules, mixtures, the gain, what is asked of options."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paretune.data import Completion, Row, prompt_key
from paretune.errors import InputError
from paretune.methods.improve import ImproveOptions
from paretune.methods.improve.gain import compare, distances
from paretune.methods.improve.goals import Goals
from paretune.methods.improve.keep import Mixer, above_any, add_to_pool, on_front, thresholds
from paretune.methods.improve.publish import last_sentence, round_sentence
from paretune.methods.improve.rounds import _unusable
from paretune.methods.improve.work import Work
from paretune.policy.weights import WeightMap
from paretune.profile import Objective, Scale

NAMES = ["a", "b"]
OBJECTIVES = [Objective(name, "lexical:brevity", scale=Scale("fixed"), scale_kind="fixed") for name in NAMES]
ENDS = WeightMap("profile", {"a": 0.2, "b": 0.1}, {"a": 0.9, "b": 0.8})
SENSED = {"a": 0.5, "b": 0.9}


def goals(senses: bool = True, ends: WeightMap = ENDS) -> Goals:
    return Goals(NAMES, ends, senses)


def test_samples_are_sensed_raised_and_at_the_frontier():
    asked = goals().samples(5, "key", SENSED, [], 0.2)
    assert [each.kind for each in asked] == ["sensed", "raised", "frontier", "raised", "frontier"]
    assert asked[0].profile == SENSED
    raised = [each.profile for each in asked if each.kind == "raised"]
    assert sorted(tuple(each.values()) for each in raised) == [(0.5, 1.0), (0.7, 0.9)]  # clipped at 1
    free = set()
    for each in (each.profile for each in asked if each.kind == "frontier"):
        below = [name for name in NAMES if each[name] != ENDS.high[name]]
        assert len(below) <= 1
        free |= set(below)
        assert all(ENDS.low[name] <= each[name] <= ENDS.high[name] for name in NAMES)
    assert free == {"a", "b"}  # each objective has its turn


def test_samples_depend_on_their_key_alone():
    again = [goals().samples(6, key, SENSED, [], 0.2) for key in ("1", "1", "2")]
    assert again[0] == again[1] != again[2]


def test_without_a_head_the_goals_are_of_the_frontier_and_of_the_data():
    own = [{"a": 0.3, "b": 0.3}, {"a": 0.4, "b": 0.6}]
    asked = goals(senses=False).samples(4, "key", None, own, 0.2)
    assert [each.kind for each in asked] == ["frontier", "data", "frontier", "data"]
    assert sorted(each.profile["a"] for each in asked[1::2]) == [0.3, 0.4]
    assert {each.kind for each in goals(senses=False).samples(4, "key", None, [], 0.2)} == {"frontier"}


def test_an_only_objective_has_its_frontier_at_the_top():
    one = Goals(["a"], WeightMap("profile", {"a": 0.2}, {"a": 0.9}), True)
    assert [each.profile for each in one.samples(4, "key", {"a": 0.5}, [], 0.1)[1:]] == [
        {"a": 0.6},
        {"a": 0.9},
        {"a": 0.6},
    ]
    assert [each.kind for each in one.sweep({"a": 0.5})] == ["sensed", "alike"]


def test_requests_of_weights_sum_to_one():
    weights = goals(ends=WeightMap("direction"))
    asked = [*weights.samples(7, "key", {"a": 0.3, "b": 0.7}, [], 0.2), *weights.sweep({"a": 0.3, "b": 0.7})]
    assert all(sum(each.profile.values()) == pytest.approx(1) for each in asked)
    raised = next(each.profile for each in asked if each.kind == "raised" and each.profile["a"] > 0.3)
    assert raised == pytest.approx({"a": 0.5, "b": 0.5})
    assert not weights.of_values


def test_the_sweep_asks_for_each_objective_alone_and_for_all():
    points = {each.kind: each.profile for each in goals().sweep(SENSED)}
    assert list(points) == ["sensed", "alike", "only a", "only b"]
    assert points["only a"] == pytest.approx({"a": 0.9, "b": 0.1})
    assert points["only b"] == pytest.approx({"a": 0.2, "b": 0.8})
    assert points["alike"] == pytest.approx({"a": 0.2 + 0.7 / 2**0.5, "b": 0.1 + 0.7 / 2**0.5})
    assert "sensed" not in {each.kind for each in goals(senses=False).sweep(None)}


def test_the_front_by_hand():
    values = np.array([[0.2, 0.9], [0.5, 0.5], [0.6, 0.6], [np.nan, 1.0], [0.6, 0.6], [0.6, 0.1]])
    assert on_front(values).tolist() == [True, False, True, False, True, False]
    assert on_front(np.full((2, 2), np.nan)).tolist() == [False, False]


def test_the_quantile_rule_by_hand():
    values = np.array([[0.0, 0.5], [0.1, 0.5], [0.2, np.nan], [0.3, 0.1], [0.4, 0.2]])
    bounds = thresholds(values)
    # a: position .7 * 4 = 2.8 of 0, .1, .2, .3, .4; b: .7 * 3 = 2.1 of .1, .2, .5, .5
    assert bounds == pytest.approx([0.28, 0.5])
    assert above_any(values, bounds).tolist() == [True, True, False, True, True]
    nothing = np.full((2, 1), np.nan)
    assert above_any(nothing, thresholds(nothing)).tolist() == [False, False]


def made(text: str, a: float | None, b: float | None, **more: str) -> Completion:
    return Completion(text, {"a": a, "b": b}, **more)


def asked(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Question {number}"}]


def rows(*completions: Completion, count: int = 4) -> list[Row]:
    return [Row(asked(k), completions, id=f"r{k}", wanted={"a": 0.5}, extra={"topic": k}) for k in range(count)]


def pool(samples: dict[int, list[Completion]]) -> dict[str, list[Completion]]:
    return {prompt_key(asked(k)): own for k, own in samples.items()}


def mixed(rule: str, data: list[Row], samples: dict[int, list[Completion]], share: float = 0.0, *, pairs: bool = False):
    earlier: dict[str, list[Completion]] = {}
    add_to_pool(earlier, data)
    return Mixer(rule, OBJECTIVES, pairs=pairs, key="round-1").mix(data, earlier, pool(samples), share, 0)  # type: ignore[arg-type]


def test_the_front_is_that_of_all_known_completions():
    data = rows(made("old", 0.2, 0.9), made("weak", 0.5, 0.5))
    found = mixed("pareto", data, {0: [made("new", 0.6, 0.6), made("worse", 0.1, 0.1)], 1: [made("bad", 0.1, 0.2)]})
    assert [row.id for row in found.rows] == ["r0@round-1"]  # every sample of prompt 1 is dominated
    row = found.rows[0]
    assert [each.text for each in row.completions] == ["old", "new"]
    assert row.completions[1].scores == {"a": 0.6, "b": 0.6}  # what was obtained
    assert (row.prompt, row.wanted, row.extra) == (asked(0), {"a": 0.5}, {"topic": 0})
    assert found.counts == {"samples": 1, "prompts": 1, "earlier": 1, "rows": 1, "originals": 0, "counterparts": 0}


def test_a_method_of_pairs_keeps_the_lowest_beside_one_that_stands_alone():
    data = rows(made("old", 0.2, 0.2), made("weak", 0.5, 0.5))
    for pairs, texts in ((True, ["new", "old"]), (False, ["new"])):
        found = mixed("pareto", data, {0: [made("new", 0.6, 0.6)]}, pairs=pairs)
        assert [each.text for each in found.rows[0].completions] == texts
        assert found.counts["counterparts"] == int(pairs)


def test_the_rule_of_ric_looks_at_samples_alone():
    data = rows(made("old", 0.9, 0.9))
    samples = {k: [made(f"new {k}", k / 10, 0.1)] for k in range(4)}
    samples[0].append(made("unscored", None, None))
    found = mixed("ric", data, samples)
    # a's quantile lies between .2 and .3, and all are at b's: every scored sample
    assert [row.id for row in found.rows] == [f"r{k}@round-1" for k in range(4)]
    assert [len(row.completions) for row in found.rows] == [1, 1, 1, 1]
    samples = {k: [made(f"new {k}", k / 10, k / 10)] for k in range(4)}
    assert [row.id for row in mixed("ric", data, samples).rows] == ["r3@round-1"]


def test_originals_are_filtered_by_the_rule_and_others_than_the_rounds_come_first():
    data = rows(made("old", 0.2, 0.9), made("weak", 0.1, 0.5), made("other", 0.9, 0.2), count=6)
    samples = {k: [made("new", 0.8, 0.8)] for k in (0, 1)}
    found = mixed("pareto", data, samples, 0.5)
    assert (found.counts["prompts"], found.counts["originals"], found.counts["rows"]) == (2, 2, 4)
    originals = found.rows[2:]
    assert not {row.id for row in originals} & {"r0", "r1"}
    assert all([each.text for each in row.completions] == ["old", "other"] for row in originals)
    assert [row.id for row in mixed("pareto", data, samples, 0.5).rows] == [row.id for row in found.rows]
    all_of_them = mixed("pareto", data, samples, 0.9)
    assert all_of_them.counts["originals"] == 6  # there are no more


def test_rows_of_labels_stay_whole():
    data = [*rows(made("old", 0.2, 0.9), count=1)]
    data.append(
        Row(asked(9), (made("yes", None, None, label="chosen"), made("no", None, None, label="rejected")), id="r9")
    )
    found = mixed("pareto", data, {0: [made("new", 0.9, 0.1)]}, 0.5)
    assert found.rows[1] is data[1]


def test_nothing_sampled_gives_nothing_to_train_on():
    assert mixed("pareto", rows(made("old", 0.2, 0.9)), {}, 0.5).rows == []


def test_samples_that_are_not_trained_on():
    def sample(text: str, a: float | None, *, echo: bool = False) -> Completion:
        return Completion(text, {"a": a, "b": None}, extra={"sampled": {"echo": echo}})

    causes = [
        _unusable(each, {"known"}, NAMES) for each in (sample("", 1), sample("x", 1, echo=True), sample("known", 1))
    ]
    assert causes == ["empty", "echoes", "duplicates"]
    assert _unusable(sample("x", None), set(), NAMES) == "without_any_score"
    assert _unusable(sample("x", 0.0), set(), NAMES) == ""


def answered(path: Path, *prompts: list[tuple[str, float | None, float | None]]) -> Path:
    """A file of scored answers: of each prompt the requests' kinds with what was obtained; (.5, .5) was asked."""
    with path.open("w") as file:
        for at, points in enumerate(prompts):
            completions = [
                {"text": "x", "scores": {"a": a, "b": b}, "sampled": {"kind": kind, "asked": {"a": 0.5, "b": 0.5}}}
                for kind, a, b in points
            ]
            file.write(json.dumps({"id": str(at), "prompt": f"Question {at}", "completions": completions}) + "\n")
    return path


def test_the_gain_by_hand(tmp_path):
    before = answered(
        tmp_path / "before.jsonl",
        [("one", 0.2, 0.8), ("two", 0.6, 0.2)],
        [("one", 0.4, 0.6), ("two", 0.8, 0.4)],
        [("one", 1.0, 1.0), ("two", None, 1.0)],  # this prompt counts for neither
    )
    after = answered(
        tmp_path / "after.jsonl",
        [("one", 0.3, 0.7), ("two", 0.9, 0.1)],
        [("one", 0.3, 0.7), ("two", 0.9, 0.3)],
        [("one", 1.0, 1.0), ("two", 1.0, 1.0)],
    )
    found = compare(before, after, OBJECTIVES)
    # means (.3, .7) and (.7, .3): .3 * .7 + .4 * .3; then (.3, .7) and (.9, .2): .3 * .7 + .6 * .2
    assert found["before"]["value"] == pytest.approx(0.33) and found["after"]["value"] == pytest.approx(0.33)
    assert found["difference"]["value"] == pytest.approx(0, abs=1e-12)
    assert (found["prompts"], found["left_out"], found["reference"]) == (2, 1, {"a": 0.0, "b": 0.0})
    assert compare(before, before, OBJECTIVES)["difference"]["high"] == 0
    nothing = answered(tmp_path / "nothing.jsonl", *[[("one", None, 1.0), ("two", 1.0, 1.0)]] * 3)
    assert compare(before, nothing, OBJECTIVES)["before"]["value"] is None


def test_distances_by_hand(tmp_path):
    path = answered(tmp_path / "a.jsonl", [("sensed", 0.2, 0.8), ("raised", 0.5, None)], [("sensed", 0.5, 0.5)])
    assert distances(path, OBJECTIVES) == pytest.approx({"all": 0.1, "sensed": 0.15, "raised": 0.0})


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"n": 3}, "n must be at least 4, found 3"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"prompts_per_round": 0}, "prompts_per_round must be at least 1"),
        ({"keep": "parato"}, "Did you mean 'pareto'"),
        ({"originals": 1.0}, r"a share in \[0, 1\), found 1.0"),
        ({"delta": 1.5}, r"delta must lie in \[0, 1\]"),
        ({"delta": float("nan")}, "delta must be a finite number"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"top_p": 0.0}, "top_p must lie in"),
        ({"settings": ("validation=0",)}, "'validation' is a setting of the data"),
    ],
)
def test_options_out_of_range(option, said):
    with pytest.raises(InputError, match=said):
        ImproveOptions(**option)


def test_a_work_folder_is_of_one_call(tmp_path):
    out, said = tmp_path / "new", []
    identity = {"options": {"n": 4, "delta": 0.2}}
    Work(out, identity, restart=False, note=said.append)
    work = Work(out, identity, restart=False, note=said.append)
    (work.part("start") / "answers.jsonl").write_text("x")
    assert said == []
    Work(out, identity, restart=False, note=said.append)
    assert said == ["continuing the rounds in .new.improve"]
    with pytest.raises(InputError, match=r"options.n was 4 and is 5. Pass --restart"):
        Work(out, {"options": {"n": 5, "delta": 0.2}}, restart=False, note=said.append)
    assert (work.folder / "start" / "answers.jsonl").exists()
    Work(out, {"options": {"n": 5, "delta": 0.2}}, restart=True, note=said.append)
    assert not (work.folder / "start").exists()


def test_what_ends_the_work_is_told_what_was_kept(tmp_path):
    said: list[str] = []
    work = Work(tmp_path / "new", {}, restart=False, note=said.append)
    with pytest.raises(InputError, match=r"^out of order$"), work.kept():
        raise InputError("out of order")
    assert not work.folder.exists()  # nothing was done
    work = Work(tmp_path / "new", {}, restart=False, note=said.append)
    (work.part("start") / "answers.jsonl").write_text("x")
    with pytest.raises(InputError, match=r"kept in .new.improve, and the same command goes on from there"), work.kept():
        raise InputError("out of order")
    with pytest.raises(InputError, match="the disk is full"), work.kept():
        raise OSError(28, "No space left on device")
    with pytest.raises(KeyboardInterrupt), work.kept():
        raise KeyboardInterrupt
    assert len(said) == 1 and (work.folder / "start" / "answers.jsonl").exists()


def test_sentences():
    value = {"before": {"value": 0.4}, "after": {"value": 0.45}, "prompts": 40}
    gain = value | {"difference": {"value": 0.05, "low": 0.01, "high": 0.09}}
    record = {"round": 1, "kept": True, "why": "the validation hypervolume rose", "hypervolume": gain}
    assert round_sentence(record) == (
        "Round 1 was kept: the validation hypervolume rose, 0.4000 before and 0.4500 after (+0.0500, 95% interval "
        "[+0.0100, +0.0900], 40 prompts)."
    )
    lost = {"round": 2, "kept": False, "why": "no sample was kept", "hypervolume": None}
    assert round_sentence(lost) == "Round 2 was not kept: no sample was kept."
    figures = {"hypervolume_before": 0.4, "hypervolume_after": 0.45}
    assert last_sentence([record, lost], "p", figures).startswith("1 of the 2 rounds was kept: the validation hyperv")
    none = "the validation hypervolume, so this is the policy p as it was."
    assert last_sentence([lost], "p", figures) == f"The round did not raise {none}"
    assert last_sentence([lost, lost], "p", figures) == f"None of the 2 rounds raised {none}"
    assert last_sentence([record], "p", figures).startswith("The round was kept: the validation hypervolume of p was")
