"""`trained:FOLDER#objective`: its form, its scores alone and in any batch, one pass for all objectives of a folder."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from paretune.data import read_rows
from paretune.errors import InputError
from paretune.profile import Objective
from paretune.reward_model import load_reward_model
from paretune.reward_model import reward as module
from paretune.reward_model.model import RewardModel
from paretune.rewards import build_reward, can_score_new, list_rewards, parse_objective, score_rows
from paretune.rewards.spec import expand_objective
from tiny_models import make_tiny


@pytest.fixture(autouse=True)
def fresh():
    yield
    module.KIND.release()


def user(text):
    return [{"role": "user", "content": text}]


PROMPTS = [user("What is number 1?"), user("Hi"), user("What is number 1?"), user("Tell me a joke. " * 20)]
TEXTS = ["Please yes 1.", "Never.", "No, never, " * 30 + "never 1.", ""]


def scores(spec, prompts=PROMPTS, texts=TEXTS):
    return build_reward(Objective("x", spec))(list(prompts), list(texts), {})


def test_it_is_listed_and_scores_new_answers():
    assert any(spec.startswith("trained:") for spec, _ in list_rewards())
    assert can_score_new(parse_objective("x=trained:some/folder#kind"))


def test_the_registry_and_the_form_of_a_spec_need_no_torch():
    code = (
        "import sys\nfrom importlib import import_module\nimport_module('paretune.reward_model.reward')\n"
        "print([name for name in ('torch', 'transformers', 'peft') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_scores_are_the_models(trained):
    model = load_reward_model(trained, dtype="float32")
    wanted = model.score(PROMPTS, TEXTS)
    for name in ("kind", "polite"):
        assert scores(f"trained:{trained}#{name}") == [each[name] for each in wanted]
    assert all(math.isfinite(value) for each in wanted for value in each.values())


def test_a_score_is_the_same_alone_in_any_batch_and_packed_as_a_plain_forward(trained):
    import torch

    spec = f"trained:{trained}#kind"
    whole = scores(spec)
    assert scores(spec, PROMPTS[::-1], TEXTS[::-1])[::-1] == pytest.approx(whole, abs=1e-5)
    many = scores(spec, PROMPTS * 40, TEXTS * 40)
    assert many == pytest.approx(whole * 40, abs=1e-5)
    model = load_reward_model(trained, dtype="float32")
    for prompt, text, found in zip(PROMPTS, TEXTS, whole, strict=True):
        assert scores(spec, [prompt], [text]) == [pytest.approx(found, abs=1e-5)]
        ids = [*model.renderer.prefix(prompt), *model.renderer.suffix(prompt, None), *model.renderer.completion(text)]
        with torch.no_grad():
            states = model.module.causal(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1]
            plain = model.module.head.values(model.module.head(states[:, -1]))[0, 0].item()
        assert plain == pytest.approx(found, abs=1e-5)


def test_what_is_longer_than_the_context_loses_the_beginning_of_its_prompt(trained):
    model = load_reward_model(trained, dtype="float32")
    start = "word " * 600
    [one] = model.score([user(f"{start}What is tea?")], ["Please."])
    [two] = model.score([user(f"other {start}What is tea?")], ["Please."])
    [three] = model.score([user(f"{start}What is tea?")], ["Never."])
    assert one == two and one != three


def test_objectives_of_a_folder_share_one_pass(trained, monkeypatch):
    passes = []
    once = RewardModel.raw
    monkeypatch.setattr(RewardModel, "raw", lambda self, *a, **k: passes.append(1) or once(self, *a, **k))
    kind, polite = (build_reward(Objective("x", f"trained:{trained}#{name}")) for name in ("kind", "polite"))
    one = kind(PROMPTS, TEXTS, {})
    assert polite(PROMPTS, TEXTS, {}) != one and len(passes) == 1
    assert kind(PROMPTS[:2], TEXTS[:2], {}) == pytest.approx(one[:2], abs=1e-5) and len(passes) == 2
    shares = module.KIND.shares
    assert shares(f"{trained}#kind") == shares(f"{trained}#polite") != shares(f"{trained}#kind?base=elsewhere")


def test_rows_are_scored_and_ratings_come_in_their_unit(trained, rows_file):
    rows = read_rows(rows_file)
    asked = [Objective("k", f"trained:{trained}#kind"), Objective("p", f"trained:{trained}#polite")]
    scored = [each.scores for row in score_rows(rows, asked) for each in row.completions]
    mean = sum(each["k"] for each in scored) / len(scored)
    assert 0.5 < mean < 3.5 and {"kind", "k", "p"} == set(scored[0])


def test_a_star_stands_for_all_objectives(trained):
    found = expand_objective(f"*=trained:{trained}#*")
    assert [(each.name, each.spec) for each in found] == [
        (name, f"trained:{trained.resolve()}#{name}") for name in ("kind", "polite")
    ]
    [first, _] = expand_objective(f"-rm.*=trained:{trained}#*?base=some/model")
    assert (first.name, first.direction) == ("rm_kind", "minimise") and first.spec.endswith("#kind?base=some/model")
    with pytest.raises(InputError, match="names one objective"):
        expand_objective(f"*=trained:{trained}#kind")


def test_a_minimised_objective_stays_one(quick):
    folder = quick("both-ways", objectives=["-kind", "polite"])
    found = {each.name: each.direction for each in expand_objective(f"rm.*=trained:{folder}#*")}
    assert found == {"rm_kind": "minimise", "rm_polite": "maximise"}
    for name, spec, direction in [("x", "kind", "minimise"), ("-x", "kind", "minimise"), ("x", "polite", "maximise")]:
        assert parse_objective(f"{name}=trained:{folder}#{spec}").direction == direction
    assert parse_objective(f"x=trained:{quick('one', objectives=['-kind'])}").direction == "minimise"
    assert parse_objective("x=trained:no/such/folder#kind").direction == "maximise"  # told of where it is loaded


@pytest.mark.parametrize("listed", [[{"name": "kind"}], [3], [None], [{"name": 1, "direction": 2, "unit": []}]])
def test_a_malformed_description_is_told_before_a_model_is_loaded(trained, tmp_path, listed):
    described = json.loads((trained / "reward.json").read_text()) | {"objectives": listed}
    (tmp_path / "reward.json").write_text(json.dumps(described))
    with pytest.raises(InputError, match=r"wrong type|unknown unit"):
        expand_objective(f"*=trained:{tmp_path}#*")


def test_the_objective_may_be_left_out_where_there_is_one(quick):
    folder = quick("one", objectives=["kind"])
    assert scores(f"trained:{folder}") == scores(f"trained:{folder}#kind")


def test_a_folder_trained_anew_is_loaded_anew(quick):
    folder = quick("again", objectives=["kind"])
    before, mark = scores(f"trained:{folder}"), module.KIND.fingerprint(str(folder))
    assert mark == module.KIND.fingerprint(f"{folder}#kind")
    quick("again", objectives=["kind"], overwrite=True, seed=5)
    assert scores(f"trained:{folder}") != before and module.KIND.fingerprint(str(folder)) != mark


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "needs the folder"),
        ("#kind", "needs the folder"),
        ("{folder}?base=", "needs a model folder"),
        ("{folder}", "name one: trained:FOLDER#objective"),
        ("{folder}#kid", "Did you mean 'kind'"),
        ("{folder}#*", "stands for all objectives"),
        ("{folder}/adapter", "no reward model"),
        ("{folder}/nothing", "no such folder"),
        ("{folder}#kind?base={other}", "another base model"),
    ],
)
def test_bad_specs(trained, tmp_path_factory, spec, message):
    other = tmp_path_factory.getbasetemp() / "other-base"
    if "{other}" in spec:
        make_tiny(other, "qwen", seed=3)
    with pytest.raises(InputError, match=message):
        scores("trained:" + spec.format(folder=trained, other=other))
