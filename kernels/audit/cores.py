"""Keeping the auditor's thread on some cores for a while."""

import os
from collections.abc import Iterator, Set
from contextlib import contextmanager


@contextmanager
def on_cores(cores: Set[int]) -> Iterator[None]:
    """Keep this thread, and the processes it starts, on those of these cores that it may use; where none, as it is."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores & before or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
