"""Proof that the checks can fail: broken twins of a root, and answers that no tolerance may take.

A harness that judges the wrong program, or compares nothing, verifies everything. So a root qualifies only where a twin
of its own, wrong in the lowest bit of one element, is caught by the same checks in the same box.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.audit.comparison import inaccuracy, widened
from kernelbraid.kernels.audit.layout import DTYPES
from kernelbraid.kernels.audit.outcome import Candidate
from kernelbraid.kernels.operators.cases import Reference, to_bfloat16
from kernelbraid.kernels.operators.operator import Entry, Operator, Tensor

TWIN = "broken_twin.c"


def broken_twin(root: Candidate, entries: Sequence[Entry]) -> Candidate:
    """The root with the lowest bit of each entry's last output element flipped, after its own work.

    The root's sources stay as they are: its entries are renamed for the compiler, and a unit beside them calls them.
    """
    renamed = tuple(f"-D{entry.symbol}=sound_{entry.symbol}" for entry in entries)
    twin = "#include <stdint.h>\n" + "".join(map(_wrapper, entries))
    return Candidate(f"broken twin of {root.name}", {**root.sources, TWIN: twin}, (*root.flags, *renamed))


def _wrapper(entry: Entry) -> str:
    tensors = (*entry.inputs, *entry.outputs)
    taken = ", ".join(f"void *a{number}" for number in range(len(tensors)))
    given = ", ".join(f"a{number}" for number in range(len(tensors)))
    output, place = entry.outputs[0], len(entry.inputs)
    word = f"uint{8 * DTYPES[output.dtype].itemsize}_t"
    return (
        f"#undef {entry.symbol}\n"
        f"void sound_{entry.symbol}({taken}, const int64_t *dims);\n"
        f"void {entry.symbol}({taken}, const int64_t *dims)\n{{\n"
        f"    sound_{entry.symbol}({given}, dims);\n"
        f"    (({word} *)a{place})[{_elements(output, entry)} - 1] ^= 1;\n}}\n"
    )


def _elements(tensor: Tensor, entry: Entry) -> str:
    """C for the number of a tensor's elements."""
    sizes = [f"dims[{entry.dims.index(item)}]" if isinstance(item, str) else str(item) for item in tensor.shape]
    return " * ".join(sizes or ["1"])


def accepted_forgeries(operator: Operator, reference: Reference, seed: int) -> list[str]:
    """Answers that need no work and that the operator's tolerance would take: each by entry, output and kind.

    Tried on the largest declared case of each full entry. An answer that is exactly right is none of them.
    """
    found = []
    for entry, dims in _largest_cases(operator).items():
        rng = np.random.default_rng(seed)
        inputs, others = (reference.make_inputs(operator.entry(entry), dims, rng, "normal") for _ in range(2))
        exact, another = (reference.reference(operator.entry(entry), dims, each) for each in (inputs, others))
        tolerance = operator.tolerances[operator.entry(entry).dtype]
        for tensor in operator.entry(entry).outputs:
            if tensor.name not in exact or tensor.dtype == "int32":
                continue
            for kind, values in _forgeries(exact[tensor.name], another[tensor.name], inputs):
                forged = to_bfloat16(values) if tensor.dtype == "bfloat16" else values.astype(np.float32)
                right = np.array_equal(widened(forged), exact[tensor.name])
                if not right and inaccuracy(forged, exact[tensor.name], tolerance) is None:
                    found.append(f"{entry}: {kind} passes for {tensor.name}")
    return found


def _largest_cases(operator: Operator) -> Mapping[str, Mapping[str, int]]:
    largest: dict[str, Mapping[str, int]] = {}
    for check in operator.checks:
        if np.prod(list(check.dims.values())) > np.prod(list(largest.get(check.full, {"none": 0}).values())):
            largest[check.full] = check.dims
    return largest


def _forgeries(
    exact: NDArray[np.float64], another: NDArray[np.float64], inputs: Mapping[str, NDArray[Any]]
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    yield "zeros", np.zeros_like(exact)
    yield "the mean", np.full_like(exact, exact.mean())
    yield "the mean of each row", np.broadcast_to(np.atleast_1d(exact).mean(axis=-1, keepdims=True), exact.shape).copy()
    yield "the answer to other inputs", another
    for name, values in inputs.items():
        if values.shape == exact.shape and values.dtype != np.int32:
            yield f"a copy of {name}", widened(values)
