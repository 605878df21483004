"""What the state keeps of every submission and every measurement: canonical JSON bytes, read when somebody asks.

A pydantic value takes half a kilobyte of memory however little it says, and an implementation has several of them; a
state of two hundred thousand implementations would need gigabytes. Packed, without the names of their fields, they
take what their content takes, and equal values in one order have equal bytes.
"""

import sys
from collections.abc import Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

import orjson

from kernelbraid.events.event import Value
from kernelbraid.events.values import Latencies, Measurement, Region, Resources, SourceFile

V = TypeVar("V", bound=Value)
Row = list[Any]
"""A value's fields in their order, as JSON holds them."""

PACKED_TYPES: tuple[type[Value], ...] = (SourceFile, Region, Measurement)
ROWS = {kind: attrgetter(*kind.model_fields) for kind in PACKED_TYPES}
READ_BYTES_CACHED = 1024
"""How many packed values stay read: a search looks at the same few parents again and again."""
INCUMBENTS_CACHED = 1 << 16
"""A planner asks every attempt ever made whom it was measured against, at every step."""
_INCUMBENT = list(Measurement.model_fields).index("incumbent")


class Submission(Value):
    """What the editor handed in, but for its blobs."""

    sources: tuple[SourceFile, ...]
    regions: tuple[Region, ...]


class Findings(Value):
    """What was measured of an implementation; empty until it was."""

    latencies_s: Latencies
    measurement: Measurement | None
    resources: Resources


def pack_submission(sources: tuple[SourceFile, ...], regions: tuple[Region, ...]) -> bytes:
    """Bytes that `submission` reads."""
    return _pack(_rows(SourceFile, sources), _rows(Region, regions))


def pack_findings(latencies_s: Latencies, measurement: Measurement | None, resources: Resources) -> bytes:
    """Bytes that `findings` reads."""
    return _pack(latencies_s, None if measurement is None else ROWS[Measurement](measurement), resources)


@lru_cache(maxsize=READ_BYTES_CACHED)
def submission(packed: bytes) -> Submission:
    """The submission that was packed."""
    sources, regions = orjson.loads(packed)
    return Submission(sources=_values(SourceFile, sources), regions=_values(Region, regions))


@lru_cache(maxsize=READ_BYTES_CACHED)
def findings(packed: bytes) -> Findings:
    """The findings that were packed."""
    latencies_s, measurement, resources = orjson.loads(packed)
    compared = None if measurement is None else _value(Measurement, measurement)
    return Findings(latencies_s=latencies_s, measurement=compared, resources=resources)


@lru_cache(maxsize=INCUMBENTS_CACHED)
def incumbent(packed: bytes) -> str | None:
    """Whom packed findings compare with, without reading all that was found; None if they compare with nobody."""
    _, measurement, _ = orjson.loads(packed)
    return None if measurement is None else sys.intern(measurement[_INCUMBENT])


def _pack(*parts: object) -> bytes:
    # orjson hands out the buffer it grew, often several times what it holds; a copy has the size of its content.
    return bytes(memoryview(orjson.dumps(parts)))


def _rows(kind: type[Value], values: Iterable[Value]) -> list[tuple[object, ...]]:
    return list(map(ROWS[kind], values))


def _values(kind: type[V], rows: Iterable[Row]) -> tuple[V, ...]:
    return tuple(_value(kind, row) for row in rows)


def _value(kind: type[V], row: Row) -> V:
    return kind.model_validate(dict(zip(kind.model_fields, row, strict=True)))


NOTHING_FOUND = pack_findings({}, None, {})
