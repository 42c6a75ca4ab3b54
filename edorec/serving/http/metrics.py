"""Prometheus metrics of one server. Labels are routes, statuses, inputs, versions: never ids."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

_SECONDS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05),
    *(0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
)
_ROWS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


class Metrics:
    """The counters, gauges and histograms, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self.requests = Counter(
            "edorec_requests", "Requests answered.", ["route", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "edorec_request_seconds",
            "Time from a request's headers to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.rows = Counter("edorec_rows", "Rows scored.", registry=registry)
        self.batch_rows = Histogram(
            "edorec_batch_rows", "Rows scored together.", buckets=_ROWS, registry=registry
        )
        self.score_seconds = Histogram(
            "edorec_score_seconds", "Scoring of a batch.", buckets=_SECONDS, registry=registry
        )
        self.queue_seconds = Histogram(
            "edorec_queue_seconds",
            "Wait of a request for its batch.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.queue_rows = Gauge("edorec_queue_rows", "Rows waiting now.", registry=registry)
        self.missing_inputs = Counter(
            "edorec_missing_inputs",
            "Requests that left an input out of every row.",
            ["input"],
            registry=registry,
        )
        self.ignored_names = Counter(
            "edorec_ignored_names",
            "Names in requests that are no input of the model.",
            registry=registry,
        )
        self.reloads = Counter(
            "edorec_reloads", "Loads of a model version.", ["outcome"], registry=registry
        )
        self.model = Gauge(
            "edorec_model_info", "1 for the version that serves.", ["version"], registry=registry
        )
