"""Served metrics, and the files that name them."""

import json
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import kernelbraid.ops
from kernelbraid.agents import search
from kernelbraid.events.event import Recorded
from kernelbraid.events.state import State
from kernelbraid.events.store import open_store
from kernelbraid.ops.exits import PortTaken
from kernelbraid.ops.metrics.server import LOOPBACK, serving
from tests.ops.conftest import call, simulated

OPS = Path(kernelbraid.ops.__file__).parent
NAME = re.compile(r"\bkernelbraid_[a-z_]+")


def free_port() -> int:
    """A port that nobody holds now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a running campaign serves, looked at after its fifth audit."""
    port, pages = free_port(), []
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('metrics')}/kernelbraid.db")
    with serving(store, port) as (driven, watcher):

        def watch(recorded: Recorded, state: State) -> None:
            watcher(recorded, state)

        search.run("linear", store=driven, audits=5, harness=simulated, watch=watch)
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics") as reply:
            pages.append(reply.read().decode())
    store.close()
    return pages[0]


def test_log_and_process_metrics_are_served_side_by_side(served: str) -> None:
    families = {family.name: family for family in text_string_to_metric_families(served)}
    audits = {sample.labels["verdict"]: sample.value for sample in families["kernelbraid_audits"].samples}
    appends = {sample.name: sample.value for sample in families["kernelbraid_process_append_seconds"].samples}

    assert audits["verified"] == 6
    assert appends["kernelbraid_process_append_seconds_count"] > 20
    assert "kernelbraid_process_lock_wait_seconds" in families
    assert "kernelbraid_process_lag_events" in families


@pytest.mark.parametrize("file", ["grafana/campaign.json", "prometheus/alerts.yml"])
def test_every_metric_that_is_named_is_served(served: str, file: str) -> None:
    samples = {sample.name for family in text_string_to_metric_families(served) for sample in family.samples}
    declared = set(re.findall(r"^# TYPE (\S+)", served, re.MULTILINE))

    named = set(NAME.findall((OPS / file).read_text()))

    assert named
    assert named - samples - declared == set()


def test_the_dashboard_is_valid_and_its_panels_have_queries() -> None:
    board = json.loads((OPS / "grafana/campaign.json").read_text())

    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(target["expr"] for panel in board["panels"] for target in panel["targets"])


def test_a_port_that_is_taken_is_said_so(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind((LOOPBACK, 0))
        holder.listen()
        port = holder.getsockname()[1]

        result = call(tmp_path / "kernelbraid.db", "run", "linear", "--metrics-port", str(port))

        assert result.exit_code == 1
        assert f"port {port}" in result.stderr
        store = open_store(":memory:")
        with pytest.raises(PortTaken), serving(store, port):
            pass
        store.close()
