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
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from kernelbraid.kernels.audit import environment as machine
from kernelbraid.kernels.audit.layout import DTYPES
from kernelbraid.kernels.audit.native import cache_folder
from kernelbraid.kernels.audit.outcome import Blocks
from kernelbraid.kernels.operators.operator import Operator, Workload

NAMES = ("bandwidth_bytes_per_s", "flop_per_s", "call_floor_s")
SLACK = 2.0
"""A core beside a busy neighbour has half its units: so far may a ceiling have been measured too low."""


def ceilings(program: Path) -> Mapping[str, float]:
    """This machine's ceilings by name: bytes a second, operations a second, seconds a call.

    `program` is the compiled `ceilings.c`. Measured when the cache holds none for this machine and harness.
    """
    return kept(_key(program), lambda: _measured(program))


def kept(key: str, measure: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
    """What was measured under this key before, by any harness of this user, else measured now."""
    path = cache_folder() / "physics" / f"{key}.json"
    found = _read(path)
    if found is None:
        found = dict(measure())
        _write(path, found)
    return MappingProxyType(found)


def least_s(operator: Operator, workload: Workload, found: Mapping[str, float]) -> Mapping[str, float]:
    """Seconds that one call of the workload takes at least, by what bounds it: bytes, operations, the call itself.

    Operations count only where the operator declares them, and no bytes of what is gathered: a call may read few.
    """
    entry = operator.entry(workload.entry)
    tensors = [tensor for tensor in (*entry.inputs, *entry.outputs) if not tensor.gathered]
    moved = sum(math.prod(tensor.resolve(workload.dims)) * DTYPES[tensor.dtype].itemsize for tensor in tensors)
    return {
        f"to move its {moved} bytes": moved / (SLACK * found["bandwidth_bytes_per_s"]),
        f"to do its {workload.operations:.0f} operations": workload.operations / (SLACK * found["flop_per_s"]),
        "to be called": found["call_floor_s"] / SLACK,
    }


def impossible(operator: Operator, blocks: Blocks, arm: str, found: Mapping[str, float]) -> str | None:
    """Evidence when an arm was faster on a workload than this machine can be; None when it was not.

    The message's own cost is left in, and the least floor of the groups counts, so that no error of the floor can make
    a sound candidate look impossible.
    """
    for index, (workload, calls) in enumerate(zip(operator.workloads, blocks.calls, strict=True)):
        samples_ns = blocks.samples_ns[arm][:, :, index]
        message_ns = float(np.median(samples_ns[samples_ns > 0]))
        taken_s = message_ns * 1e-9 / calls
        what, due_s = max(least_s(operator, workload, found).items(), key=lambda item: item[1])
        if taken_s < due_s:
            return f"workload {workload.name} took {taken_s:.3g} s a call; {what} takes at least {due_s:.3g} s here"
        if message_ns <= (floor_ns := int(blocks.floor_ns.min())):
            return f"workload {workload.name}: a message took {message_ns:.0f} ns, one that does nothing {floor_ns}"
    return None


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
