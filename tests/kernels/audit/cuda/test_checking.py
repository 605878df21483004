"""How checks fill messages on a device."""

from unittest.mock import Mock

import numpy as np
import pytest

from kernelbraid.kernels.audit.checks import Case, Tally, drawn_agreements
from kernelbraid.kernels.audit.cuda.checking import CHECKED_MESSAGES, BatchedChecker, Due
from kernelbraid.kernels.audit.layout import plan_layout
from kernelbraid.kernels.operators.cases import Call, Reference, load_reference
from kernelbraid.kernels.operators.operator import Operator, load_operator


@pytest.fixture(scope="module")
def attention() -> Operator:
    """Of each call, output and logarithm are compared."""
    return load_operator("attention", "triton")


def checker(operator: Operator, reference: Reference, message_bytes: int) -> BatchedChecker:
    """Without processes."""
    return BatchedChecker(operator, reference, Mock(), Mock(), Mock(), message_bytes, Tally())


def due(operator: Operator, reference: Reference) -> Due:
    """The full-path call of a small declared shape."""
    check = min(operator.checks, key=lambda check: check.dims["tokens"])
    full, decode = operator.entry(check.full), operator.entry(check.decode)
    inputs = reference.make_inputs(full, check.dims, np.random.default_rng(0), "normal")
    return Due(Case(full, decode, check.dims, "normal", 0), Call(full, check.dims, inputs))


def test_a_call_of_which_several_outputs_are_compared_is_made_once(attention: Operator) -> None:
    # given
    reference = load_reference(attention)
    one = due(attention, reference)

    # when
    found = list(checker(attention, reference, 1 << 20)._agreements([one], [{}]))

    # then nothing that is to be compared is lost
    assert len({id(item.call) for item in found}) == len(found)
    expected = list(drawn_agreements(reference.agreements(one.call, one.case.decode), one.case))
    assert [agreement.output for item in found for agreement in item.agreements] == [item.output for item in expected]
    assert {len(item.agreements) for item in found} == {2}


def test_a_message_that_would_lie_over_others_is_refused(attention: Operator) -> None:
    reference = load_reference(attention)
    one = due(attention, reference)
    layout = plan_layout(0, [(one.call.entry, one.call.dims)])
    own = checker(attention, reference, max(layout.input_end, layout.output_end) // CHECKED_MESSAGES - 1)
    with pytest.raises(ValueError, match="more than checks have room for"):
        own._message(own.first, layout, [one], look_again=False)
