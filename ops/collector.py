"""Python's cyclic collector, set for processes that fold long logs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 100_000
"""A fold makes objects that live as long as it does; looking them through every 700 allocations costs a fifth of it."""


def collect_seldom() -> None:
    """Leave what the imports made alone, and look through new objects seldom."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 50, 100)


@contextmanager
def uncollected() -> Iterator[None]:
    """Don't look for cycles within: reading and folding a log makes none, and a search for them costs a tenth of it."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
