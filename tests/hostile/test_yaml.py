"""YAML is plain data within bounds: what is more, or none, is one clear error, at once."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paretune.errors import InputError
from paretune.training import TrainConfig, resolve
from paretune.yaml_text import DEPTH, SIZE, VALUES, parse_yaml

LAUGHS = "\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"] + [
    f"a{i}: &a{i} [{', '.join(f'*a{i - 1}' for _ in range(10))}]" for i in range(1, 12)
])  # fmt: skip


def test_plain_data_is_read_as_the_safe_loader_reads_it() -> None:
    assert parse_yaml("lr: 1e-3\nbetas: [0.9, 0.99]\nhead: {kind: binned, skip: true}\nnote: null") == {
        "lr": "1e-3",  # YAML 1.1 wants a dot; settings take such texts as numbers
        "betas": [0.9, 0.99],
        "head": {"kind": "binned", "skip": True},
        "note": None,
    }
    assert parse_yaml("") is None and parse_yaml("one: &a [1]\ntwo: *a") == {"one": [1], "two": [1]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LAUGHS, f"stands for more than {VALUES} values"),
        ("a: &a [*a]", "a value that holds itself"),
        ("[" * (DEPTH + 5) + "]" * (DEPTH + 5), f"more than {DEPTH} levels"),
        ("x" * (SIZE + 1), f"a text of {SIZE + 1} characters"),
        ("!!python/object/apply:os.system ['touch /tmp/x']", "is not YAML: could not determine a constructor"),
        ("!!python/name:os.system", "is not YAML"),
        ("when: 2026-99-99", "is YAML that cannot be read"),
        ("a: [1, 2", "is not YAML"),
        ("a: 1\n  b: 2", "is not YAML"),
        ("one: 1\n---\ntwo: 2", "is not YAML: but found another document"),
    ],
)
def test_what_is_out_of_bounds_or_no_yaml_is_told(text: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as told:
        parse_yaml(text)
    assert told.value.message.count("YAML") == 1


@given(st.text(alphabet="ab01:-[]{}&*!%|>?,'\"# \n\t.~é\x00", max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_value_or_an_input_error(text: str) -> None:
    try:
        parse_yaml(text)
    except InputError as error:
        assert error.message.startswith("is ")


@given(st.lists(st.text(alphabet="alr=_.h:e{}[]1&*!-\n\t ", max_size=30), max_size=3))
@settings(max_examples=200, deadline=None)
def test_any_settings_are_settings_or_an_input_error(texts: list[str]) -> None:
    try:
        assert isinstance(resolve(TrainConfig, settings=texts), TrainConfig)
    except InputError as error:
        assert error.message
