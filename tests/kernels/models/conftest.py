"""Small models, and the operators standing in as tests/kernels/runtime has it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process as the library composition wants it. The switch of torch has no attribute to patch."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from kernelbraid.kernels.models.library import STARVED

    for name, value in STARVED.items():
        monkeypatch.setenv(name, value)
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = False
    yield
    matmul.allow_bf16_reduced_precision_reduction = before


@pytest.fixture
def small() -> Callable[[str], Any]:
    """A model of two layers, by its type."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    def build(model_type: str) -> Any:
        sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": 128}
        if model_type == "qwen3_moe":
            sizes |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(model_type, **sizes)
        return transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()

    return build
