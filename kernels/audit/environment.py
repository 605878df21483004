"""Where an audit's figures were taken: another environment makes them stale."""

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SANDBOX_NONE = "none"
_L1_INDEX = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True)
class Environment:
    """Machine, compiler and sandbox of a harness."""

    machine: str
    cpu_model: str
    simd_bits: int
    """Widest vector register that the compiler builds for."""
    l1_bytes: int
    """First-level data cache of one core; 32768 where the kernel does not tell."""
    compiler: str
    compiler_version: str
    flags: tuple[str, ...]
    kernel_release: str
    sandbox: str
    """bubblewrap, landlock or none."""
    harness_digest: str
    toolchain_digest: str
    device: str = ""
    """The accelerator's name and UUID; empty on the CPU."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions that a verdict depends on besides the compiler's, such as driver, torch and triton."""
    physics: Mapping[str, float] = field(default_factory=dict)
    """The machine's measured ceilings: bandwidth_bytes_per_s, flop_per_s, call_floor_s, ..."""


def cpu_model() -> str:
    """The processor's name as the kernel gives it, else the architecture."""
    fields = _cpu_fields()
    return fields.get("model name") or fields.get("Model") or platform.machine()


def l1_bytes() -> int:
    """Size of the first-level data cache of one core."""
    for index in sorted(_L1_INDEX.glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            level = (index / "level").read_text().strip()
            if level == "1" and kind in ("Data", "Unified"):
                return int((index / "size").read_text().strip().rstrip("K")) * 1024
        except (OSError, ValueError):
            continue
    return 32 * 1024


def harness_digest(*folders: Path) -> str:
    """SHA-256 over the audit's own sources, and those in further folders: another harness may judge otherwise."""
    digest = hashlib.sha256()
    for path in (path for folder in (Path(__file__).parent, *folders) for path in sorted(folder.iterdir())):
        if path.suffix in (".py", ".c", ".h"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _cpu_fields() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines if ":" in line)
    fields: dict[str, str] = {}
    for key, _, value in pairs:
        fields.setdefault(key.strip(), value.strip())
    return fields
