"""Rows, profiles, policy descriptions and templates of any content: a value or one `InputError`, nothing else."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paretune.data.formats import parse_row
from paretune.data.records import BadRow
from paretune.errors import InputError
from paretune.policy import Renderer
from paretune.policy.folder import read_objectives
from paretune.profile import check_profile, parse_pins
from tiny_models import tiny_tokenizer

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANY = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner))
FIELDS = st.sampled_from(
    ["id", "prompt", "completions", "completion", "chosen", "rejected", "label", "scores", "wanted", "text", "messages",
     "role", "content", "extra"]
)  # fmt: skip
ROWISH = st.recursive(
    LEAVES | st.sampled_from(["user", "assistant", "system"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=5),
    max_leaves=20,
)
FEW = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(ROWISH | ANY)
@FEW
def test_any_value_is_a_row_or_an_input_error(value: Any) -> None:
    try:
        row = parse_row(value)
    except BadRow as error:  # the reader adds file and line
        assert str(error)
    else:
        assert row.prompt
        for each in row.completions:
            assert all(math.isfinite(score) for score in each.scores.values())


@given(st.dictionaries(st.sampled_from(["a", "b", "c", ""]), LEAVES | ANY))
@FEW
def test_any_profile_is_in_bounds_or_an_input_error(profile: dict[str, Any]) -> None:
    try:
        checked = check_profile(profile, ["a", "b"], partial=True)
    except InputError as error:
        assert error.message
    else:
        assert set(checked) <= {"a", "b"} and all(0 <= value <= 1 for value in checked.values())


@given(st.lists(st.text(alphabet="ab=.019-einfa \n", max_size=10), max_size=3))
@FEW
def test_any_pins_are_in_bounds_or_an_input_error(pins: list[str]) -> None:
    try:
        assert all(0 <= value <= 1 for value in parse_pins(pins, ["a", "b"]).values())
    except InputError as error:
        assert error.message


OBJECTIVE = st.dictionaries(
    st.sampled_from(["name", "reward", "direction", "scale", "scale_kind", "phrases", "help"]), LEAVES | ANY, max_size=5
)
DESCRIPTION: dict[str, Any] = {
    "format": 1,
    "method": "sga",
    "base_model": "base",
    "objectives": [{"name": "a"}],
    "renderer": {},
    "adapter": False,
    "head": None,
}


@given(st.dictionaries(st.sampled_from([*DESCRIPTION, "dtype", "data", "seal"]), ANY | st.lists(OBJECTIVE, max_size=3)))
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_description_of_a_policy_has_objectives_or_is_an_input_error(tmp_path: Path, value: dict[str, Any]) -> None:
    (tmp_path / "policy.json").write_text(json.dumps(DESCRIPTION | value), encoding="utf-8")
    try:
        assert all(each.name for each in read_objectives(tmp_path))
    except InputError as error:
        assert error.message


PIECES = st.sampled_from(
    [
        "{{ messages[0].content }}",
        "{% for m in messages %}",
        "{% endfor %}",
        "{{ m['role'].upper() }}",
        "{% if m %}",
        "{% endif %}\n   ",
        "{{ raise_exception('no') }}",
        "{{ [1] * 10**9 }}",
        "{{ 'x' * 10**12 }}",
        "{{ m.__class__ }}",
        "{{ 1 // 0 }}\n   ",
        "{% set ns = namespace(a=0) %}",
        "{% set ns.a = ns.a + 1 %}",
        "{{ ns }}",
        "{% macro f(x) %}",
        "{% endmacro %}",
        "{{ f(1) }}\n   ",
        "{{ strftime_now('%Y') }}",
        "{% generation %}",
        "{% endgeneration %}",
        "{{ ''.join(messages) }}",
        "{{",
        "%}",
        "text\n   ",
        "{{ bos_token }}",
        "{{ messages[0]['content'] }}",
    ]
)


@given(st.lists(PIECES, max_size=8))
@settings(max_examples=100, deadline=None)
def test_any_template_is_rendered_or_an_input_error(pieces: list[str]) -> None:
    tokenizer = tiny_tokenizer("llama")
    tokenizer.chat_template = "".join(pieces)
    try:
        assert Renderer(tokenizer, []).prefix([{"role": "user", "content": "Hi"}])
    except InputError as error:
        assert error.message


def test_remote_code_is_decided_in_one_place() -> None:
    source = Path(__file__).parents[2] / "src"
    assert [each.name for each in source.rglob("*.py") if "trust_remote_code" in each.read_text("utf-8")] == [
        "pretrained.py"
    ]


@pytest.mark.parametrize("name", ["a: b", "it's", 'a "b" \\ c', "- x", "é\n- y"])
def test_a_card_s_front_matter_is_yaml_whatever_the_base_is_called(name: str) -> None:
    from paretune.files import dump_line
    from paretune.yaml_text import parse_yaml

    assert parse_yaml(f"base_model: {dump_line(name)}") == {"base_model": name}
