"""A device that is none: buffers are memory files, so that the whole protocol runs where there is no GPU."""

import mmap

import numpy as np

from kernelbraid.kernels.audit.cuda.device import Buffer, Bytes, Conditions, DeviceFacts, Rows, Shared
from kernelbraid.kernels.audit.memory import MemoryFile

_MIB = 1 << 20


class HostDevice:
    """For tests. `facts` may be given to stand for a device that is small or large."""

    def __init__(self, facts: DeviceFacts | None = None) -> None:
        self.facts = facts or DeviceFacts("host memory", "host", "none", 1 * _MIB, 256 * _MIB)
        self._files: dict[int, MemoryFile] = {}
        self._next = 0
        self._swept = np.zeros(2 * self.facts.l2_bytes // 4, np.uint32)

    def allocate(self, size_bytes: int) -> Buffer:
        """A memory file, in whole pages."""
        size_bytes = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        buffer = Buffer(self._next, size_bytes)
        self._files[self._next] = MemoryFile("buffer", size_bytes)
        self._next += 1
        return buffer

    def release(self, buffer: Buffer) -> None:
        """Close it."""
        self._files.pop(buffer.pointer).close()

    def share(self, buffers: tuple[Buffer, ...]) -> Shared:
        """By their descriptors."""
        descriptors = tuple(self._files[buffer.pointer].descriptor for buffer in buffers)
        return Shared({"sizes": [buffer.size_bytes for buffer in buffers]}, descriptors)

    def upload(self, buffer: Buffer, offset: int, values: Bytes) -> None:
        """Write."""
        self._files[buffer.pointer].bytes[offset : offset + values.nbytes] = values.reshape(-1).view(np.uint8)

    def download(self, buffer: Buffer, offset: int, size_bytes: int) -> Bytes:
        """Read."""
        return self._files[buffer.pointer].bytes[offset : offset + size_bytes].copy()

    def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, size_bytes: int) -> None:
        """At once."""
        taken = self._files[source.pointer].bytes[source_offset : source_offset + size_bytes]
        self._files[target.pointer].bytes[target_offset : target_offset + size_bytes] = taken

    def copy_rows(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, rows: Rows) -> None:
        """At once."""
        for row in range(rows.count):
            self.copy(target, target_offset + row * rows.pitch, source, source_offset + row * rows.pitch, rows.width)

    def fill(self, buffer: Buffer, offset: int, size_bytes: int, pattern: int) -> None:
        """At once."""
        self._files[buffer.pointer].bytes[offset : offset + size_bytes].view(np.uint32)[:] = pattern

    def differs(self, one: Buffer, one_offset: int, other: Buffer, other_offset: int, size_bytes: int) -> bool:
        """By numpy."""
        found, expected = (
            self._files[buffer.pointer].bytes[offset : offset + size_bytes]
            for buffer, offset in ((one, one_offset), (other, other_offset))
        )
        return not np.array_equal(found, expected)

    def flush(self) -> None:
        """Write over more than a cache holds."""
        self._swept += 1

    def settle(self) -> None:
        """Nothing is ever under way."""

    def conditions(self) -> Conditions | None:
        """Memory has no clock of its own."""
        return None

    def close(self) -> None:
        """Close every file."""
        for file in self._files.values():
            file.close()
        self._files.clear()
