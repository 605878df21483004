"""The device's own sensors, by ctypes on the management library: read only, nothing is ever set."""

import ctypes
from dataclasses import dataclass

from kernelbraid.kernels.audit.cuda.device import Conditions

_SM, _MEMORY = 1, 2
_REASONS = {0x08: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}


@dataclass(frozen=True, slots=True)
class Sensors:
    """One device's."""

    library: ctypes.CDLL
    handle: ctypes.c_void_p
    driver: str

    def read(self) -> Conditions | None:
        """Now; None when the clocks cannot be read."""
        sm, memory = self._number("nvmlDeviceGetClockInfo", _SM), self._number("nvmlDeviceGetClockInfo", _MEMORY)
        if sm is None or memory is None:
            return None
        held = self._reasons()
        reasons = tuple(text for bit, text in _REASONS.items() if held & bit)
        return Conditions(sm, memory, self._number("nvmlDeviceGetTemperature", 0) or 0, reasons)

    def _number(self, function: str, which: int) -> int | None:
        value = ctypes.c_uint()
        error = getattr(self.library, function)(self.handle, ctypes.c_uint(which), ctypes.byref(value))
        return None if error else value.value

    def _reasons(self) -> int:
        value = ctypes.c_ulonglong()
        error = self.library.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle, ctypes.byref(value))
        return 0 if error else value.value


def open_sensors(uuid: str) -> Sensors | None:
    """The sensors of the device with this UUID; None where the library or the device is missing."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle, version = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        return None
    library.nvmlSystemGetDriverVersion(version, 96)
    return Sensors(library, handle, version.value.decode())
