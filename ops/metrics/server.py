"""The metrics endpoint of a running campaign."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kernelbraid.agents.campaign import Watch
from kernelbraid.events.event import Recorded
from kernelbraid.events.state import State
from kernelbraid.events.store import Store
from kernelbraid.ops.exits import PortTaken
from kernelbraid.ops.metrics.exposition import LogCollector
from kernelbraid.ops.metrics.process import ProcessMetrics

LOOPBACK = "127.0.0.1"


class RunningCampaign(Collector):
    """Log metrics of the campaign being driven, and the process's own; nothing before its first event."""

    def __init__(self, store: Store, process: ProcessMetrics) -> None:
        self._store = store
        self._process = process
        self._log: LogCollector | None = None
        self._position = 0

    def take(self, recorded: Recorded, state: State) -> None:
        """Told of every event by the driver."""
        self._position = recorded.position
        if self._log is None:
            self._log = LogCollector(self._store, state.campaign)

    def collect(self) -> Iterable[Metric]:
        """Both registries' metrics."""
        log = self._log
        if log is not None:
            self._process.lag_events.set(max(0, self._position - log.position))
            yield from log.collect()
        yield from self._process.registry.collect()


@contextmanager
def serving(store: Store, port: int, address: str = LOOPBACK) -> Iterator[tuple[Store, Watch]]:
    """Serve /metrics while entered; hands out the store to drive with and what to tell of every event.

    Port 0 takes a free one. Raises PortTaken.
    """
    process = ProcessMetrics()
    campaign = RunningCampaign(store, process)
    registry = CollectorRegistry()
    registry.register(campaign)
    try:
        server, thread = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        raise PortTaken(f"metrics cannot be served on {address} port {port}: {error.strerror}") from error
    try:
        yield process.observe(store), campaign.take
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
