"""What auditor and candidate process say to each other. Both sides read this file; it needs the standard library only.

A frame is u32 kind, u32 payload bytes, payload. Nothing here can carry an object, only numbers and text.
"""

import os
import select
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from math import prod

FRAME = struct.Struct("<II")
_CALL = struct.Struct("<II")
_TENSOR = struct.Struct("<BBHIQ")
_DONE = struct.Struct("<IIQ")
MOST_TEXT_BYTES = 480
"""A reply is at most 512 bytes."""
LEAST_CORES = 4
LOOK_OUT_NS = 4_000_000 if len(os.sched_getaffinity(0)) >= LEAST_CORES else 0
"""So long either side looks out for the next frame before it goes to sleep: to wake up takes tens of microseconds.
Where cores are few, whoever looks out is in the other's way."""


class Kind(IntEnum):
    """Requests below 16, replies from 16 on."""

    LOAD = 1
    PREPARE = 2
    GO = 3
    CAPTURE = 5
    MEASURE = 6
    SWEEP = 7
    READY = 16
    DONE = 17
    ERR = 18


class Trouble(IntEnum):
    """What the child says went wrong: a hint, believed only against the candidate."""

    REFUSED = 1
    LOAD = 2
    CALL = 3
    CAPTURE = 4
    DEVICE = 5
    MEMORY = 6
    COMPILE = 7


class Space(IntEnum):
    """Which of the auditor's buffers a tensor lies in."""

    INPUT = 0
    OUTPUT = 1


ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int32": 4, "int64": 8}
DTYPES = tuple(ITEM_BYTES)


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """One argument of a call: where its bytes start in a buffer, element type by name, shape."""

    space: Space
    dtype: str
    offset: int
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of a contiguous tensor of this shape."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class PlacedCall:
    """An entry by its index in LOAD, and its arguments, inputs first."""

    entry: int
    tensors: tuple[TensorPlace, ...]


def frame(kind: Kind, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return FRAME.pack(kind, len(payload)) + payload


def packed_calls(layout: int, calls: tuple[PlacedCall, ...]) -> bytes:
    """The payload of PREPARE."""
    parts = [struct.pack("<II", layout, len(calls))]
    for call in calls:
        parts.append(_CALL.pack(call.entry, len(call.tensors)))
        for tensor in call.tensors:
            dtype = DTYPES.index(tensor.dtype)
            parts.append(_TENSOR.pack(tensor.space, dtype, len(tensor.shape), 0, tensor.offset))
            parts.append(_packed_shape(tensor.shape))
    return b"".join(parts)


@lru_cache(maxsize=256)
def _packed_shape(shape: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(shape)}q", *shape)


def unpacked_calls(payload: bytes) -> tuple[int, tuple[PlacedCall, ...]]:
    """Layout index and calls of a PREPARE."""
    layout, count = struct.unpack_from("<II", payload)
    at, calls = 8, []
    for _ in range(count):
        entry, tensors = _CALL.unpack_from(payload, at)
        at += _CALL.size
        places = []
        for _ in range(tensors):
            space, dtype, rank, _, offset = _TENSOR.unpack_from(payload, at)
            at += _TENSOR.size
            places.append(
                TensorPlace(Space(space), DTYPES[dtype], offset, struct.unpack_from(f"<{rank}q", payload, at))
            )
            at += 8 * rank
        calls.append(PlacedCall(entry, tuple(places)))
    return layout, tuple(calls)


def packed_done(calls: int, advisory_ns: int) -> bytes:
    """The payload of DONE: calls made, and how long they took by the child's own clock (0: it has none)."""
    return _DONE.pack(calls, 0, advisory_ns)


def advisory_ns(payload: bytes) -> int:
    """The child's own time in a DONE; 0 when it is malformed."""
    return int(_DONE.unpack(payload)[2]) if len(payload) == _DONE.size else 0


def packed_trouble(trouble: Trouble, text: str) -> bytes:
    """The payload of ERR: a byte and the end of the text."""
    return bytes([trouble]) + text.encode("utf-8", errors="replace")[-MOST_TEXT_BYTES:]


def await_frame(descriptor: int) -> None:
    """Look out for the next frame, without sleeping, for a while at most."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    until_ns = time.monotonic_ns() + LOOK_OUT_NS
    while not waiting.poll(0) and time.monotonic_ns() < until_ns:
        os.sched_yield()


def read_exactly(descriptor: int, count: int) -> bytes:
    """So many bytes. Raises EOFError when the other side is gone."""
    parts = []
    while count:
        part = os.read(descriptor, count)
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
