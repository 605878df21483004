"""What the state keeps of every submission and every measurement: canonical JSON bytes, read when somebody asks.

A pydantic value takes half a kilobyte of memory however little it says, and an implementation has dozens of them; a
state of two hundred thousand implementations would need gigabytes. Packed they take what their text takes, and equal
values have equal bytes.
"""

from functools import lru_cache

import orjson

from kernelbraid.events.event import Value
from kernelbraid.events.values import Latency, Measurement, Region, Resource, SourceFile

READ_BYTES_CACHED = 1024
"""How many packed values stay read: a search looks at the same few parents again and again."""


class Submission(Value):
    """What the editor handed in, but for its blobs."""

    sources: tuple[SourceFile, ...]
    regions: tuple[Region, ...]


class Findings(Value):
    """What was measured of an implementation; empty until it was."""

    latencies: tuple[Latency, ...] = ()
    measurement: Measurement | None = None
    resources: tuple[Resource, ...] = ()


def pack_submission(sources: tuple[SourceFile, ...], regions: tuple[Region, ...]) -> bytes:
    """Bytes that `submission` reads."""
    return _pack({"sources": sources, "regions": regions})


def pack_findings(
    latencies: tuple[Latency, ...], measurement: Measurement | None, resources: tuple[Resource, ...]
) -> bytes:
    """Bytes that `findings` reads."""
    return _pack({"latencies": latencies, "measurement": measurement, "resources": resources})


@lru_cache(maxsize=READ_BYTES_CACHED)
def submission(packed: bytes) -> Submission:
    """The submission that was packed."""
    return Submission.model_validate_json(packed)


@lru_cache(maxsize=READ_BYTES_CACHED)
def findings(packed: bytes) -> Findings:
    """The findings that were packed."""
    return Findings.model_validate_json(packed)


def _pack(parts: dict[str, object]) -> bytes:
    return orjson.dumps(parts, default=vars, option=orjson.OPT_SORT_KEYS)


NOTHING_FOUND = pack_findings((), None, ())
