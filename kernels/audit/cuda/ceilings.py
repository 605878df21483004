"""A device's measured ceilings: what no kernel on it can beat."""

import hashlib
import time
from collections.abc import Mapping

from kernelbraid.kernels.audit import physics
from kernelbraid.kernels.audit.cuda.device import Device
from kernelbraid.kernels.audit.cuda.runner import DeviceRunner

COPIED_RATIO = 1 / 32
"""Of the device's memory: far beyond its caches."""
_TRIES = 6


def device_ceilings(device: Device, blank: DeviceRunner, versions: Mapping[str, str]) -> Mapping[str, float]:
    """Bytes and operations a second, and seconds a launch; measured once for a device and its software.

    `blank` is a process that holds no candidate and never will.
    """
    facts = device.facts
    parts = (facts.uuid, facts.driver, *(f"{name} {version}" for name, version in versions.items()))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    return physics.kept(key, lambda: {"bandwidth_bytes_per_s": bandwidth(device), **blank.measured()})


def bandwidth(device: Device) -> float:
    """Bytes read and written a second by the fastest of a few large copies."""
    size = int(device.facts.memory_bytes * COPIED_RATIO)
    source, target = device.allocate(size), device.allocate(size)
    device.fill(source, 0, source.size_bytes, 0x3F803F80)
    device.settle()
    times_s = []
    for _ in range(_TRIES):
        started = time.perf_counter()
        device.copy(target, 0, source, 0, size)
        device.settle()
        times_s.append(time.perf_counter() - started)
    device.release(source)
    device.release(target)
    return 2 * size / min(times_s)
