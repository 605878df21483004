"""Triton operators on a GPU: zero differing bits over random shapes, and what no float64 says.

python -m pytest tests/kernels/operators/test_on_device.py -m gpu -s
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelbraid.kernels.audit.cuda.driver import device_count
from kernelbraid.kernels.operators.cases import Call, load_reference
from kernelbraid.kernels.operators.operator import load_operator

MISSING = (
    "no NVIDIA GPU here"
    if not device_count()
    else next((f"{name} is not installed" for name in ("torch", "triton") if not importlib.util.find_spec(name)), "")
)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
SHAPES = 200


@pytest.fixture(scope="module")
def device() -> Any:
    """on_device.py, which imports torch and triton."""
    spec = importlib.util.spec_from_file_location("on_device", Path(__file__).parent / "on_device.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["rms_norm", "linear", "attention"])
def test_no_bit_differs_over_random_shapes(name: str, device: Any, tmp_path: Path) -> None:
    # given
    operator = load_operator(name, "triton")
    root = device.load(operator, operator.root_sources(), tmp_path)

    # when
    counts, found = device.disagreements(root, SHAPES)

    # then
    print(f"\n{name}: {counts}")
    assert found == []
    assert counts["shapes"] == SHAPES


def test_a_sequence_without_keys_gives_zeros_and_leaves_its_neighbours_alone(device: Any, tmp_path: Path) -> None:
    # given a decode batch in which one sequence is padding, as under a CUDA graph
    operator = load_operator("attention", "triton")
    root = device.load(operator, operator.root_sources(), tmp_path)
    entry = operator.entry("attention_decode_bf16")
    dims = {"batch": 3, "steps": 1, "pages": 12, "page_tokens": 64, "slots": 4}
    dims |= {"query_heads": 8, "kv_heads": 2, "head_dim": 128, "ragged": 1}
    inputs = dict(load_reference(operator).make_inputs(entry, dims, np.random.default_rng(0), "normal"))
    alone = root.run(Call(entry, dims, inputs))

    # when
    padded = root.run(Call(entry, dims, {**inputs, "lengths": inputs["lengths"] * np.array([1, 0, 1], np.int32)}))

    # then
    assert not padded["out"][1].any()
    assert (padded["lse"][1] == -np.inf).all()
    for name in ("out", "lse"):
        assert (device.bits(padded[name][::2]) == device.bits(alone[name][::2])).all()


def test_a_graph_replays_the_bits_of_an_eager_call(device: Any, tmp_path: Path) -> None:
    import torch

    # given
    operator = load_operator("attention", "triton")
    root = device.load(operator, operator.root_sources(), tmp_path)
    workload = operator.workload("decode_b4_1k")
    entry = operator.entry(workload.entry)
    inputs = load_reference(operator).make_inputs(entry, workload.dims, np.random.default_rng(0), "normal")
    arguments = root.arguments(Call(entry, workload.dims, inputs))
    launch = vars(root.module)[entry.symbol]
    launch(*arguments)
    eager = arguments[-2].clone()

    # when
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(*arguments)
    arguments[-2].fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()

    # then
    assert (device.bits(arguments[-2]) == device.bits(eager)).all()
