"""The registry: what is there, and what an unknown name is told."""

from __future__ import annotations

import pytest

from paretune.errors import InputError
from paretune.methods import METHODS, default_config, get_method, register


def test_the_methods_that_are_there():
    assert {"sga", "dpo", "sft"} <= METHODS.keys()
    for name, method in METHODS.items():
        assert method.name == name and method.help and get_method(name) is method


def test_an_unknown_method_is_told_the_nearest():
    with pytest.raises(InputError, match=r"unknown method 'sgaa'. Did you mean 'sga'"):
        get_method("sgaa")


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="registered already"):
        register(METHODS["sga"])


def test_default_settings_are_plain_values():
    import json

    for name in METHODS:
        json.dumps(default_config(name))
    assert default_config("sga")["preset"] == "robust"
    assert default_config("sga")["head"] == {
        "kind": "regression",
        "width": 256,
        "depth": 2,
        "dropout": 0.3,
        "hidden_dropout": 0.3,
        "input_norm": False,
        "standardise_input": True,
        "skip": True,
        "bins": 11,
        "readout": "mean",
        "layer": 0.667,
    }
