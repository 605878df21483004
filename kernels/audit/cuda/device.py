"""The memory that candidates compute on, owned by the auditor: what it needs of a device, whichever that is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.failure import InfrastructureFailed
from kernelbraid.kernels.audit.outcome import Infrastructure

Bytes = NDArray[np.uint8]


class DeviceLost(InfrastructureFailed):
    """A driver call of the auditor's own failed; the evidence names the call and the error."""

    def __init__(self, evidence: str) -> None:
        super().__init__(Infrastructure.DEVICE_FAULT, evidence)


@dataclass(frozen=True, slots=True)
class Buffer:
    """One allocation. `pointer` is the device's, or an index where there is no device."""

    pointer: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Rows:
    """So many stretches of `width` bytes, each `pitch` bytes after the one before."""

    count: int
    width: int
    pitch: int


@dataclass(frozen=True, slots=True)
class Shared:
    """What another process needs to open buffers: JSON-able facts, and descriptors that go with them."""

    facts: Mapping[str, Any]
    descriptors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Conditions:
    """The device at one moment, by its own sensors. Clocks in MHz, temperature in degrees Celsius."""

    sm_mhz: int
    memory_mhz: int
    temperature_c: int
    throttled: tuple[str, ...] = ()
    """Reasons for which the hardware holds its clocks back, power capping by software not counted."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What does not change while a process runs."""

    name: str
    uuid: str
    driver: str
    l2_bytes: int
    memory_bytes: int
    compute_capability: str = ""
    visible: str = ""
    """What CUDA_VISIBLE_DEVICES must say for another process to see this device alone."""
    paths: tuple[str, ...] = field(default=())
    """Device files that a process needs to use it."""


class Device(Protocol):
    """Offsets and sizes are in bytes. Every method may raise DeviceLost."""

    facts: DeviceFacts

    def allocate(self, size_bytes: int) -> Buffer:
        """Memory that no other process sees until it is shared."""

    def release(self, buffer: Buffer) -> None:
        """Give it back."""

    def share(self, buffers: tuple[Buffer, ...]) -> Shared:
        """Let other processes map these buffers, and nothing else."""

    def upload(self, buffer: Buffer, offset: int, values: Bytes) -> None:
        """Host to device; done when it returns."""

    def download(self, buffer: Buffer, offset: int, size_bytes: int) -> Bytes:
        """Device to host: a fresh array."""

    def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, size_bytes: int) -> None:
        """Device to device, in order; done after `settle`."""

    def copy_rows(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, rows: "Rows") -> None:
        """As `copy`, for equally long stretches at equal distances in both buffers."""

    def fill(self, buffer: Buffer, offset: int, size_bytes: int, pattern: int) -> None:
        """Repeat a 32-bit pattern; offset and size are multiples of 4. Done after `settle`."""

    def differs(self, one: Buffer, one_offset: int, other: Buffer, other_offset: int, size_bytes: int) -> bool:
        """Whether two stretches hold other bytes; offsets are multiples of 4."""
        ...

    def flush(self) -> None:
        """Replace what the last-level cache holds. Done after `settle`."""

    def settle(self) -> None:
        """Wait for all of the above."""

    def conditions(self) -> Conditions | None:
        """Clocks and temperature; None where nothing can be read."""

    def close(self) -> None:
        """Give everything back."""
