"""What Prometheus sees."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.core.errors import AskUser

pytestmark = pytest.mark.anyio


def samples(exposition: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


async def test_requests_turns_and_the_present_are_counted(serve):
    failing = False

    async def script(messages, emit):
        if failing:
            raise AskUser("No.", code="no_credit")
        return "yes"

    async with serve(script) as api:
        await api.chat("x", "ann")
        await api.chat("x", "ann", stream=True)
        failing = True
        await api.chat("x", "ben")
        await api.get("/no/such/address/of/a/stranger")
        status, exposition = await api.get("/metrics")
    assert status == 200
    found = samples(exposition)
    assert found["holdfast_http_requests_total", "/v1/chat/completions", "200"] == 2
    assert found["holdfast_http_requests_total", "/v1/chat/completions", "502"] == 1
    assert found["holdfast_http_requests_total", "(nowhere)", "404"] == 1
    assert found["holdfast_turns_total", "ok"] == 2
    assert found["holdfast_turns_total", "failed"] == 1
    assert found["holdfast_turns_total", "stopped"] == 0
    assert found["holdfast_turn_seconds_count",] == 3
    assert found["holdfast_residents",] == 2
    assert found["holdfast_awake_chats",] == 2
    assert found["holdfast_unanswered",] == 0
    assert found["holdfast_rss_bytes",] > 10**6
    assert found["holdfast_descriptors", "the web server"] >= 2, "the listener, and who asks"
    assert found["holdfast_descriptors", "process"] > 3
    assert found["holdfast_build_info", "1.2.3"] == 1


async def test_two_servers_count_for_themselves(serve):
    async with serve() as one:
        await one.chat("x")
    async with serve() as other:
        _, exposition = await other.get("/metrics")
    assert samples(exposition)["holdfast_turns_total", "ok"] == 0
