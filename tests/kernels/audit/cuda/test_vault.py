"""Secret inputs: every message's calls are mixtures of drawn sets at the same places, and never twice the same."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from kernelbraid.kernels.audit.cuda.device import Buffer, DeviceFacts
from kernelbraid.kernels.audit.cuda.host import HostDevice
from kernelbraid.kernels.audit.cuda.vault import Message, Vault
from kernelbraid.kernels.operators.cases import load_reference
from kernelbraid.kernels.operators.operator import Operator

MIB = 1 << 20


@pytest.fixture
def device() -> Iterator[HostDevice]:
    """Large enough for a few calls of each workload."""
    device = HostDevice(DeviceFacts("host memory", "host", "none", MIB, 256 * MIB))
    yield device
    device.close()


@pytest.fixture
def vault(scale: Operator, device: HostDevice) -> Vault:
    """The tiny operator's."""
    return Vault(device, scale, load_reference(scale), np.random.default_rng(3))


def tensors(message: Message, device: HostDevice, shared: Buffer) -> list[dict[str, np.ndarray]]:
    """What a candidate would find, call by call."""
    return [
        {
            place.tensor.name: device.download(shared, place.offset, place.bytes).view(np.float32).reshape(place.shape)
            for place in call.inputs
        }
        for call in message.layout.calls
    ]


@pytest.mark.parametrize("counts", [(1, 1), (3, 8), (5, 16)])
def test_every_call_is_a_mixture_of_the_drawn_sets(
    vault: Vault, device: HostDevice, scale: Operator, counts: tuple[int, int]
) -> None:
    shared = device.allocate(vault.shared_bytes()[0])
    rng = np.random.default_rng(5)
    for message in vault.messages(counts):
        sets = vault._sets[message.workload.name]
        seen = set()
        for _ in range(4):
            message.lay_out(device, shared, rng)
            for call in tensors(message, device, shared):
                for name, found in call.items():
                    offsets = [where[name] for where in sets.where]
                    drawn = np.stack([device.download(sets.source, at, found.nbytes) for at in offsets])
                    assert (found[None] == drawn.view(found.dtype).reshape(len(drawn), *found.shape)).any(axis=0).all()
                seen.add(b"".join(found.tobytes() for found in call.values()))
        assert len(seen) == 4 * len(message.layout.calls)


def test_workloads_share_the_buffers_without_overlap(vault: Vault) -> None:
    messages = vault.messages(vault.most_calls)
    edges = [(m.layout.input_offset, m.layout.input_end, m.layout.windows[0][0], m.layout.output_end) for m in messages]
    for (_, input_end, _, output_end), (next_input, _, next_output, _) in pairwise(edges):
        assert input_end <= next_input
        assert output_end <= next_output
    assert vault.shared_bytes() == (edges[-1][1], edges[-1][3])


def test_memory_that_a_small_workload_leaves_goes_to_the_large_ones(vault: Vault, scale: Operator) -> None:
    full, decode = vault.most_calls
    assert 1 <= full < decode, "a call of the first workload takes twice the second's bytes"


def test_blocks_of_another_size_give_their_memory_back(vault: Vault, device: HostDevice) -> None:
    vault.messages((4, 4))
    before = len(device._files)
    vault.messages((2, 4))
    assert len(device._files) == before
