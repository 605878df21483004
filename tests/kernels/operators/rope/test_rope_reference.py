"""The reference against the formula of a model, in its dtypes, and what a rotation is."""

import numpy as np
import pytest

from kernelbraid.kernels.operators.cases import Arrays, exact, load_module, load_reference, rounded
from kernelbraid.kernels.operators.operator import STYLES, load_operator

OPERATOR = load_operator("rope", "triton")
ENTRY = OPERATOR.entry("rope_full_bf16")
DIMS = {"tokens": 40, "query_heads": 5, "kv_heads": 1, "head_dim": 72, "max_position": 3000}


def drawn(style: str = "normal", **changed: int) -> tuple[dict[str, int], Arrays]:
    dims = {**DIMS, **changed}
    return dims, load_reference(OPERATOR).make_inputs(ENTRY, dims, np.random.default_rng(0), style)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("head_dim", [64, 72, 128])
def test_it_is_the_models_formula_to_its_roundings(style: str, head_dim: int) -> None:
    # given
    dims, inputs = drawn(style, head_dim=head_dim)

    # when
    found = load_reference(OPERATOR).reference(ENTRY, dims, inputs)

    # then a model casts cosines and sines, and rounds both products and their sum
    rows = rounded(inputs["cos_sin"].astype(np.float64))[inputs["positions"]][:, None]
    cos, sin = (np.tile(half, 2) for half in np.split(rows, 2, axis=2))
    for name in "qk":
        heads = exact(inputs[name])
        turned = np.concatenate((-heads[..., head_dim // 2 :], heads[..., : head_dim // 2]), axis=2)
        model = rounded(rounded(heads * cos) + rounded(turned * sin))
        largest = np.abs(heads).max(axis=2, keepdims=True)
        assert (np.abs(found[f"{name}_out"] - model) <= 3 * 2**-8 * 2 * largest).all()


def test_a_rotation_keeps_lengths_and_products_depend_on_distance_alone() -> None:
    # given the same head at positions 3, 10 and 103, 110
    dims, inputs = drawn(tokens=4, max_position=200)
    head = inputs["q"][:1]
    moved = {**inputs, "q": np.repeat(head, 4, axis=0), "positions": np.array([3, 10, 103, 110])}

    # when
    turned = load_reference(OPERATOR).reference(ENTRY, dims, moved)["q_out"]

    # then
    np.testing.assert_allclose(np.linalg.norm(turned, axis=2), np.linalg.norm(exact(head), axis=2).repeat(4, 0), 1e-6)
    products = (turned[::2] * turned[1::2]).sum(axis=2)
    np.testing.assert_allclose(products[0], products[1], rtol=1e-4, atol=1e-4)


def test_a_table_is_exact_to_one_rounding_and_positions_lie_within_it() -> None:
    # given
    table = load_module(OPERATOR.folder / "reference.py").cos_sin(5000, 128)
    _, inputs = drawn(tokens=2000, max_position=97)

    # then
    angle = 4999 * 1_000_000.0 ** -(np.arange(0, 128, 2) / 128)
    np.testing.assert_allclose(table[4999], np.concatenate((np.cos(angle), np.sin(angle))), rtol=1e-7, atol=1e-9)
    assert (table.dtype, table.shape) == (np.float32, (5000, 128))
    assert (inputs["positions"].min(), inputs["positions"].max()) == (0, 96)
