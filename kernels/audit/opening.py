"""The harness for a target: the CPU's own, or one that owns a GPU."""

import os
from contextlib import AbstractContextManager
from typing import cast

from kernelbraid.kernels.audit.auditing import Auditing
from kernelbraid.kernels.audit.cuda.driver import CudaDevice, device_count
from kernelbraid.kernels.audit.cuda.harness import DeviceHarness
from kernelbraid.kernels.audit.cuda.sanitizer import find_sanitizer
from kernelbraid.kernels.audit.cuda.triton import triton_builder, triton_facts
from kernelbraid.kernels.audit.harness import Harness
from kernelbraid.kernels.audit.sandbox import Sandbox
from kernelbraid.kernels.operators.operator import CPU, Operator
from kernelbraid.kernels.toolchains.toolchain import MissingToolchain
from kernelbraid.kernels.toolchains.triton import find_triton

SANITIZE = "KERNELBRAID_SANITIZE"
"""Set to anything, it has a candidate for promotion pass compute-sanitizer first, where that is installed."""


def open_harness(operator: Operator, target: str, sandbox: Sandbox | None = None) -> AbstractContextManager[Auditing]:
    """This machine's harness for the operator on the target, in the best box that works unless one is named.

    Raises MissingToolchain where a compiler or a GPU is missing, with the next step.
    """
    if target == CPU:
        return cast(AbstractContextManager[Auditing], Harness(operator, target, sandbox))
    if target != "triton":
        raise MissingToolchain(f"no harness audits target {target} yet; cpu and triton are audited")
    compiler = find_triton()
    if not device_count():
        raise MissingToolchain("target triton is audited on an NVIDIA GPU, and its driver shows none here")
    parts = (operator, CudaDevice(), triton_facts(compiler), triton_builder(operator, compiler))
    sanitizer = find_sanitizer() if os.environ.get(SANITIZE) else None
    harness = DeviceHarness(*parts, sandbox=sandbox, sanitizer=sanitizer)
    return cast(AbstractContextManager[Auditing], harness)
