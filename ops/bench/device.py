"""The GPU that a benchmark runs on: what it is, and its clock. Needs torch."""

from collections.abc import Mapping
from functools import cache

import torch

from kernelbraid.kernels.audit.cuda.nvml import Sensors, open_sensors


@cache
def sensors() -> Sensors | None:
    """The device's, where they can be read."""
    return open_sensors(f"GPU-{torch.cuda.get_device_properties().uuid}") if torch.cuda.is_available() else None


def sm_mhz() -> int | None:
    """The clock right after something was measured."""
    now = None if (found := sensors()) is None else found.read()
    return None if now is None else now.sm_mhz


def environment() -> Mapping[str, str]:
    """The device and what its software is."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": "unknown" if (found := sensors()) is None else found.driver,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
    }
