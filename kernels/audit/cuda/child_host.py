"""Tensors in this machine's memory, as numpy arrays: the whole protocol without a GPU, for tests.

bfloat16 arrives as uint16.
"""

import mmap
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernelbraid.kernels.audit.cuda.child import Run
from kernelbraid.kernels.audit.cuda.frames import TensorPlace, Trouble

_DTYPES = {"float32": "<f4", "bfloat16": "<u2", "int32": "<i4", "int64": "<i8"}


class HostBackend:
    """A backend without a device; a replay runs the calls again."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def versions(self) -> Mapping[str, str]:
        """numpy's."""
        return {"numpy": np.__version__}

    def warm(self) -> None:
        """Nothing."""

    def open(self, shared: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Map the memory files, in the order of Space."""
        self._maps = [
            mmap.mmap(descriptor, size) for descriptor, size in zip(descriptors, shared["sizes"], strict=True)
        ]

    def tensor(self, place: TensorPlace) -> Any:
        """An array over the file's bytes."""
        dtype = np.dtype(_DTYPES[place.dtype])
        count = place.size_bytes // dtype.itemsize
        if not count:
            return np.empty(place.shape, dtype)
        return np.frombuffer(self._maps[place.space], dtype, count, place.offset).reshape(place.shape)

    def captured(self, run: Run) -> Run:
        """The calls themselves."""
        return run

    def timed(self, run: Run) -> int:
        """By this process's clock."""
        started = time.perf_counter_ns()
        run()
        return time.perf_counter_ns() - started

    def sweep(self) -> None:
        """Nothing: numpy's memory is whoever holds it's."""

    def trouble(self, error: BaseException) -> Trouble | None:
        """Only memory is told apart."""
        return Trouble.MEMORY if isinstance(error, MemoryError) else None

    def measured(self) -> Mapping[str, float]:
        """So high that nothing beats them: this machine's memory stands for a device that is none."""
        return {"flop_per_s": 1e18, "call_floor_s": 1e-12}
