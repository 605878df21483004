"""What no kernel of this machine can beat: measured ceilings of one core, and the time that a workload takes at least.

A ceiling is measured once per machine and kept in the user's cache; beside a busy neighbour it may come out low, so
that a time counts as impossible only where it beats the ceilings several times over.
"""

import hashlib
import json
import math
import os
import platform
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from kernelbraid.kernels.audit import environment as machine
from kernelbraid.kernels.audit.layout import DTYPES
from kernelbraid.kernels.audit.native import cache_folder
from kernelbraid.kernels.operators.operator import Operator, Workload

NAMES = ("bandwidth_bytes_per_s", "flop_per_s", "call_floor_s")
SLACK = 2.0
"""A core beside a busy neighbour has half its units: so far may a ceiling have been measured too low."""


def ceilings(program: Path) -> Mapping[str, float]:
    """This machine's ceilings by name: bytes a second, operations a second, seconds a call.

    `program` is the compiled `ceilings.c`. Measured when the cache holds none for this machine and harness.
    """
    path = cache_folder() / "physics" / f"{_key(program)}.json"
    found = _read(path)
    if found is None:
        found = _measured(program)
        _write(path, found)
    return MappingProxyType(found)


def least_s(operator: Operator, workload: Workload, found: Mapping[str, float]) -> Mapping[str, float]:
    """Seconds that one call of the workload takes at least, by what bounds it: bytes, operations, the call itself.

    Operations count only where the operator declares them.
    """
    entry = operator.entry(workload.entry)
    tensors = (*entry.inputs, *entry.outputs)
    moved = sum(math.prod(tensor.resolve(workload.dims)) * DTYPES[tensor.dtype].itemsize for tensor in tensors)
    return {
        f"to move its {moved} bytes": moved / (SLACK * found["bandwidth_bytes_per_s"]),
        f"to do its {workload.operations:.0f} operations": workload.operations / (SLACK * found["flop_per_s"]),
        "to be called": found["call_floor_s"] / SLACK,
    }


def _key(program: Path) -> str:
    parts = (platform.node(), platform.machine(), machine.cpu_model(), machine.harness_digest())
    return hashlib.sha256("\0".join(parts).encode() + program.read_bytes()).hexdigest()[:24]


def _measured(program: Path) -> dict[str, float]:
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=True, env={})
    return dict(zip(NAMES, map(float, done.stdout.split()), strict=True))


def _read(path: Path) -> dict[str, float] | None:
    """What an earlier harness measured; None where there is nothing of use."""
    try:
        found = json.loads(path.read_text())
        values = {name: float(found[name]) for name in NAMES}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return values if all(math.isfinite(value) and value > 0 for value in values.values()) else None


def _write(path: Path, found: Mapping[str, float]) -> None:
    """Under a name of its own and renamed, so that two harnesses starting together do no harm."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(dict(found), file)
    os.replace(file.name, path)
