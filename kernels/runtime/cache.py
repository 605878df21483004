"""Keys and values of new tokens into a cache."""

import torch

from kernelbraid.kernels.runtime import tensors
from kernelbraid.kernels.runtime.loading import entry
from kernelbraid.kernels.runtime.registering import by_rows, call, register


def kv_cache_store(
    k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    """Write k and v [tokens, kv_heads, head_dim] to slots [tokens] int64 of caches [slots, kv_heads, head_dim].

    A token whose slot is -1 is padding and goes nowhere.
    """
    call("kv_cache_store", k.contiguous(), v.contiguous(), slots, k_cache, v_cache)


def _kv_cache_store(
    k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    _kv_cache_store_fake(k, v, slots, k_cache, v_cache)
    entry("kv_cache_store", by_rows("kv_cache_store", len(k)))(k, v, slots, k_cache, v_cache)


def _kv_cache_store_fake(
    k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> None:
    name = "kv_cache_store"
    tensors.bfloat16(name, k=k, v=v, k_cache=k_cache, v_cache=v_cache)
    tensors.of_dtype(name, torch.int64, slots=slots)
    tensors.shaped(name, "k", k, ("tokens", "kv_heads", "head_dim"))
    tensors.shaped(name, "v", v, k.shape)
    tensors.shaped(name, "slots", slots, (k.shape[0],))
    tensors.shaped(name, "k_cache", k_cache, ("slots", *k.shape[1:]))
    tensors.shaped(name, "v_cache", v_cache, k_cache.shape)
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError(f"{name} takes contiguous caches: allocate them as [slots, kv_heads, head_dim]")


register(_kv_cache_store, _kv_cache_store_fake, mutates=("k_cache", "v_cache"))
