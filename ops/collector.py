"""Python's cyclic collector, set for processes that fold long logs."""

import gc

YOUNG_OBJECTS = 100_000
"""A fold makes objects that live as long as it does; looking them through every 700 allocations costs a fifth of it."""


def collect_seldom() -> None:
    """Leave what the imports made alone, and look through new objects seldom."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 50, 100)
