"""Logs that earlier versions of the schema wrote still read, with every hash as it was."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from kernelbraid.events.audit import AuditCompleted, TimingCompleted
from kernelbraid.events.campaign import RootQualified
from kernelbraid.events.errors import EventInvalid
from kernelbraid.events.registry import BY_NAME
from kernelbraid.events.sqlite import SqliteStore
from kernelbraid.events.state import fold
from kernelbraid.events.upcasts import UPCASTS, upcast
from kernelbraid.events.values import Measurement

LOGS = Path(__file__).parent / "logs"
HEADS = {
    "schema-1": "ae3967cdaf04e22402a0dbda7e6103e53a894a07650a08dbb24ff5113c60f1f9",
    "schema-2": "b13fe3cd38a581bef753211a957dc447620ab1da5dabe2765b34c0bb8f04a061",
    "schema-3": "f444158a3ed5b63bd747809befc66a76bd1cfd3ff5a68bf7f8af7a968803b5d0",
    "schema-4": "95c1cb40c4eb9b9af867f4b42c4971bf10beb08287f63e0eebfddd35dfd911a9",
}


@pytest.fixture(params=HEADS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[SqliteStore, str]]:
    """A store that took an old log in, and the campaign's name."""
    store = SqliteStore(tmp_path / "old.db")
    store.import_(LOGS / f"{request.param}.kernelbraid")
    yield store, request.param
    store.close()


def pairs(store: SqliteStore, name: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Every stored payload with the event that it reads as today."""
    for row, recorded in zip(store.rows(name, 1, None), store.read(name), strict=True):
        yield orjson.loads(row.state)["payload"], recorded.event


def test_an_old_log_keeps_its_hashes_and_its_environment(old: tuple[SqliteStore, str]) -> None:
    store, name = old
    # when: it is read by today's schema, where audits and environments have other fields
    state = fold(store.read(name))
    # then: the stored bytes were not touched, and the audits cite the environment as it is known today
    assert store.verify(name, head=HEADS[name]).problems == ()
    assert state.audited_count == sum(isinstance(event, AuditCompleted) for _, event in pairs(store, name)) > 3
    assert all(
        event.environment == state.environment_digest
        for _, event in pairs(store, name)
        if isinstance(event, AuditCompleted | TimingCompleted)
    )


def test_numbers_that_were_records_are_the_same_in_maps(old: tuple[SqliteStore, str]) -> None:
    # given: audits, timings and baselines of a time when every number was a record with a name
    for payload, event in pairs(*old):
        if "latencies" not in payload:
            continue
        if isinstance(event, AuditCompleted | TimingCompleted | RootQualified):
            assert event.latencies_s == {item["workload"]: item["latency_s"] for item in payload["latencies"]}
        if isinstance(event, RootQualified):
            shown = [
                {item["workload"]: item["latency_s"] for item in each["latencies"]} for each in payload["baselines"]
            ]
            assert [baseline.latencies_s for baseline in event.baselines] == shown
        if isinstance(event, AuditCompleted):
            assert event.resources == {item["name"]: item["value"] for item in payload["resources"]}
        if isinstance(event, AuditCompleted | TimingCompleted) and event.measurement is not None:
            compare(event.measurement, payload["measurement"])


def compare(measurement: Measurement, stored: Mapping[str, Any]) -> None:
    """The measurement has the numbers that were stored."""
    ratios = {item["workload"]: item["ratio"] for item in stored.get("by_workload", ())}
    limits = {item["workload"]: (item["ratio"], item["upper_bound_ratio"]) for item in stored["limits"]}
    assert measurement.incumbent_ratios == ratios
    together = {
        name: (ratio, measurement.root_upper_bound_ratios[name]) for name, ratio in measurement.root_ratios.items()
    }
    assert together == limits
    unchanged = stored.keys() - {"by_workload", "limits", "blocks"}
    assert {name: getattr(measurement, name) for name in unchanged} == {name: stored[name] for name in unchanged}


def test_checks_that_were_records_are_the_same_in_maps(old: tuple[SqliteStore, str]) -> None:
    # given: audits of a time when every check was a record of four fields
    for payload, event in pairs(*old):
        if isinstance(event, AuditCompleted) and "checks" in payload:
            assert [check._asdict() for check in event.checks] == payload["checks"]


def test_sessions_were_not_recorded_then(old: tuple[SqliteStore, str]) -> None:
    for _, event in pairs(*old):
        assert not isinstance(event, AuditCompleted | TimingCompleted | RootQualified) or event.sessions is None


def test_the_old_logs_hold_whatever_was_cast() -> None:
    # given / then: an upcast that no stored log needs would be proven by nothing
    seen = set()
    for name in HEADS:
        store = SqliteStore(None)
        store.import_(LOGS / f"{name}.kernelbraid")
        records = (orjson.loads(row.state) for row in store.rows(name, 1, None))
        seen |= {(record["type"], record["version"]) for record in records}
        store.close()
    assert UPCASTS.keys() <= seen


def test_one_duration_counts_as_timing() -> None:
    # when: the first audit's form goes through every step up to today's
    new = upcast("AuditCompleted", {"elapsed_s": 2.0, "action": None, "checks": []}, 1, AuditCompleted.version, UPCASTS)
    # then
    assert (new["build_s"], new["check_s"], new["timing_s"]) == (0.0, 0.0, 2.0)
    assert "elapsed_s" not in new


def test_a_schema_of_the_future_is_refused() -> None:
    today = AuditCompleted.version
    with pytest.raises(EventInvalid, match="install a newer one"):
        upcast("AuditCompleted", {}, today + 1, today, UPCASTS)


def test_every_step_to_today_is_there() -> None:
    assert {(name, step) for name, kind in BY_NAME.items() for step in range(1, kind.version)} == UPCASTS.keys()
