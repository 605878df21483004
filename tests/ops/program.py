"""The command line with simulated audits that take the seconds named in $AUDIT_S, as a program of its own."""

import os
import sys

from kernelbraid.kernels.audit.simulated import SimulatedHarness
from kernelbraid.kernels.operators.operator import Operator
from kernelbraid.ops.cli import main
from kernelbraid.ops.wiring import Wiring


def slow(operator: Operator, target: str) -> SimulatedHarness:
    """Audits by arithmetic, at a pace."""
    return SimulatedHarness(operator, seed=0, delay_s=lambda candidate: float(os.environ["AUDIT_S"]))


if __name__ == "__main__":
    sys.exit(main(None, Wiring(harness=slow)))
