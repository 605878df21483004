"""What the state keeps of every submission and every measurement: canonical JSON bytes, read when somebody asks.

A pydantic value takes half a kilobyte of memory however little it says, and an implementation has dozens of them; a
state of two hundred thousand implementations would need gigabytes. Packed, without the names of their fields, they
take what their content takes, and equal values have equal bytes.
"""

from collections.abc import Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

import orjson

from kernelbraid.events.event import Value
from kernelbraid.events.values import Latency, LimitCheck, Measurement, Region, Resource, SourceFile, WorkloadRatio

V = TypeVar("V", bound=Value)
Row = list[Any]
"""A value's fields in their order, as JSON holds them."""

PACKED_TYPES: tuple[type[Value], ...] = (
    SourceFile,
    Region,
    Latency,
    WorkloadRatio,
    LimitCheck,
    Measurement,
    Resource,
)
ROWS = {kind: attrgetter(*kind.model_fields) for kind in PACKED_TYPES}
READ_BYTES_CACHED = 1024
"""How many packed values stay read: a search looks at the same few parents again and again."""


class Submission(Value):
    """What the editor handed in, but for its blobs."""

    sources: tuple[SourceFile, ...]
    regions: tuple[Region, ...]


class Findings(Value):
    """What was measured of an implementation; empty until it was."""

    latencies: tuple[Latency, ...]
    measurement: Measurement | None
    resources: tuple[Resource, ...]


def pack_submission(sources: tuple[SourceFile, ...], regions: tuple[Region, ...]) -> bytes:
    """Bytes that `submission` reads."""
    return _pack(_rows(SourceFile, sources), _rows(Region, regions))


def pack_findings(
    latencies: tuple[Latency, ...], measurement: Measurement | None, resources: tuple[Resource, ...]
) -> bytes:
    """Bytes that `findings` reads."""
    compared = None if measurement is None else ROWS[Measurement](measurement)
    return _pack(_rows(Latency, latencies), compared, _rows(Resource, resources))


@lru_cache(maxsize=READ_BYTES_CACHED)
def submission(packed: bytes) -> Submission:
    """The submission that was packed."""
    sources, regions = orjson.loads(packed)
    return Submission(sources=_values(SourceFile, sources), regions=_values(Region, regions))


@lru_cache(maxsize=READ_BYTES_CACHED)
def findings(packed: bytes) -> Findings:
    """The findings that were packed."""
    latencies, measurement, resources = orjson.loads(packed)
    return Findings(
        latencies=_values(Latency, latencies),
        measurement=None if measurement is None else _measurement(measurement),
        resources=_values(Resource, resources),
    )


def _pack(*parts: object) -> bytes:
    # orjson hands out the buffer it grew, often several times what it holds; a copy has the size of its content.
    # What is left to `default` is a measurement's ratios and limits.
    return bytes(memoryview(orjson.dumps(parts, default=_nested_row)))


def _nested_row(value: Value) -> object:
    return ROWS[type(value)](value)


def _rows(kind: type[Value], values: Iterable[Value]) -> list[tuple[object, ...]]:
    return list(map(ROWS[kind], values))


def _values(kind: type[V], rows: Iterable[Row]) -> tuple[V, ...]:
    return tuple(kind.model_validate(_fields(kind, row)) for row in rows)


def _measurement(row: Row) -> Measurement:
    fields = _fields(Measurement, row)
    fields["by_workload"] = _values(WorkloadRatio, fields["by_workload"])
    fields["limits"] = _values(LimitCheck, fields["limits"])
    return Measurement.model_validate(fields)


def _fields(kind: type[Value], row: Row) -> dict[str, Any]:
    return dict(zip(kind.model_fields, row, strict=True))


NOTHING_FOUND = pack_findings((), None, ())
