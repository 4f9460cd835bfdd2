"""What every method promises, whatever it is: a row for each, with one, two and four objectives.

It trains on the tiny model, saves, loads and answers (under weights where it takes them), gives the same bytes when it
is killed and started again, and refuses settings it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from measured_rows import write_measured
from methods.test_resume import killed, same
from paretune.errors import InputError
from paretune.files import read_json
from paretune.methods import METHODS, train
from paretune.policy import load_policy
from paretune.training import loop

NAMES = ("letters", "short", "vowels", "spaces")
PROMPTS = ["What is tea?", "What is it that the owls want from us?"]
SHARED = ("dtype=float32", "epochs=1", "batch_size=4", "lora_r=4", "lr=1e-3")
_HEAD = ("head.width=16", "head.depth=1", "head_epochs=2")
QUICK: dict[str, tuple[str, ...]] = {
    "cpo": ("epochs=2",),
    "grpo": ("num_generations=2", "max_completion_length=4"),
    "pro": _HEAD,
    "sga": _HEAD,
}
"""What makes a method quick, where the shared settings are not enough."""
CASES = [(name, ()) for name in sorted(METHODS)] + [("steer", ("condition=direction",))]
NO_RESUME = {"grpo"}
"""TRL's trainer keeps no checkpoints that we could load without pickle."""

case = pytest.mark.parametrize(
    ("method", "settings"), CASES, ids=["-".join([name, *settings]) for name, settings in CASES]
)
Go = Callable[..., Path]


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Go:
    """Trains once for each method, settings and number of objectives (`fresh` names another folder) and gives it."""
    work = tmp_path_factory.mktemp("matrix")

    def run(method: str, settings: tuple[str, ...], count: int, fresh: str = "") -> Path:
        pytest.importorskip("trl") if method == "grpo" else None
        out = work / f"{'-'.join([method, *settings, str(count)])}{fresh}"
        if not out.exists():
            data = work / f"{count}.jsonl"
            data = data if data.exists() else write_measured(data, *NAMES[:count])
            kept = () if method in NO_RESUME else ("save_every=1",)
            train(method, data, str(tiny_llama), out, settings=[*SHARED, *kept, *QUICK.get(method, ()), *settings])
        return out

    return run


def test_the_quick_settings_are_of_methods_that_exist():
    assert QUICK.keys() <= METHODS.keys() and METHODS.keys() >= NO_RESUME


@pytest.mark.parametrize("count", [1, 2, 4])
@case
def test_it_trains_saves_loads_and_answers(go, method, settings, count):
    folder = go(method, settings, count)
    policy, names = load_policy(folder), list(NAMES[:count])
    assert (policy.method, policy.names) == (method, names) == (read_json(folder / "policy.json")["method"], names)
    tensors = [load_file(str(path)) for path in sorted(folder.glob("adapter*/**/adapter_model.safetensors"))]
    assert tensors and all(torch.isfinite(each).all() for part in tensors for each in part.values())
    for part in tensors:
        assert any(each.abs().max() > 0 for name, each in part.items() if "lora_B" in name)  # it has learnt something
    metrics = read_json(folder / "metrics.json")
    assert metrics["steps"] >= 2 and metrics["seconds"] > 0
    answers = policy.generate(PROMPTS, max_new_tokens=3)
    assert len(answers) == 2 and all(0 < each.tokens <= 3 for each in answers)
    if policy.has_head:
        for sensed, answer in zip(policy.sense(PROMPTS), answers, strict=True):
            assert list(sensed) == names and answer.sensed == pytest.approx(sensed, abs=1e-5)
    if policy.takes_profile:
        wanted = dict.fromkeys(names, 0.75)
        given = policy.generate(PROMPTS, condition=wanted, max_new_tokens=1)
        assert all(each.profile == policy.request(wanted) for each in given)


@pytest.mark.parametrize("count", [1, 2, 4])
@case
def test_it_takes_weights_or_says_that_it_does_not(go, method, settings, count):
    policy = load_policy(go(method, settings, count))
    weights = {name: float(name == policy.names[-1]) for name in policy.names}
    if not policy.takes_weights:
        with pytest.raises(InputError, match=f"a policy trained by '{method}' takes no preference weights"):
            policy.generate(PROMPTS, weights=weights)
        return
    equal = dict.fromkeys(policy.names, 1 / count)
    both = policy.generate(PROMPTS, weights=[weights, equal], max_new_tokens=3)
    alone = policy.generate(PROMPTS[:1], weights=weights, max_new_tokens=3)[0]
    assert (both[0].text, both[0].profile) == (alone.text, alone.profile)
    for wrong in ({"letters": 0.7}, {"letters": -1.0}, {"color": 1.0}, [equal]):
        with pytest.raises(InputError, match="weight"):
            policy.generate(PROMPTS, weights=wrong)


@case
def test_killed_and_started_again_it_gives_the_same_bytes(go, monkeypatch, method, settings):
    if method not in NO_RESUME:
        killed(monkeypatch, lambda: go(method, settings, 2, "-again"), loop, "_accumulate", 2)
    same(go(method, settings, 2, "-again"), go(method, settings, 2))


@case
def test_it_refuses_settings_that_it_does_not_know(tmp_path, tiny_llama, method, settings):
    data = write_measured(tmp_path / "rows.jsonl", *NAMES[:2])
    with pytest.raises(InputError, match=r"unknown setting 'batch_sizes'\. Did you mean 'batch_size'"):
        train(method, data, str(tiny_llama), tmp_path / "p", settings=[*settings, "batch_sizes=3"])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rows.jsonl", "rows.objectives.json"]
