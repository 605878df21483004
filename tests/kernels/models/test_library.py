"""The library composition's conditions, which need no GPU to be refused."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from kernelbraid.kernels.models.library import STARVED, require_starved  # noqa: E402
from kernelbraid.kernels.models.refusal import Refusal  # noqa: E402

pytestmark = pytest.mark.usefixtures("starved")


def test_a_starved_process_is_taken() -> None:
    require_starved(STARVED)


@pytest.mark.parametrize("missing", sorted(STARVED))
def test_the_line_to_export_is_said_when_a_variable_is_missing(missing: str) -> None:
    # given
    environment = {name: value for name, value in STARVED.items() if name != missing}

    # when / then
    with pytest.raises(Refusal, match=f"{missing}.*export .*{missing}={STARVED[missing]}"):
        require_starved(environment)


def test_reduced_sums_are_refused() -> None:
    # given
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True

    # when / then
    with pytest.raises(Refusal, match="= False"):
        require_starved(STARVED)
