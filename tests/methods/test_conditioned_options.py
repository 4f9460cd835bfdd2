"""Every setting of the methods conditioned by likelihood changes what is trained."""

from __future__ import annotations

import dataclasses

import pytest
from safetensors.torch import load_file

from paretune.methods import METHODS
from paretune.methods.settings import SensingConfig
from paretune.training import TrainConfig

HEAD = ("head.width=16", "head.depth=1", "head_epochs=3")
FIXED = {"ric": (), "steer": (), "cpo": ("epochs=2",), "pro": HEAD}
OWN = {
    "ric": {"completions": "1"},
    "steer": {"completions": "1", "condition": "direction"},
    "cpo": {"completions": "1", "sft_epochs": "0", "control": "1", "penalty": "5", "beta": "1"},
    "pro": {"completions": "1", "weight_temperature": "0.05", "weight_sense": "0"},
}
WITH = {"weight_sense": ("backbone_grad_scale=1",)}  # without it only the head is moved, which is fitted anew


def test_the_lists_are_complete():
    shared = {each.name for each in dataclasses.fields(TrainConfig)} | {"preset"}
    for method, own in OWN.items():
        known = {each.name for each in dataclasses.fields(METHODS[method].config)} - shared
        assert own.keys() == known - (
            {each.name for each in dataclasses.fields(SensingConfig)} if method == "pro" else set()
        )


@pytest.mark.parametrize(("method", "key", "value"), [(m, k, v) for m, own in OWN.items() for k, v in own.items()])
def test_every_option_changes_the_policy(quick, method, key, value):
    given = (*FIXED[method], *WITH.get(key, ()))
    one, two = (quick(name, *given, *more, method=method) for name, more in (("one", ()), ("two", (f"{key}={value}",))))
    name = "head.safetensors" if key == "weight_temperature" else "adapter/adapter_model.safetensors"
    first, second = load_file(str(one / name)), load_file(str(two / name))
    assert any((first[each] != second[each]).any() for each in first)


@pytest.mark.parametrize("method", ["ric", "cpo"])
def test_the_published_settings_train(quick, method):
    quick("p", "preset=paper", *(("sft_epochs=0",) if method == "cpo" else ()), method=method)
