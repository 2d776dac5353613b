"""What Prometheus can ask for. Counting is adding to a number; the rest is looked up when it asks."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from holdfast.api.surface import Surface
from holdfast.core.messages import Outcome
from holdfast.gateway.descriptors import count_by_owner, list_descriptors
from holdfast.gateway.tally import BOUNDS
from holdfast.gateway.watch import rss

CONTENT_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")

_OUTCOMES: tuple[Outcome, ...] = ("ok", "stopped", "failed")


class Metrics(Collector):
    """The figures of one server. Everything happens on one loop, so counting needs no lock."""

    def __init__(self, surface: Surface) -> None:
        self._surface = surface
        self._requests: Counter[tuple[str, int]] = Counter()
        """By route and status: both few, and neither from a client's mouth."""

    def count_request(self, route: str, status: int) -> None:
        self._requests[route, status] += 1

    def exposition(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "holdfast_http_requests", "HTTP requests by route and status.", labels=("route", "status")
        )
        for (route, status), count in sorted(self._requests.items()):
            requests.add_metric((route, str(status)), count)
        yield requests
        turns = CounterMetricFamily("holdfast_turns", "Turns by outcome.", labels=("outcome",))
        for outcome in _OUTCOMES:
            turns.add_metric((outcome,), self._surface.gateway.tally.outcomes[outcome])
        yield turns
        yield self._histogram()
        gateway = self._surface.gateway
        for name, described, value in (
            ("holdfast_awake_chats", "Chats in memory.", len(gateway.awake)),
            ("holdfast_residents", "Sessions with a warm agent.", len(gateway.residents)),
            ("holdfast_unanswered", "Accepted messages without an answer.", gateway.unanswered),
            ("holdfast_rss_bytes", "Resident memory of the process.", rss()),
        ):
            yield GaugeMetricFamily(name, described, value)
        yield self._descriptors()
        build = GaugeMetricFamily("holdfast_build_info", "The version that runs.", labels=("version",))
        build.add_metric((self._surface.version,), 1)
        yield build

    def _descriptors(self) -> Metric:
        """Without a sample where the system does not tell."""
        metric = GaugeMetricFamily("holdfast_descriptors", "Open descriptors of the process.", labels=("owner",))
        counts = count_by_owner(list_descriptors(self._surface.ledger) or [])
        for owner, count in sorted(counts.items()):
            metric.add_metric((owner,), count)
        return metric

    def _histogram(self) -> Metric:
        tally = self._surface.gateway.tally
        buckets, total = [], 0
        for bound, count in zip((*BOUNDS, float("inf")), tally.buckets, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        described = "From a message's acceptance to its answer."
        return HistogramMetricFamily("holdfast_turn_seconds", described, buckets, tally.seconds)
