"""What is searched: operators, toolchains, the audit harness; and what was found, as PyTorch operators and models."""

from typing import Any, Literal


def unify(
    model: Any,
    kernels: Literal["unified", "library"] = "unified",
    attention: Literal["flash_attn_4", "triton"] | None = None,
) -> Any:
    """Make a Hugging Face Qwen2, Qwen3, Qwen3-MoE or Llama model keep its bits between a full forward and decode.

    Changes the model in place and gives it back; `kernels.models.unify.unify` says what the arguments mean. Needs
    torch, triton and transformers: pip install 'kernelbraid[gpu,models]'.
    """
    from kernelbraid.kernels.models.unify import unify as change

    return change(model, kernels, attention)


__all__ = ["unify"]
