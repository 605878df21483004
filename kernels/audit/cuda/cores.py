"""Which cores a timing uses: one for the auditor's clock, another for whichever arm's process is being timed.

The arms take turns, so one core serves them all: on cores of their own, two processes of the same candidate differed
by tens of microseconds a message.
"""

import os
from contextlib import suppress

from kernelbraid.kernels.audit.cuda.frames import LEAST_CORES


def timing_cores() -> tuple[set[int], set[int]]:
    """The auditor's and the arms'. Two apart, as neighbours may be two threads of one core.

    All of them where they are few: whatever else runs would have to share those with the timing.
    """
    cores = sorted(os.sched_getaffinity(0))
    return ({cores[-1]}, {cores[-3]}) if len(cores) >= LEAST_CORES else (set(cores), set(cores))


def pin(pid: int, cores: set[int]) -> None:
    """Keep a process's first thread, which answers the auditor, on cores; one that is gone is noticed elsewhere."""
    with suppress(ProcessLookupError):
        os.sched_setaffinity(pid, cores)
