"""Which harness a command audits with."""

from contextlib import AbstractContextManager

from kernelbraid.agents.search import HarnessFactory, native_harness
from kernelbraid.kernels.audit.auditing import Auditing
from kernelbraid.kernels.audit.opening import open_harness
from kernelbraid.kernels.audit.sandbox import Sandbox, SandboxKind
from kernelbraid.kernels.operators.operator import Operator
from kernelbraid.ops.wiring import Wiring


def harness_factory(wiring: Wiring, unsafe_no_sandbox: bool = False) -> HarnessFactory:
    """The wired harness, else this machine's; without a sandbox only when that was asked for."""
    if wiring.harness is not None:
        return wiring.harness
    return _unboxed if unsafe_no_sandbox else native_harness


def _unboxed(operator: Operator, target: str) -> AbstractContextManager[Auditing]:
    return open_harness(operator, target, Sandbox(SandboxKind.NONE))
