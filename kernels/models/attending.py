"""Attention for Hugging Face models through `AttentionInterface`: FlashAttention-4 with one split, or our operator.

One function serves training, prefill and decode. Sequences may be padded on the right or packed with cu_seq_lens_q;
padding on the left is taken too, by laying the tokens together first. Rows of padding are zero.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from kernelbraid.kernels.models.cache import StaticCache
from kernelbraid.kernels.models.refusal import Refusal
from kernelbraid.kernels.runtime.attention import attention, attention_decode

FLASH_4, OURS = "kernelbraid_one_split", "kernelbraid_operators"
"""No name may hold "flash_attention": transformers would look for a kernel of that name."""
PACKED = "packed"
"""Stands for a mask where position_ids restart inside a row: only cu_seq_lens say where sequences begin. While
torch.compile traces, transformers cannot tell, and it stands there too."""
RESTART = "position_ids restart inside a row: pass cu_seq_lens_q, cu_seq_lens_k and max_length_q too"


@dataclass(frozen=True)
class Packed:
    """Sequences one after the other: where queries and keys of each start [batch + 1], and the most of one."""

    queries: torch.Tensor
    keys: torch.Tensor
    most_queries: int
    most_keys: int


@dataclass(frozen=True)
class Padded:
    """A batch with padding: which of its rows are tokens that ask and tokens that are seen, laid together."""

    asking: torch.Tensor
    seen: torch.Tensor
    packed: Packed


Whole = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Packed], torch.Tensor]
Cached = Callable[[torch.Tensor, StaticCache, int], torch.Tensor]


def register() -> None:
    """Make both known to transformers under their names. Registering again changes nothing."""
    AttentionInterface.register(OURS, _function(_ours, _ours_cached))
    AttentionInterface.register(FLASH_4, _function(_flash_4, _flash_4_cached))
    for name in (OURS, FLASH_4):
        AttentionMaskInterface.register(name, _mask)


def chosen(name: str) -> Callable[..., tuple[torch.Tensor, None]]:
    """The function that a model's configuration names. Raises Refusal where it names one of others."""
    if name not in (FLASH_4, OURS):
        raise Refusal(
            f"attention was set to {name} after unify, and rows would lose their bits: call unify(model) again"
        )
    found: Callable[..., tuple[torch.Tensor, None]] = AttentionInterface()[name]
    return found


def require_flash_4() -> None:
    """Raise Refusal unless flash_attn.cute can be imported."""
    if importlib.util.find_spec("flash_attn") is None or importlib.util.find_spec("flash_attn.cute") is None:
        raise Refusal("FlashAttention-4 is not installed: pip install --pre flash-attn-4, or take attention='triton'")


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: object = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    **_: object,
) -> Padded | str | None:
    """Where tokens lie, once for all layers; None without padding. Sequences packed by position alone are marked."""
    if isinstance(q_offset, torch.Tensor) or q_offset + q_length != kv_offset + kv_length:
        raise Refusal("a static cache of transformers is not supported: use kernelbraid's Decoder, or a DynamicCache")
    if mask_function is not causal_mask_function:
        return PACKED
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return _laid_together(attention_mask, q_length)


def _function(whole: Whole, cached: Cached) -> Callable[..., tuple[torch.Tensor, None]]:
    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        attention_mask: Padded | str | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        static_cache: StaticCache | None = None,
        cu_seq_lens_q: torch.Tensor | None = None,
        max_length_q: int | None = None,
        position_ids: torch.Tensor | None = None,
        **_: object,
    ) -> tuple[torch.Tensor, None]:
        """From query [batch, heads, tokens, head_dim], as transformers has it, to [batch, tokens, heads, head_dim]."""
        _check(query, scaling, dropout, sliding_window)
        q = query.transpose(1, 2)
        if static_cache is not None and static_cache.decoding:
            return cached(q, static_cache, module.layer_idx), None
        if key is None or value is None:
            raise Refusal("keys and values are in a static cache, which was not passed as static_cache")
        k, v = key.transpose(1, 2), value.transpose(1, 2)
        if cu_seq_lens_q is not None:
            most = max_length_q or int(torch.diff(cu_seq_lens_q).max())
            starts = cu_seq_lens_q.int()
            return _packed(whole, q, k, v, Packed(starts, starts, most, most)), None
        if isinstance(attention_mask, Padded):
            return _padded(whole, q, k, v, attention_mask), None
        if attention_mask is not None:
            _require_whole_rows(module, position_ids)
        packed = Packed(_starts(q), _starts(k), q.shape[1], k.shape[1])
        return _packed(whole, q, k, v, packed), None

    return attend


def _require_whole_rows(module: torch.nn.Module, position_ids: torch.Tensor | None) -> None:
    """Refuse positions that restart inside a row. While tracing none is known yet: then the device asserts it."""
    if not torch.compiler.is_compiling() or position_ids is None:
        raise Refusal(RESTART)
    if module.layer_idx == 0:
        torch._assert_async((torch.diff(position_ids, dim=-1) == 1).all(), RESTART)


def _check(query: torch.Tensor, scaling: float | None, dropout: float, sliding_window: int | None) -> None:
    usual = query.shape[-1] ** -0.5
    if scaling is not None and scaling != usual:
        raise Refusal(f"attention scales scores by 1 / sqrt(head_dim) = {usual}, not {scaling}")
    if dropout:
        raise Refusal(f"attention has no dropout, and {dropout} was asked for: set config.attention_dropout = 0")
    if sliding_window is not None:
        raise Refusal(f"attention is causal over all keys, not a window of {sliding_window}: set it to None")


def _starts(states: torch.Tensor) -> torch.Tensor:
    """Every row of a batch is one sequence."""
    batch, tokens = states.shape[:2]
    return torch.arange(0, (batch + 1) * tokens, tokens, dtype=torch.int32, device=states.device)


def _packed(whole: Whole, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, packed: Packed) -> torch.Tensor:
    return whole(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), packed).view(q.shape)


def _laid_together(mask: torch.Tensor, asking: int) -> Padded:
    """Of a mask [batch, keys], the last `asking` of which are queries. The device is waited for."""
    masks = (mask[:, -asking:], mask)
    rows = [each.flatten().nonzero().squeeze(1) for each in masks]
    counts = [each.sum(1, dtype=torch.int32) for each in masks]
    packed = Packed(_running(counts[0]), _running(counts[1]), int(counts[0].max()), int(counts[1].max()))
    return Padded(rows[0], rows[1], packed)


def _padded(whole: Whole, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, padded: Padded) -> torch.Tensor:
    """Tokens laid together, and their rows put back; padding stays zero."""
    rows, seen = padded.asking, padded.seen
    out = whole(q.flatten(0, 1)[rows], k.flatten(0, 1)[seen], v.flatten(0, 1)[seen], padded.packed)
    return torch.zeros_like(q).flatten(0, 1).index_copy(0, rows, out).view(q.shape)


def _running(counts: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))


def _ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, packed: Packed) -> torch.Tensor:
    return attention(q, k, v, packed.queries, packed.keys, packed.most_queries, packed.most_keys)[0]


def _ours_cached(q: torch.Tensor, cache: StaticCache, layer: int) -> torch.Tensor:
    return attention_decode(q, cache.keys[layer], cache.values[layer], cache.table, cache.lengths)[0]


def _flash_4(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, packed: Packed) -> torch.Tensor:
    from flash_attn.cute import flash_attn_varlen_func

    result = flash_attn_varlen_func(
        *(q.contiguous(), k.contiguous(), v.contiguous()),
        cu_seqlens_q=packed.queries,
        cu_seqlens_k=packed.keys,
        max_seqlen_q=packed.most_queries,
        max_seqlen_k=packed.most_keys,
        causal=True,
        num_splits=1,
    )
    return _output(result)


def _flash_4_cached(q: torch.Tensor, cache: StaticCache, layer: int) -> torch.Tensor:
    from flash_attn.cute import flash_attn_varlen_func

    result = flash_attn_varlen_func(
        *(q.contiguous(), cache.keys[layer], cache.values[layer]), seqused_k=cache.lengths, causal=True, num_splits=1
    )
    return _output(result)


def _output(result: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Releases differ in whether they give the log-sum-exp along."""
    return result[0] if isinstance(result, tuple) else result
