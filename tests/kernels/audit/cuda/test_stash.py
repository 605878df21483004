"""Tensors set aside on the device: what comes back, what counts as a change, and how little is read."""

from collections.abc import Iterator

import numpy as np
import pytest

from kernelbraid.kernels.audit.cuda.device import Buffer
from kernelbraid.kernels.audit.cuda.host import HostDevice
from kernelbraid.kernels.audit.cuda.stash import Lazy, Stash
from kernelbraid.kernels.audit.layout import CallPlaces, plan_layout
from kernelbraid.kernels.operators.operator import Operator


@pytest.fixture
def device() -> Iterator[HostDevice]:
    """Memory files."""
    device = HostDevice()
    yield device
    device.close()


@pytest.fixture
def call(scale: Operator) -> CallPlaces:
    """Where one call's tensors lie."""
    return plan_layout(0, [(scale.entry("scale_full"), {"rows": 5, "width": 33})], 4096).calls[0]


@pytest.fixture
def shared(device: HostDevice, call: CallPlaces) -> Buffer:
    """A buffer with that call's inputs, random bytes all over."""
    buffer = device.allocate(1 << 20)
    device.upload(buffer, 0, np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8))
    return buffer


def test_stashed_tensors_are_what_was_there(device: HostDevice, call: CallPlaces, shared: Buffer) -> None:
    stash = Stash(device, call.inputs)
    stash.take(shared)
    before = {place.tensor.name: device.download(shared, place.offset, place.bytes) for place in call.inputs}
    device.fill(shared, 0, 1 << 16, 0)
    assert {name: values.tobytes() for name, values in stash.items()} == {n: b.tobytes() for n, b in before.items()}
    assert [stash[place.tensor.name].shape for place in call.inputs] == [place.shape for place in call.inputs]


def test_one_changed_byte_is_a_change(device: HostDevice, call: CallPlaces, shared: Buffer) -> None:
    stash = Stash(device, call.inputs)
    stash.take(shared)
    assert stash.first_changed(shared, call.inputs) is None
    last = call.inputs[-1]
    byte = device.download(shared, last.offset + last.bytes - 1, 1) ^ 1
    device.upload(shared, last.offset + last.bytes - 1, byte)
    assert stash.first_changed(shared, call.inputs) == last


def test_what_is_given_back_lies_where_it_is_wanted(
    device: HostDevice, call: CallPlaces, shared: Buffer, scale: Operator
) -> None:
    stash = Stash(device, call.inputs)
    stash.take(shared)
    elsewhere = plan_layout(0, [(scale.entry("scale_full"), {"rows": 5, "width": 33})], 65536).calls[0]
    stash.give(shared, elsewhere.inputs)
    assert stash.first_changed(shared, elsewhere.inputs) is None


@pytest.mark.parametrize(
    "index", [np.array([4, 0, 4]), np.array([[1], [3]]), (np.array([2]),), slice(1, 3), 2, -1, np.array([-1])]
)
def test_lazy_tensor_is_indexed_as_its_array(
    device: HostDevice, call: CallPlaces, shared: Buffer, index: object
) -> None:
    stash = Stash(device, call.inputs)
    stash.take(shared)
    lazy, whole = stash.lazy()["x"], stash["x"]
    assert np.asarray(lazy[index]).tobytes() == whole[index].tobytes()
    assert np.asarray(lazy[index]).shape == whole[index].shape
    assert lazy.reshape(-1).tobytes() == whole.reshape(-1).tobytes()


def test_few_rows_are_read_alone(
    device: HostDevice, call: CallPlaces, shared: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stash = Stash(device, call.inputs)
    stash.take(shared)
    lazy = stash.lazy()["x"]
    assert isinstance(lazy, Lazy)
    monkeypatch.setattr(Stash, "__getitem__", lambda *_: pytest.fail("all of it was read"))
    assert lazy[np.array([3, 1])].shape == (2, 33)
