"""What these tests share: a tiny operator and its harness, on this machine's memory or on a GPU."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from kernelbraid.kernels.audit.cuda import clock, record
from kernelbraid.kernels.audit.cuda import harness as harness_module
from kernelbraid.kernels.audit.cuda.build import CompilerFacts, DeviceBuilder
from kernelbraid.kernels.audit.cuda.harness import DeviceHarness
from kernelbraid.kernels.audit.cuda.host import HostDevice
from kernelbraid.kernels.audit.limits import MIB, Limits
from kernelbraid.kernels.audit.outcome import AuditOutcome, Candidate
from kernelbraid.kernels.operators.operator import Operator, load_operator

LIMITS = Limits(build_s=3, load_s=10, call_s=1.5, message_bytes=4 * MIB)
HOST_ROOT = """
def scale_full(x, w, f, y):
    y[...] = (x * w) * f[:, None]

scale_decode = scale_full
"""


def trust(sources: Mapping[str, str]) -> None:
    """These tests are about what a process can do, not about what its source may say."""


@pytest.fixture(scope="session")
def scale() -> Operator:
    """The audit tests' own operator."""
    return load_operator(str(Path(__file__).parents[1] / "operators" / "scale"))


@pytest.fixture(scope="session")
def host_harness(scale: Operator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceHarness]:
    """The whole protocol without a device."""
    compiler = CompilerFacts("python", "", (), "")
    lock = tmp_path_factory.mktemp("lock") / "device.lock"
    parts = (scale, HostDevice(), compiler, lambda *_: DeviceBuilder(trust), "host")
    with pytest.MonkeyPatch.context() as patch, DeviceHarness(*parts, timing_lock=lock, limits=LIMITS) as harness:
        # Beside other tests on few cores: a message longer than what interrupts it, and clocks that may differ by that.
        patch.setattr(clock, "MESSAGE_NS", 4_000_000)
        patch.setattr(record, "DISPUTED_NS", 10_000_000)
        patch.setattr(record, "BUSY_NS", 10_000_000)
        patch.setattr(harness_module, "MOST_FLOOR_NS", 10_000_000)
        yield harness


@pytest.fixture(scope="session")
def host_audit(host_harness: DeviceHarness) -> Callable[[str], AuditOutcome]:
    """Audit the text of a kernel.py against the root."""
    root = Candidate("i0000", {"kernel.py": HOST_ROOT})
    return lambda text: host_harness.audit(Candidate("i0001", {"kernel.py": text}), root, lambda: root)
