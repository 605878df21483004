"""Keeping the auditor's thread on some cores for a while, and which cores are one."""

import os
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


def threads_of_core(cpu: int, topology: Path = TOPOLOGY) -> frozenset[int]:
    """The CPUs that share a core with this one, itself among them; it alone where the system does not say."""
    try:
        listed = (topology / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return frozenset([cpu])
    ends = [[int(end) for end in part.split("-")] for part in listed.split(",")]
    return frozenset(each for part in ends for each in range(part[0], part[-1] + 1)) | {cpu}


@contextmanager
def on_cores(cores: Set[int]) -> Iterator[None]:
    """Keep this thread, and the processes it starts, on those of these cores that it may use; where none, as it is."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores & before or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
