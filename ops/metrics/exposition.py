"""Metrics of a log in Prometheus' words: a collector that folds what was appended since the last look."""

import threading
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kernelbraid.events.store import Store
from kernelbraid.projections.ledger import LEDGER
from kernelbraid.projections.metrics import METRICS, Family, metrics
from kernelbraid.projections.projection import STATE, Fold


class LogCollector(Collector):
    """The log-projection of one campaign, caught up by tail at every scrape; safe to use from several threads."""

    def __init__(self, store: Store, campaign: str) -> None:
        self._store = store
        self._campaign = campaign
        self._fold = Fold(STATE, METRICS, LEDGER)
        self._lock = threading.Lock()

    @property
    def position(self) -> int:
        """The last position that the metrics hold."""
        return self._fold.position

    def collect(self) -> Iterable[Metric]:
        """Every family at the log's end, each sample labelled with the campaign."""
        with self._lock:
            self._fold.extend(self._store.read(self._campaign, after=self._fold.position))
            families = metrics(self._fold[STATE], self._fold[METRICS], self._fold[LEDGER])
        return [prometheus_metric(family, self._campaign) for family in families]


def prometheus_metric(family: Family, campaign: str) -> Metric:
    """A family as the client library has it; it appends `_total` to a counter's name itself."""
    metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
    for sample in family.samples:
        metric.add_sample(sample.name, {"campaign": campaign, **dict(sample.labels)}, sample.value)
    return metric


def exposition(store: Store, campaign: str) -> str:
    """The campaign's metrics in Prometheus' text format; the same log gives the same text."""
    registry = CollectorRegistry()
    registry.register(LogCollector(store, campaign))
    return generate_latest(registry).decode()


def families(store: Store, campaign: str) -> list[dict[str, object]]:
    """The same as JSON values."""
    return [
        {
            "name": metric.name,
            "help": metric.documentation,
            "kind": metric.type,
            "samples": [{"name": item.name, "labels": item.labels, "value": item.value} for item in metric.samples],
        }
        for metric in LogCollector(store, campaign).collect()
    ]
