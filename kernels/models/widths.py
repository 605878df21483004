"""The five models whose layers are measured, as transformers' configurations name their sizes."""

from collections.abc import Mapping
from types import MappingProxyType

Sizes = Mapping[str, str | int | float | bool]


def _sizes(model_type: str, hidden: int, heads: tuple[int, int], **more: int | float | bool) -> Sizes:
    attention = {"num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": 128}
    return MappingProxyType({"model_type": model_type, "hidden_size": hidden, **attention, **more})


LAYERS: Mapping[str, int] = MappingProxyType(
    {"Qwen2.5-1.5B": 28, "Qwen3-4B": 36, "Qwen3-8B": 36, "Llama-3.1-8B": 32, "Qwen3-30B-A3B": 48}
)
WIDTHS: Mapping[str, Sizes] = MappingProxyType(
    {
        "Qwen2.5-1.5B": _sizes("qwen2", 1536, (12, 2), intermediate_size=8960, rms_norm_eps=1e-6),
        "Qwen3-4B": _sizes("qwen3", 2560, (32, 8), intermediate_size=9728, rms_norm_eps=1e-6),
        "Qwen3-8B": _sizes("qwen3", 4096, (32, 8), intermediate_size=12288, rms_norm_eps=1e-6),
        "Llama-3.1-8B": _sizes("llama", 4096, (32, 8), intermediate_size=14336, rms_norm_eps=1e-5),
        "Qwen3-30B-A3B": _sizes(
            "qwen3_moe",
            2048,
            (32, 4),
            intermediate_size=6144,
            moe_intermediate_size=768,
            num_experts=128,
            num_experts_per_tok=8,
            norm_topk_prob=True,
            rms_norm_eps=1e-6,
        ),
    }
)
"""Without vocabulary and number of layers, which a caller chooses."""
