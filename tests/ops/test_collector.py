"""Cycles are looked for again after a bulk read, however it ends."""

import gc

import pytest

from kernelbraid.ops.collector import uncollected


def test_collection_pauses_within_and_goes_on_after_an_error() -> None:
    gc.enable()

    with pytest.raises(RuntimeError, match="damaged"):
        _read_damaged()

    assert gc.isenabled()


def _read_damaged() -> None:
    with uncollected():
        assert not gc.isenabled()
        raise RuntimeError("a damaged log")


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass

        assert not gc.isenabled()
    finally:
        gc.enable()
