"""Sampling with stand-ins for the operators. Equal bits need a GPU."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from kernelbraid.kernels import unify  # noqa: E402
from kernelbraid.kernels.models.decoding import Decoder  # noqa: E402
from kernelbraid.kernels.models.rollout import finished, sample  # noqa: E402
from kernelbraid.kernels.models.scoring import token_log_probabilities  # noqa: E402
from kernelbraid.kernels.runtime import ran  # noqa: E402

pytestmark = pytest.mark.usefixtures("standing_in", "starved")


@pytest.mark.parametrize("kernels", ["unified", "library"])
def test_sampled_log_probabilities_are_those_of_the_finished_sequences(
    kernels: Any, small: Callable[[str], Any]
) -> None:
    # given prompts of 5, 1 and 3 tokens
    model = unify(small("qwen3"), kernels, attention="triton")
    prompts, lengths = torch.randint(0, 64, (3, 5)), torch.tensor([5, 1, 3])

    # when
    rollout = sample(Decoder(model, 3, 12), prompts, lengths, new=6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        again = token_log_probabilities(model, finished(prompts, lengths, rollout))

    # then
    assert rollout.tokens.shape == (3, 6)
    for row, length in enumerate(lengths.tolist()):
        found = again[row, length - 1 : length + 5]
        assert (found - rollout.log_probabilities[row]).abs().max() < 0.02
    assert ("log_softmax_gather" in {each.operator for each in ran()}) == (kernels == "unified")


def test_the_same_seed_samples_the_same_tokens(small: Callable[[str], Any]) -> None:
    # given
    model = unify(small("qwen2"))
    prompts, lengths = torch.randint(0, 64, (2, 4)), torch.tensor([4, 2])

    # when
    first, second = (
        sample(Decoder(model, 2, 10), prompts, lengths, new=5, generator=torch.Generator().manual_seed(3)).tokens
        for _ in range(2)
    )

    # then
    assert torch.equal(first, second)
