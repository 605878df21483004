"""What lies between the product for query, key and value and attention: norms, rotary embedding and the cache, at once.

Tokens of q, k and v may be any stride apart, so that they can be parts of one product. The bits are those of `qk_norm`,
`rope` and `kv_cache_store` one after another.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from kernelbraid.kernels.runtime import tensors
from kernelbraid.kernels.runtime.loading import entry
from kernelbraid.kernels.runtime.norms import gradients
from kernelbraid.kernels.runtime.registering import by_rows, call, register
from kernelbraid.kernels.runtime.rotary import rope

NAME = "rope_store"
GIVEN = (
    "Tensor q, Tensor k, Tensor v, Tensor positions, Tensor cos_sin, Tensor? q_weight, Tensor? k_weight, float epsilon"
)
STORED = "Tensor slots, Tensor(a!) k_cache, Tensor(b!) v_cache"


class _Given(NamedTuple):
    """What both operators take first, as GIVEN says."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    positions: torch.Tensor
    cos_sin: torch.Tensor
    q_weight: torch.Tensor | None
    k_weight: torch.Tensor | None
    epsilon: float


def heads(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    norms: Sequence[torch.Tensor] = (),
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [tokens, query_heads, head_dim], k and v [tokens, kv_heads, head_dim], ready for attention and contiguous.

    q and k are normalised where `norms` has a weight [head_dim] for each, and turned to positions [tokens] int64 of
    cos_sin [max_position, head_dim] float32.
    """
    q, k, v = call("heads", q, k, v, positions, cos_sin, *_pair(norms), epsilon)
    return q, k, v


def heads_stored(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
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
    return call("heads_stored", q, k, v, positions, cos_sin, *_pair(norms), epsilon, slots, k_cache, v_cache)


def _pair(norms: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if len(norms) not in (0, 2):
        raise ValueError(f"{NAME} takes a weight for q and one for k, or none, not {len(norms)}")
    return (norms[0], norms[1]) if norms else (None, None)


def _heads(*given: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = _heads_fake(*given)
    _launch(_Given(*given), torch.arange(len(q), device=q.device), q, k, v)
    return q, k, v


def _heads_fake(*given: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    states = _Given(*given)
    _check(states)
    return tuple(each.new_empty(each.shape) for each in (states.q, states.k, states.v))


def _heads_stored(*given: Any) -> torch.Tensor:
    *states, slots, k_cache, v_cache = given
    q = _heads_stored_fake(*given)
    _launch(_Given(*states), slots, q, k_cache, v_cache)
    return q


def _heads_stored_fake(*given: Any) -> torch.Tensor:
    *states, slots, k_cache, v_cache = given
    q, k, *_ = states
    _check(_Given(*states))
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
    q, k, v, *turn, q_weight, k_weight, epsilon = given
    if q_weight is not None:
        symbol = by_rows("qk_norm_rope_store", len(q))
        entry(NAME, symbol)(q, k, v, q_weight, k_weight, *turn, slots, *out, epsilon)
    else:
        entry(NAME, by_rows("rope_store", len(q)))(q, k, v, *turn, slots, *out)


def _check(given: _Given) -> None:
    q, k, v, positions, cos_sin, *norms, _ = given
    tensors.bfloat16(NAME, q=q, k=k, v=v)
    tensors.of_dtype(NAME, torch.int64, positions=positions)
    tensors.of_dtype(NAME, torch.float32, cos_sin=cos_sin)
    tensors.shaped(NAME, "q", q, ("tokens", "query_heads", "head_dim"))
    tensors.shaped(NAME, "k", k, (q.shape[0], "kv_heads", q.shape[2]))
    tensors.shaped(NAME, "v", v, k.shape)
    tensors.shaped(NAME, "positions", positions, (q.shape[0],))
    tensors.shaped(NAME, "cos_sin", cos_sin, ("max_position", q.shape[2]))
    for name, weight in zip(("q_weight", "k_weight"), norms, strict=True):
        if weight is not None:
            tensors.bfloat16(NAME, **{name: weight})
            tensors.shaped(NAME, name, weight, (q.shape[2],))
    for name, states in {"q": q, "k": k, "v": v}.items():
        if states.stride()[1:] != (states.shape[2], 1):
            raise ValueError(f"{NAME} takes {name} with a token's heads side by side: pass {name}.contiguous()")


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    q, k, _, positions, cos_sin, q_weight, k_weight, ctx.epsilon = inputs
    ctx.save_for_backward(positions, cos_sin, *(() if q_weight is None else (q, k, q_weight, k_weight)))


def _backward(ctx: Any, of_q: torch.Tensor, of_k: torch.Tensor, of_v: torch.Tensor) -> tuple[Any, ...]:
    """The turn the other way round, then the norms' backward in float32."""
    positions, cos_sin, *more = ctx.saved_tensors
    back = cos_sin[positions]
    back[:, back.shape[1] // 2 :].neg_()
    of_q, of_k = rope(of_q, of_k, torch.arange(len(back), device=back.device), back)
    if not more:
        return of_q, of_k, of_v, None, None, None, None, None
    q, k, q_weight, k_weight = more
    of_q, of_q_weight = gradients(q, q_weight, of_q, ctx.epsilon)
    of_k, of_k_weight = gradients(k, k_weight, of_k, ctx.epsilon)
    return of_q, of_k, of_v, None, None, of_q_weight, of_k_weight, None


register(_heads, _heads_fake, _backward, _keep, schema=f"({GIVEN}) -> (Tensor, Tensor, Tensor)")
register(
    *(_heads_stored, _heads_stored_fake),
    mutates=("k_cache", "v_cache"),
    schema=f"({GIVEN}, {STORED}) -> Tensor",
)
