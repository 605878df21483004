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
from kernelbraid.kernels.operators.operator import load_operator, operator_names, operator_targets

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


NAMES = [name for name in operator_names() if "triton" in operator_targets(name)]


@pytest.mark.parametrize("name", NAMES)
def test_no_bit_differs_over_random_shapes(name: str, device: Any, tmp_path: Path) -> None:
    # given what ships
    operator = load_operator(name, "triton")
    best = device.load(operator, operator.best_sources(), tmp_path)

    # when
    counts, found = device.disagreements(best, SHAPES)

    # then
    print(f"\n{name}: {counts}")
    assert found == []
    assert counts["shapes"] >= SHAPES


def test_a_fused_norm_has_the_bits_of_the_norm_of_its_sum(device: Any, tmp_path: Path) -> None:
    # given
    fused, alone = (load_operator(name, "triton") for name in ("fused_add_rms_norm", "rms_norm"))
    loaded = [device.load(operator, operator.best_sources(), tmp_path) for operator in (fused, alone)]
    for rows, hidden in ((3, 65), (257, 1536), (64, 4096), (9, 1000)):
        entry, dims = fused.entry("fused_add_rms_norm_full_bf16"), {"rows": rows, "hidden": hidden}
        inputs = load_reference(fused).make_inputs(entry, dims, np.random.default_rng(0), "normal")
        found = loaded[0].run(Call(entry, dims, inputs))
        total = found["residual_out"].view(device.torch.int16).cpu().numpy().view(np.uint16)

        # when
        again = loaded[1].run(Call(alone.entry("rms_norm_decode_bf16"), dims, {"x": total, "weight": inputs["weight"]}))

        # then
        assert (device.bits(found["y"]) == device.bits(again["y"])).all()


@pytest.mark.parametrize("weights", ["softmax", "probabilities"])
@pytest.mark.parametrize("tokens", [20_000, 140_000])
@pytest.mark.parametrize("experts", [48, 64, 100, 112, 128])
def test_many_tokens_are_routed_as_few_are(
    experts: int, tokens: int, weights: str, device: Any, tmp_path: Path
) -> None:
    # given more tokens than any check has, with many equal logits, zeros of both signs among them
    torch, k = device.torch, 8
    operator = load_operator("topk_softmax", "triton")
    module = device.load(operator, operator.best_sources(), tmp_path).module
    full, decode = (vars(module)[f"topk_{weights}_{path}_bf16"] for path in ("full", "decode"))
    logits = (torch.randn(tokens, experts, device="cuda") * 2).round().div(2).to(torch.bfloat16)

    # when
    found = [
        (torch.empty(len(logits), k, device="cuda"), torch.empty(len(logits), k, dtype=torch.int32, device="cuda"))
        for _ in range(2)
    ]
    full(logits, *found[0])
    for first in range(0, tokens, 500):
        decode(logits[first : first + 500], *(part[first : first + 500] for part in found[1]))

    # then
    for whole, parts in zip(*found, strict=True):
        assert (device.bits(whole) == device.bits(parts)).all()


def test_a_cache_keeps_what_stands_in_other_slots(device: Any, tmp_path: Path) -> None:
    # given a cache of more slots than tokens, and padding among the tokens
    operator = load_operator("kv_cache_store", "triton")
    best = device.load(operator, operator.best_sources(), tmp_path)
    k, v = (device.torch.randn(3, 2, 128, dtype=device.torch.bfloat16, device="cuda") for _ in range(2))
    caches = [device.torch.full((10, 2, 128), 7.0, dtype=k.dtype, device="cuda") for _ in range(2)]
    slots = device.torch.tensor([8, -1, 2], device="cuda")

    # when
    best.module.kv_cache_store_decode_bf16(k, v, slots, *caches)

    # then
    for cache, values in zip(caches, (k, v), strict=True):
        assert (cache[[8, 2]] == values[[0, 2]]).all()
        assert (cache[[0, 1, 3, 4, 5, 6, 7, 9]] == 7.0).all()


@pytest.mark.parametrize("name", ["qk_norm", "rope", "kv_cache_store"])
def test_slices_of_one_product_give_the_bits_of_copies(name: str, device: Any, tmp_path: Path) -> None:
    # given q, k and v side by side, as one product leaves them
    torch = device.torch
    operator = load_operator(name, "triton")
    module = device.load(operator, operator.best_sources(), tmp_path).module
    product = torch.randn(37, (14 + 2 * 2) * 64, dtype=torch.bfloat16, device="cuda").view(37, 18, 64)
    q, k, v = product.split([14, 2, 2], dim=1)
    weight = torch.randn(64, dtype=torch.bfloat16, device="cuda")
    slots, table = torch.randperm(37, device="cuda"), torch.randn(37, 64, device="cuda")
    taken = {
        "qk_norm": ((q, k), (weight, weight)),
        "rope": ((q, k), (slots, table)),
        "kv_cache_store": ((k, v), (slots,)),
    }
    sliced, others = taken[name]

    # when
    results = []
    for inputs in (sliced, [part.contiguous() for part in sliced]):
        results.append([torch.empty_like(part, memory_format=torch.contiguous_format) for part in sliced])
        vars(module)[f"{name}_full_bf16"](*inputs, *others, *results[-1])

    # then
    for found, expected in zip(*results, strict=True):
        assert (device.bits(found) == device.bits(expected)).all()


@pytest.mark.parametrize("head_dim", [64, 72, 80, 128, 256])
@pytest.mark.parametrize("heads", [(14, 2), (32, 8), (5, 5), (16, 1)])
def test_one_launch_has_the_bits_of_three(head_dim: int, heads: tuple[int, int], device: Any, tmp_path: Path) -> None:
    # given slices of one product, and padding
    torch, tokens, (of_q, of_k) = device.torch, 41, heads
    names = ("rope_store", "qk_norm", "rope", "kv_cache_store")
    operators = [load_operator(name, "triton") for name in names]
    fused, norm, rope, store = (
        device.load(operator, operator.best_sources(), tmp_path).module for operator in operators
    )

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, dtype=torch.bfloat16, device="cuda")

    q, k, v = drawn(tokens, of_q + 2 * of_k, head_dim).split([of_q, of_k, of_k], dim=1)
    weights = (drawn(head_dim), drawn(head_dim))
    positions, table = torch.randint(0, 90, (tokens,), device="cuda"), torch.randn(90, head_dim, device="cuda")
    slots = torch.where(torch.arange(tokens, device="cuda") % 5 == 0, -1, torch.randperm(tokens, device="cuda"))

    def cache() -> Any:
        return torch.full((tokens, of_k, head_dim), 7.0, dtype=q.dtype, device="cuda")

    found, other = ([drawn(tokens, of_q, head_dim), cache(), cache()] for _ in range(2))

    # when
    fused.qk_norm_rope_store_full_bf16(q, k, v, *weights, positions, table, slots, *found)
    fused.rope_store_decode_bf16(q, k, v, positions, table, slots, *other)

    # then
    for results, normal in ((found, True), (other, False)):
        heads_of = [torch.empty(part.shape, dtype=q.dtype, device="cuda") for part in (q, k)]
        if normal:
            norm.qk_norm_decode_bf16(q, k, *weights, *heads_of)
        turned = [torch.empty_like(part) for part in heads_of]
        rope.rope_decode_bf16(*(heads_of if normal else (q, k)), positions, table, *turned)
        caches = [cache(), cache()]
        store.kv_cache_store_full_bf16(turned[1], v, slots, *caches)
        for part, wanted in zip(results, (turned[0], *caches), strict=True):
            assert (device.bits(part) == device.bits(wanted)).all()


def test_heads_are_turned_in_place_and_at_positions_of_any_integer_type(device: Any, tmp_path: Path) -> None:
    # given
    operator = load_operator("rope", "triton")
    best = device.load(operator, operator.best_sources(), tmp_path)
    dims = {"tokens": 37, "query_heads": 14, "kv_heads": 2, "head_dim": 64, "max_position": 900}
    entry = operator.entry("rope_full_bf16")
    inputs = load_reference(operator).make_inputs(entry, dims, np.random.default_rng(0), "normal")
    q, k, positions, cos_sin, *outputs = best.arguments(Call(entry, dims, inputs))
    best.module.rope_full_bf16(q, k, positions, cos_sin, *outputs)

    # when
    best.module.rope_full_bf16(q, k, positions.to(device.torch.int32), cos_sin, q, k)

    # then
    for found, expected in zip((q, k), outputs, strict=True):
        assert (device.bits(found) == device.bits(expected)).all()


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
