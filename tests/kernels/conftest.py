"""Operators that stand in where no GPU is."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

STAND_IN = Path(__file__).parent / "runtime" / "stand_in.py"


@pytest.fixture
def standing_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Entries in plain torch on the CPU instead of the packaged implementations, for one test."""
    pytest.importorskip("torch", reason="torch is not installed")
    from kernelbraid.kernels.runtime import attention, loading, tensors

    spec = importlib.util.spec_from_file_location("stand_in", STAND_IN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(loading, "_module", lambda operator, path: module)
    monkeypatch.setattr(tensors, "DEVICE", "cpu")
    monkeypatch.setattr(attention, "gradients", module.attention_gradients)
    for cached in (loading.implementation, loading.entry):
        cached.cache_clear()
    loading.reset_ran()
    yield
    for cached in (loading.implementation, loading.entry):
        cached.cache_clear()
    loading.reset_ran()
