"""rms_norm's root, reference and declaration: what is checked would catch a wrong kernel."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernelbraid.kernels.operators.cases import Call, from_bfloat16, load_reference, to_bfloat16
from kernelbraid.kernels.operators.operator import STYLES, OperatorError, load_operator
from kernelbraid.kernels.operators.regions import edit_region, regions

OPERATOR = load_operator("rms_norm")


@pytest.fixture
def bench(bench_of: Callable[[str], Any]) -> Any:
    return bench_of("rms_norm")


def test_the_root_agrees_and_is_accurate(bench: Any) -> None:
    library = bench.library(OPERATOR.root_sources())
    assert bench.disagreements(library) == []
    assert bench.inaccuracies(lambda call: bench.call(library, call)) == []


@pytest.mark.parametrize("baseline", OPERATOR.baselines, ids=lambda baseline: baseline.name)
def test_a_baseline_builds_from_complete_sources(baseline: Any, bench: Any) -> None:
    artifact = bench.artifact(OPERATOR.baseline_sources(baseline), baseline.flags).read_bytes()
    assert all(entry.symbol.encode() in artifact for entry in OPERATOR.entries)


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(lambda call, exact: np.zeros_like(exact), id="zeros"),
        pytest.param(lambda call, exact: np.full_like(exact, exact.mean()), id="the mean"),
        pytest.param(lambda call, exact: np.resize(_widened(call.inputs["x"]), exact.shape), id="a copy of x"),
        pytest.param(lambda call, exact: exact * 1.01, id="one percent too large"),
        pytest.param(lambda call, exact: exact * np.nan, id="NaN"),
    ],
)
def test_a_wrong_output_is_inaccurate(output: Any, bench: Any) -> None:
    # given outputs that a lazy or broken kernel could leave
    reference = load_reference(OPERATOR)

    def wrong(call: Call) -> dict[str, Any]:
        exact = reference.reference(call.entry, call.dims, call.inputs)["y"]
        values = output(call, exact).astype(np.float32)
        return {"y": values if call.entry.dtype == "float32" else to_bfloat16(values)}

    # when / then every check whose result is not zero anyway says so
    bad = bench.inaccuracies(wrong)
    assert len(bad) >= 0.8 * sum(len(check.styles) for check in OPERATOR.checks)


def _widened(values: Any) -> Any:
    return (from_bfloat16(values) if values.dtype == np.uint16 else values).astype(np.float64)


def test_a_path_that_adds_in_another_order_disagrees(bench: Any) -> None:
    # given a root whose decode path alone adds last to first
    reverse = (
        "    for (int64_t row = 0; row < n.rows; row++) {\n        float sum = 0;\n"
        "        for (int64_t k = n.hidden - 1; k >= 0; k--)\n"
        "            sum += load(n.x, row * n.hidden + k, n.type) * load(n.x, row * n.hidden + k, n.type);\n"
        "        scale_row(n, row, inverse_rms(sum, n.hidden));\n    }\n"
    )
    forward = "    for (int64_t row = 0; row < n.rows; row++)\n        norm_row(n, row);\n"
    broken = edit_region(OPERATOR.root_sources(), "decode", forward, reverse)

    # when
    found = bench.disagreements(bench.library(broken))

    # then in float32 nearly every shape longer than two elements shows it
    assert any("full_f32" in text for text in found)


@pytest.mark.parametrize("style", STYLES)
def test_inputs_have_the_declared_shapes_and_dtypes_in_every_style(style: str) -> None:
    for entry in OPERATOR.entries:
        dims = {name: 3 + i for i, name in enumerate(entry.dims)}
        inputs = load_reference(OPERATOR).make_inputs(entry, dims, np.random.default_rng(0), style)
        for tensor in entry.inputs:
            assert inputs[tensor.name].shape == tensor.resolve(dims)
            assert inputs[tensor.name].dtype == (np.float32 if tensor.dtype == "float32" else np.uint16)


def test_an_unknown_style_is_refused() -> None:
    entry = OPERATOR.entries[0]
    with pytest.raises(OperatorError, match="unknown style loud"):
        load_reference(OPERATOR).make_inputs(entry, dict.fromkeys(entry.dims, 2), np.random.default_rng(0), "loud")


def test_agreements_reach_every_row_alone_and_together() -> None:
    # given a full call of seven rows
    entry, decode = OPERATOR.entry("rms_norm_full_f32"), OPERATOR.entry("rms_norm_decode_f32")
    dims = dict.fromkeys(entry.dims, 7)
    call = Call(entry, dims, load_reference(OPERATOR).make_inputs(entry, dims, np.random.default_rng(0), "normal"))

    # when
    found = list(load_reference(OPERATOR).agreements(call, decode))

    # then
    batches = {(each.call.entry.path, each.index[0].start, each.index[0].stop) for each in found}
    assert {("decode", row, row + 1) for row in range(7)} <= batches
    assert ("decode", 0, 7) in batches
    assert any(path == "full" and start > 0 for path, start, _ in batches)


def test_every_declared_region_is_in_the_root() -> None:
    assert {region.name for region in OPERATOR.regions} == set(regions(OPERATOR.root_sources())) - {"frame"}
