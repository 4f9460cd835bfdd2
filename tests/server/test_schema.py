"""schemathesis over our own OpenAPI schema: whatever is sent, the answer is one that the schema declares."""

from __future__ import annotations

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from server.conftest import Running

load_all_checks()
LEFT_OUT = {"positive_data_acceptance", "max_response_time"}
"""What the schema cannot say: that a conversation ends with the user, or that a request is within the limits."""
CHECKED = [check for check in CHECKS.get_all() if check.__name__ not in LEFT_OUT]
OPERATIONS = {
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/sense",
    "GET /v1/models",
    "GET /v1/models/{model}",
    "GET /v1/objectives",
    "GET /health",
    "GET /metrics",
}


@pytest.fixture(scope="module")
def api(module_tea: Running) -> schemathesis.schemas.BaseSchema:
    """The schema as the server tells it."""
    loaded = schemathesis.openapi.from_dict(json.loads(module_tea.ask("GET", "/openapi.json")[2]))
    loaded.config.update(base_url=module_tea.url)
    return loaded


def test_every_route_is_in_the_schema(api: schemathesis.schemas.BaseSchema) -> None:
    assert {each.ok().label for each in api.get_all_operations()} == OPERATIONS


@pytest.mark.parametrize(
    ("label", "mode"),
    [
        (label, mode)
        for label in sorted(OPERATIONS)
        for mode in GenerationMode
        if label.startswith("POST") or mode is GenerationMode.POSITIVE  # the others take nothing that could be wrong
    ],
)
def test_every_answer_is_declared(api: schemathesis.schemas.BaseSchema, label: str, mode: GenerationMode) -> None:
    operation = next(each.ok() for each in api.get_all_operations() if each.ok().label == label)

    @settings(
        max_examples=40 if operation.body else 3,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=CHECKED, timeout=20)

    ask()
