"""Which cores a timing uses: one for the auditor's clock, another for whichever arm's process is being timed.

The arms take turns, so one core serves them all: on cores of their own, two processes of the same candidate differed
by tens of microseconds a message.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def timing_cores() -> tuple[int, int]:
    """The auditor's and the arms'; the same one where there is no other. Two apart, as neighbours may be one core's."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[-1], cores[-3 if len(cores) > 2 else 0]


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Keep this thread on a core for a while."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def pin(pid: int, core: int) -> None:
    """Keep a process's first thread, which answers the auditor, on a core; one that is gone is noticed elsewhere."""
    with suppress(ProcessLookupError):
        os.sched_setaffinity(pid, {core})
