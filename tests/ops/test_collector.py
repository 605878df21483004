"""Cycles are looked for again after a bulk read, however it ends."""

import gc

import pytest

from kernelbraid.ops.collector import uncollected


def test_collection_pauses_within_and_goes_on_after_an_error() -> None:
    gc.enable()

    with pytest.raises(RuntimeError), uncollected():
        assert not gc.isenabled()
        raise RuntimeError("a damaged log, say")

    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass

        assert not gc.isenabled()
    finally:
        gc.enable()
