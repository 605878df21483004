"""What lies between the product for query, key and value and attention: norms, rotary embedding and the cache, at once.

The bits are those of `qk_norm`, `rope` and `kv_cache_store` one after another.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from kernelbraid.kernels.runtime import tensors
from kernelbraid.kernels.runtime.gradients import of_heads
from kernelbraid.kernels.runtime.loading import entry
from kernelbraid.kernels.runtime.registering import by_rows, call, register

NAME = "rope_store"
GIVEN = (
    "Tensor qkv, int query_heads, Tensor positions, Tensor cos_sin, Tensor? q_weight, Tensor? k_weight, float epsilon"
)
STORED = "Tensor slots, Tensor(a!) k_cache, Tensor(b!) v_cache"


class _Given(NamedTuple):
    """What both operators take first, as GIVEN says."""

    qkv: torch.Tensor
    query_heads: int
    positions: torch.Tensor
    cos_sin: torch.Tensor
    q_weight: torch.Tensor | None
    k_weight: torch.Tensor | None
    epsilon: float

    def parts(self, product: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """q, k and v [tokens, heads, head_dim] of a product that lies as qkv does."""
        heads = product.unflatten(-1, (-1, self.cos_sin.shape[-1]))
        kv_heads = (heads.shape[1] - self.query_heads) // 2
        parts: tuple[torch.Tensor, ...] = heads.split((self.query_heads, kv_heads, kv_heads), 1)
        return parts


def heads(
    qkv: torch.Tensor,
    query_heads: int,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    norms: Sequence[torch.Tensor] = (),
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [tokens, query_heads, head_dim], k and v [tokens, kv_heads, head_dim], ready for attention and contiguous.

    qkv [tokens, (query_heads + 2 * kv_heads) * head_dim] holds a token's heads of q, k and v side by side. q and k are
    normalised where `norms` has a weight [head_dim] for each, and turned to positions [tokens] int64 of cos_sin
    [max_position, head_dim] float32.
    """
    q, k, v = call("heads", qkv, query_heads, positions, cos_sin, *_pair(norms), epsilon)
    return q, k, v


def heads_stored(
    qkv: torch.Tensor,
    query_heads: int,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    norms: Sequence[torch.Tensor] = (),
    epsilon: float = 1e-6,
) -> torch.Tensor:
    """The queries alone; keys and values go to slots [tokens] int64 of caches [slots, kv_heads, head_dim].

    A token whose slot is -1 is padding and is stored nowhere. No backward.
    """
    given = (qkv, query_heads, positions, cos_sin, *_pair(norms), epsilon)
    return call("heads_stored", *given, slots, k_cache, v_cache)


def _pair(norms: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if len(norms) not in (0, 2):
        raise ValueError(f"{NAME} takes a weight for q and one for k, or none, not {len(norms)}")
    return (norms[0], norms[1]) if norms else (None, None)


def _heads(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = _heads_fake(*arguments)
    _launch(_Given(*arguments), torch.arange(len(q), device=q.device), q, k, v)
    return q, k, v


def _heads_fake(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    given = _Given(*arguments)
    _check(given)
    return tuple(part.new_empty(part.shape) for part in given.parts(given.qkv))


def _heads_stored(*arguments: Any) -> torch.Tensor:
    *given, slots, k_cache, v_cache = arguments
    q = _heads_stored_fake(*arguments)
    _launch(_Given(*given), slots, q, k_cache, v_cache)
    return q


def _heads_stored_fake(*arguments: Any) -> torch.Tensor:
    *first, slots, k_cache, v_cache = arguments
    given = _Given(*first)
    _check(given)
    q, k, _ = given.parts(given.qkv)
    tensors.bfloat16(NAME, k_cache=k_cache, v_cache=v_cache)
    tensors.of_dtype(NAME, torch.int64, slots=slots)
    tensors.shaped(NAME, "slots", slots, (q.shape[0],))
    tensors.shaped(NAME, "k_cache", k_cache, ("slots", *k.shape[1:]))
    tensors.shaped(NAME, "v_cache", v_cache, k_cache.shape)
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError(f"{NAME} takes contiguous caches: allocate them as [slots, kv_heads, head_dim]")
    return q.new_empty(q.shape)


def _launch(given: _Given, slots: torch.Tensor, *out: torch.Tensor) -> None:
    """out: queries, and where keys and values go by slot."""
    parts, turn, rows = given.parts(given.qkv), (given.positions, given.cos_sin), len(given.qkv)
    if given.q_weight is not None:
        weights = given.q_weight, given.k_weight
        entry(NAME, by_rows("qk_norm_rope_store", rows))(*parts, *weights, *turn, slots, *out, given.epsilon)
    else:
        entry(NAME, by_rows("rope_store", rows))(*parts, *turn, slots, *out)


def _check(given: _Given) -> None:
    qkv, query_heads, positions, cos_sin, *norms, _ = given
    tensors.bfloat16(NAME, qkv=qkv)
    tensors.of_dtype(NAME, torch.int64, positions=positions)
    tensors.of_dtype(NAME, torch.float32, cos_sin=cos_sin)
    tensors.shaped(NAME, "qkv", qkv, ("tokens", "(query_heads + 2 * kv_heads) * head_dim"))
    tensors.shaped(NAME, "positions", positions, (qkv.shape[0],))
    tensors.shaped(NAME, "cos_sin", cos_sin, ("max_position", "head_dim"))
    for name, weight in zip(("q_weight", "k_weight"), norms, strict=True):
        if weight is not None:
            tensors.bfloat16(NAME, **{name: weight})
            tensors.shaped(NAME, name, weight, (cos_sin.shape[1],))
    heads, rest = divmod(qkv.shape[1], cos_sin.shape[1])
    if rest or heads <= query_heads or (heads - query_heads) % 2:
        raise ValueError(
            f"{NAME} takes {query_heads} query heads of {cos_sin.shape[1]} and as many for keys as for values beside "
            f"one another, not a width of {qkv.shape[1]}"
        )
    if qkv.stride(1) != 1:
        raise ValueError(f"{NAME} takes a token's heads side by side: pass qkv.contiguous()")


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    qkv, ctx.query_heads, *tensors_kept, ctx.epsilon = inputs
    ctx.save_for_backward(qkv, *tensors_kept)


def _backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
    """The turn the other way round and the norms' backward, into what is the product's gradient in one piece."""
    qkv, positions, cos_sin, *norms = ctx.saved_tensors
    given = _Given(qkv, ctx.query_heads, positions, cos_sin, norms[0], norms[1], ctx.epsilon)
    of_qkv = torch.empty_like(qkv)
    parts, turn = given.parts(qkv), (positions, cos_sin)
    of_weights = of_heads(parts, norms, gradients, turn, ctx.epsilon, given.parts(of_qkv))
    return of_qkv, None, None, None, *of_weights, None


register(_heads, _heads_fake, _backward, _keep, schema=f"({GIVEN}) -> (Tensor, Tensor, Tensor)")
register(
    *(_heads_stored, _heads_stored_fake),
    mutates=("k_cache", "v_cache"),
    schema=f"({GIVEN}, {STORED}) -> Tensor",
)
