"""Old schema versions made new: pure functions on a payload, applied on every read and never written back.

An event's hash covers its stored bytes, so an upcast never breaks the chain.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kernelbraid.events.errors import EventInvalid

Payload = dict[str, Any]
Upcast = Callable[[Payload], Payload]
"""Takes a copy of the stored payload, which it may change and hand back; what is nested in it is shared."""


def _audit_time_by_stage(payload: Payload) -> Payload:
    """Version 1 kept one duration for a whole audit; all of it counts as timing, where most of it went."""
    elapsed_s = payload.pop("elapsed_s")
    return {**payload, "build_s": 0.0, "check_s": 0.0, "timing_s": elapsed_s}


def _audit_in_maps(payload: Payload) -> Payload:
    """Version 2 kept every measured number as a record of its own with the name beside it."""
    payload["resources"] = _by_name(payload.get("resources", ()), "name", "value")
    return _timing_in_maps(payload)


def _timing_in_maps(payload: Payload) -> Payload:
    if payload.get("measurement") is not None:
        payload["measurement"] = _measurement_in_maps(dict(payload["measurement"]))
    return _latencies_in_a_map(payload)


def _measurement_in_maps(measurement: Payload) -> Payload:
    """The limits themselves are dropped: the contract has them, and none was recorded that differed from it."""
    limits = measurement.pop("limits", ())
    measurement["incumbent_ratios"] = _by_name(measurement.pop("by_workload", ()), "workload", "ratio")
    measurement["root_ratios"] = _by_name(limits, "workload", "ratio")
    measurement["root_upper_bound_ratios"] = _by_name(limits, "workload", "upper_bound_ratio")
    return measurement


def _qualified_in_maps(payload: Payload) -> Payload:
    payload["baselines"] = [_latencies_in_a_map(dict(baseline)) for baseline in payload.get("baselines", ())]
    return _latencies_in_a_map(payload)


def _latencies_in_a_map(payload: Payload) -> Payload:
    payload["latencies_s"] = _by_name(payload.pop("latencies", ()), "workload", "latency_s")
    return payload


def _audit_with_cases(payload: Payload) -> Payload:
    """Version 3 kept a record a check, whose evidence was empty unless it failed."""
    checks = payload.pop("checks")
    payload["cases"] = _by_name(checks, "name", "cases")
    payload["failures"] = {check["name"]: check.get("evidence", "") for check in checks if not check["passed"]}
    return payload


def _without_sessions(payload: Payload) -> Payload:
    """Before this version no figures of the timing sessions were recorded; the blocks are there and would give them."""
    return {**payload, "sessions": None}


def _by_name(records: Iterable[Payload], name: str, value: str) -> Payload:
    return {record[name]: record[value] for record in records}


UPCASTS: dict[tuple[str, int], Upcast] = {
    ("AuditCompleted", 1): _audit_time_by_stage,
    ("AuditCompleted", 2): _audit_in_maps,
    ("AuditCompleted", 3): _audit_with_cases,
    ("AuditCompleted", 4): _without_sessions,
    ("TimingCompleted", 1): _timing_in_maps,
    ("TimingCompleted", 2): _without_sessions,
    ("RootQualified", 1): _qualified_in_maps,
    ("RootQualified", 2): _without_sessions,
}
"""(type name, version) to the function that turns that version's payload into the next version's."""


def upcast(name: str, payload: Payload, version: int, today: int, table: Mapping[tuple[str, int], Upcast]) -> Payload:
    """The payload of `name` at version `today`, one version after another. Raises EventInvalid where a step lacks."""
    if version > today:
        raise EventInvalid(f"{name} has schema version {version}, this kernelbraid knows {today}: install a newer one")
    for step in range(version, today):
        function = table.get((name, step))
        if function is None:
            raise EventInvalid(f"no upcast leads {name} from schema version {step} to {step + 1}")
        payload = function(dict(payload))
    return payload
