"""Layers computed as one: their results, and gradients that reach each of them."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from kernelbraid.kernels.models.joined import join  # noqa: E402
from kernelbraid.kernels.models.refusal import Refusal  # noqa: E402

pytestmark = pytest.mark.usefixtures("standing_in")


@pytest.mark.parametrize("bias", [True, False])
def test_results_and_gradients_are_those_of_the_layers_one_by_one(bias: bool) -> None:
    # given
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, outs, bias=bias, dtype=torch.bfloat16) for outs in (16, 32)]
    exact = [torch.nn.Linear(64, outs, bias=bias, dtype=torch.float64) for outs in (16, 32)]
    for layer, other in zip(layers, exact, strict=True):
        other.load_state_dict({name: value.double() for name, value in layer.state_dict().items()})
    x = torch.randn(5, 64).bfloat16()

    # when
    y = join(layers)(x, *layers)
    y.double().square().sum().backward()

    # then
    expected = torch.cat([other(x.double()) for other in exact], -1)
    expected.square().sum().backward()
    assert (y - expected).abs().max() <= 0.02 * expected.abs().max()
    for layer, other in zip(layers, exact, strict=True):
        for mine, theirs in zip(layer.parameters(), other.parameters(), strict=True):
            assert (mine.grad - theirs.grad).abs().max() <= 0.02 * theirs.grad.abs().max()


def test_a_bias_on_some_layers_alone_is_refused() -> None:
    with pytest.raises(Refusal, match="some have none"):
        join([torch.nn.Linear(64, 8, bias=bias, dtype=torch.bfloat16) for bias in (True, False)])


def test_what_is_no_plain_linear_layer_is_refused() -> None:
    with pytest.raises(Refusal, match="Identity is no plain linear layer"):
        join([torch.nn.Linear(64, 8, dtype=torch.bfloat16), torch.nn.Identity()])
