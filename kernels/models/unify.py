"""Make a Hugging Face model keep its bits between a full forward and decode."""

from typing import Literal, TypeVar, assert_never

import torch

from kernelbraid.kernels.models import attending, library, unified
from kernelbraid.kernels.models.refusal import Refusal

Kernels = Literal["unified", "library"]
Attention = Literal["flash_attn_4", "triton"]
MODEL_TYPES = ("qwen2", "qwen3", "qwen3_moe", "llama")

Model = TypeVar("Model", bound=torch.nn.Module)


def unify(model: Model, kernels: Kernels = "unified", attention: Attention | None = None) -> Model:
    """Change a Qwen2, Qwen3, Qwen3-MoE or Llama model in place, and give it back.

    `kernels="library"` composes what others ship: FlashAttention-4 with one split (or `attention="triton"`, ours),
    cuBLASLt without workspace, torch's fused norms. `"unified"` puts norms, RoPE, MLP, router, linear layers, embedding
    and attention on our operators. Call it again after the model was moved. Raises Refusal (a ValueError) for another
    architecture, dtype or setting.
    """
    _require_supported(model)
    match kernels:
        case "library":
            library.require_starved()
            if unified.is_unified(model):
                raise Refusal("the model is on our operators already: load it anew for kernels='library'")
            library.change_norms(model)
            _attend(model, attention or "flash_attn_4")
        case "unified":
            unified.change(model)
            _attend(model, attention or "triton")
        case _:
            assert_never(kernels)
    return model


def _require_supported(model: torch.nn.Module) -> None:
    config = getattr(model, "config", None)
    if config is None or getattr(config, "model_type", None) not in MODEL_TYPES:
        kind = getattr(config, "model_type", type(model).__name__)
        raise Refusal(f"{kind} is not supported: unify takes {', '.join(MODEL_TYPES)}")
    if {parameter.dtype for parameter in model.parameters()} != {torch.bfloat16}:
        raise Refusal("unify takes models in bfloat16: convert it first with model.to(torch.bfloat16)")
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise Refusal("layers with sliding windows are not supported: set config.use_sliding_window = False")


def _attend(model: torch.nn.Module, attention: Attention) -> None:
    attending.register()
    match attention:
        case "flash_attn_4":
            attending.require_flash_4()
            model.set_attn_implementation(attending.FLASH_4)
        case "triton":
            model.set_attn_implementation(attending.OURS)
        case _:
            assert_never(attention)
