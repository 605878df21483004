"""PyTorch's formulas against the float64 references: the same numbers, to the roundings that models do."""

import importlib.util
from typing import Any

import numpy as np
import pytest

from kernelbraid.kernels.operators.cases import load_reference
from kernelbraid.kernels.operators.operator import load_operator

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")
NORMS = ("rms_norm", "fused_add_rms_norm", "qk_norm")
NAMES = (*NORMS, "rope", "rope_store", "silu_and_mul", "kv_cache_store", "embedding", "topk_softmax", "moe_combine")
ROUNDINGS = 5 * 2**-8
"""Of a row's largest value: a norm, its weight, a table, two products and a sum in bfloat16 are the most."""


@pytest.mark.parametrize("name", NAMES)
def test_a_formula_is_the_operator_to_a_few_roundings(name: str) -> None:
    import torch

    from kernelbraid.kernels.operators.peers import PEERS

    def tensor(values: Any) -> Any:
        if values.dtype == np.uint16:
            return torch.from_numpy(values.view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(values.copy())

    # given each full entry's largest check without padding
    operator, reference = load_operator(name, "triton"), load_reference(load_operator(name, "triton"))
    for entry in (
        each for each in operator.entries if each.path == "full" and not each.symbol.startswith("topk_probabilities")
    ):
        checks = [check.dims for check in operator.checks if check.full == entry.symbol]
        fitting = [dims for dims in checks if dims.get("slots", 1) == dims.get("tokens", 1) or name != "rope_store"]
        dims = max(fitting, key=lambda each: int(np.prod(list(each.values()))))
        inputs = reference.make_inputs(entry, dims, np.random.default_rng(0), "normal")
        outputs = {each.name: torch.zeros(each.resolve(dims), dtype=torch.bfloat16) for each in entry.outputs}

        # when
        peer = PEERS[name]
        found = peer.function(*peer.arguments({key: tensor(np.asarray(inputs[key])) for key in inputs} | outputs))

        # then
        expected = reference.reference(entry, dims, inputs)
        for output, values in zip(entry.outputs, found if isinstance(found, tuple) else (found,), strict=True):
            if output.dtype == "int32":  # experts: of equal logits torch takes any
                continue
            got = values.double().numpy()
            largest = np.abs(expected[output.name]).max(axis=-1, keepdims=True)
            assert (np.abs(got - expected[output.name]) <= ROUNDINGS * largest).all(), (entry.symbol, output.name)
