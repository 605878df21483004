"""How far sizes go, as operators declare it: what is drawn there is legal, and its reference agrees with itself."""

import math
from pathlib import Path

import numpy as np
import pytest

from kernelbraid.kernels.audit.checks import case_agreements, sized_cases
from kernelbraid.kernels.audit.sizes import Sizes
from kernelbraid.kernels.operators.cases import Call, load_reference
from kernelbraid.kernels.operators.operator import OperatorError, load_operator, operator_names, operator_targets

DECLARED = [(name, target) for name in operator_names() for target in operator_targets(name)]
SMALL = 2
PLAIN = (Path(__file__).parents[1] / "audit" / "operators" / "scale" / "operator.toml").read_text()
BEYOND = '[[beyond]]\nfull = "scale_full"\ndecode = "scale_decode"\n'


@pytest.mark.parametrize(("name", "target"), DECLARED)
def test_the_reference_of_a_whole_call_is_that_of_its_parts(name: str, target: str) -> None:
    # given: some calls at the sizes of what ships, the smallest ones
    operator = load_operator(name, target)
    reference = load_reference(operator)
    cases = sized_cases(operator, Sizes(operator).drawn(operator.best_sources(), 5))
    for case in sorted(cases, key=lambda case: math.prod(case.dims.values()))[:SMALL]:
        # when
        inputs = reference.make_inputs(case.full, case.dims, np.random.default_rng(case.seed), case.style)
        whole = reference.reference(case.full, case.dims, inputs)
        agreements = list(case_agreements(reference, Call(case.full, case.dims, inputs), case))
        # then
        assert {tensor.name: tensor.resolve(case.dims) for tensor in case.full.inputs} == {
            name: np.asarray(values).shape for name, values in inputs.items()
        }
        assert agreements
        for agreement in agreements[:6]:
            call = agreement.call
            part = reference.reference(call.entry, call.dims, call.inputs)[agreement.output]
            np.testing.assert_allclose(whole[agreement.output][agreement.index], part, rtol=1e-9, atol=1e-9)


def declared(folder: Path, more: str) -> str:
    (folder / "operator.toml").write_text(PLAIN + more)
    return str(folder)


def test_sizes_may_follow_from_others(tmp_path: Path) -> None:
    more = f'{BEYOND}dims = {{ rows = [1, 900], width = "rows" }}\nmost = 500\n'
    (beyond,) = load_operator(declared(tmp_path, more)).beyond
    assert (dict(beyond.dims), dict(beyond.same), beyond.most) == ({"rows": (1, 900)}, {"width": "rows"}, 500)
    shapes = Sizes(load_operator(declared(tmp_path, more))).drawn_at({64}, 3).shapes
    assert all(shape.dims["rows"] == shape.dims["width"] <= 500 for shape in shapes)
    assert any(shape.dims["rows"] > 64 for shape in shapes)


@pytest.mark.parametrize(
    ("dims", "cause"),
    [
        ('{ rows = [1, 9], width = "depth" }', "as large as depth, which has no range there"),
        ("{ rows = [9, 1], width = 3 }", "ranges .low, high."),
        ("{ rows = [1, 9] }", "lacks width"),
        ("{ rows = [50, 90], width = 11 }\nmost = 500", "their least product is 550, more than the most of 500"),
    ],
)
def test_what_is_wrong_in_a_range_is_named(dims: str, cause: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=cause):
        load_operator(declared(tmp_path, f"{BEYOND}dims = {dims}\n"))
