"""The command line with simulated audits that take the seconds named in $AUDIT_S, as a program of its own."""

import os
import sys

from kernelbraid.events.values import ROOT
from kernelbraid.kernels.audit.outcome import Candidate
from kernelbraid.kernels.audit.simulated import SimulatedHarness
from kernelbraid.kernels.operators.operator import Operator
from kernelbraid.ops.cli import main
from kernelbraid.ops.wiring import Wiring


def slow(operator: Operator, target: str) -> SimulatedHarness:
    """Audits by arithmetic, at a pace; the root's at once."""

    def delay_s(candidate: Candidate) -> float:
        return 0.0 if candidate.name == ROOT else float(os.environ["AUDIT_S"])

    return SimulatedHarness(operator, seed=0, delay_s=delay_s)


if __name__ == "__main__":
    sys.exit(main(None, Wiring(harness=slow)))
