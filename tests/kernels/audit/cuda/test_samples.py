"""Samples of timed calls: every packaged operator takes a decode call apart, and the parts are what they should be."""

from math import prod
from pathlib import Path

import numpy as np
import pytest

from kernelbraid.kernels.audit.cuda.samples import _by_rows, paths_of
from kernelbraid.kernels.audit.layout import DTYPES
from kernelbraid.kernels.operators.cases import Call, load_reference
from kernelbraid.kernels.operators.operator import Operator, Workload, load_operator, operator_targets

OPERATORS = Path(__file__).parents[4] / "kernels" / "operators"
NAMES = sorted(path.parent.name for path in OPERATORS.glob("*/operator.toml"))
ON_DEVICES = [name for name in NAMES if "triton" in operator_targets(name)]


MOST_BYTES = 64 << 20


def smallest_decode(operator: Operator) -> Workload | None:
    """The decode workload with the fewest bytes, if those are few."""

    def size_bytes(workload: Workload) -> int:
        entry = operator.entry(workload.entry)
        tensors = (*entry.inputs, *entry.outputs)
        return sum(prod(tensor.resolve(workload.dims)) * DTYPES[tensor.dtype].itemsize for tensor in tensors)

    decodes = [workload for workload in operator.workloads if operator.entry(workload.entry).path == "decode"]
    return min((workload for workload in decodes if size_bytes(workload) < MOST_BYTES), key=size_bytes, default=None)


@pytest.mark.parametrize("name", ON_DEVICES)
def test_parts_of_a_decode_call_are_calls_of_their_own(name: str) -> None:
    operator = load_operator(name, "triton")
    reference, workload = load_reference(operator), smallest_decode(operator)
    if workload is None:
        pytest.skip(f"{name} has no small decode workload")
    entry = operator.entry(workload.entry)
    paths = paths_of(operator, entry)
    assert paths is not None
    inputs = reference.make_inputs(entry, workload.dims, np.random.default_rng(0), "normal")
    whole = reference.reference(entry, workload.dims, inputs)
    samples = list(reference.samples(Call(entry, workload.dims, inputs), paths[1], np.random.default_rng(1)))
    assert samples
    for sample in samples:
        call = sample.call
        assert {name: np.asarray(values).shape for name, values in call.inputs.items()} == {
            tensor.name: tensor.resolve(call.dims) for tensor in call.entry.inputs
        }
        expected = _by_rows(whole[sample.output], sample.output, *paths)[sample.index]
        found = reference.reference(call.entry, call.dims, call.inputs)[sample.output]
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
