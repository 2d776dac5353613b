"""The API keeps what its OpenAPI document promises, whatever it is sent: no 500, no undocumented answer."""

import json
import os
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from holdfast.api.operations import document
from holdfast.testing.processes import TOKEN, GatewayProcess, running_gateway

EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "25"))
"""How many requests each operation gets; more for a long look."""

# A schema can't say that the user has the last word or that an id is new, and a parameter that nobody
# knows is a hint which is passed over: neither makes an answer wrong.
NOT_PROMISED = [positive_data_acceptance, negative_data_rejection]

promises = schemathesis.openapi.from_dict(json.loads(document("test")))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@promises.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_promised(case: schemathesis.Case, process: GatewayProcess) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    case.call_and_validate(process.url, headers=headers, excluded_checks=NOT_PROMISED, timeout=30)
