"""The backward kernels compile for each architecture without a GPU, and on one give what their formulas do."""

from typing import Any

import pytest

from kernelbraid.kernels.audit.cuda.driver import device_count

torch = pytest.importorskip("torch", reason="torch is not installed")
triton = pytest.importorskip("triton", reason="triton is not installed")

from kernelbraid.kernels.runtime import backward_kernels, gradients  # noqa: E402

ROWS = {"x": "*bf16", "weight": "*bf16", "gradient": "*bf16", "more": "*bf16", "positions": "*i64", "cos_sin": "*fp32"}
ROWS |= {"of_x": "*bf16", "of_weight": "*fp32", "rows": "i32", "x_stride": "i32", "epsilon": "fp32"}
GATED = {"gate_up": "*bf16", "gradient": "*bf16", "of_gate_up": "*bf16", "inter": "i32", "blocks": "i32"}
on_a_gpu = pytest.mark.skipif(not device_count(), reason="no NVIDIA GPU here")


def compiled(kernel: Any, signature: dict[str, str], constants: dict[str, Any], capability: int) -> Any:
    source = triton.compiler.ASTSource(kernel, signature | dict.fromkeys(constants, "constexpr"), constants)
    return triton.compile(source, target=triton.backends.compiler.GPUTarget("cuda", capability, 32))


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("heads", "width", "norm", "turn", "more"), [(1, 1536, 1, 0, 1), (32, 128, 1, 1, 0)])
def test_rows_compile(heads: int, width: int, norm: int, turn: int, more: int, capability: int) -> None:
    # given
    block = triton.next_power_of_2(width)
    constants = {"HEADS": heads, "WIDTH": width, "NORM": bool(norm), "TURN": bool(turn), "MORE": bool(more)}
    tile = {"ROWS": max(1, backward_kernels.TILE // block), "BLOCK": block}

    # when / then
    assert compiled(backward_kernels.of_rows, ROWS, constants | tile, capability).asm["cubin"]


def test_the_gated_activation_compiles() -> None:
    assert compiled(backward_kernels.of_gated, GATED, {"BLOCK": backward_kernels.GATED_BLOCK}, 90).asm["cubin"]


def drawn(*shape: int) -> Any:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def alike(found: Any, formula: Any) -> bool:
    """To a few roundings of the largest element."""
    return bool((found.cpu().double() - formula.double()).abs().max() <= 0.02 * formula.double().abs().max())


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("width", [64, 896, 1536, 4096])
@pytest.mark.parametrize("rows", [1, 333, 8192])
def test_norms_follow_their_formula(rows: int, width: int) -> None:
    # given
    x, gradient, more, weight = drawn(rows, width), drawn(rows, width), drawn(rows, width), drawn(width)

    # when
    found = gradients.of_norm(x, weight, gradient, 1e-6, more)

    # then
    formula = gradients.of_norm(x.cpu(), weight.cpu(), gradient.cpu(), 1e-6, more.cpu())
    assert all(alike(one, other) for one, other in zip(found, formula, strict=True))


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize(("query_heads", "kv_heads", "head_dim"), [(14, 2, 64), (12, 2, 128), (32, 8, 128)])
@pytest.mark.parametrize("normed", [True, False])
def test_heads_follow_their_formula(query_heads: int, kv_heads: int, head_dim: int, normed: bool) -> None:
    # given
    counts = (query_heads, kv_heads, kv_heads)
    product, positions = drawn(301, sum(counts) * head_dim), torch.arange(301, device="cuda").flip(0)
    turn = (positions, torch.randn(301, head_dim, device="cuda"))
    passed = [drawn(301, count, head_dim) for count in counts]
    weights = [drawn(head_dim) if normed else None for _ in range(2)]

    def found(device: str) -> list[Any]:
        here = [None if each is None else each.to(device) for each in (product, *weights, *passed, *turn)]
        result = torch.zeros_like(here[0])
        parts = [each.unflatten(-1, (-1, head_dim)).split(counts, 1) for each in (here[0], result)]
        of_weights = gradients.of_heads(parts[0], here[1:3], here[3:6], (here[6], here[7]), 1e-6, parts[1])
        return [result, *(each for each in of_weights if each is not None)]

    # when / then
    assert all(alike(one, other) for one, other in zip(found("cuda"), found("cpu"), strict=True))


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("inter", [768, 4864, 9728])
def test_the_gated_activation_follows_its_formula(inter: int) -> None:
    # given
    gate_up, gradient = drawn(333, 2 * inter), drawn(333, inter)

    # when / then
    assert alike(gradients.of_gated(gate_up, gradient), gradients.of_gated(gate_up.cpu(), gradient.cpu()))
