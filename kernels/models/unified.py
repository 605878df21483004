"""Every module of a Hugging Face model on our operators: the class of a module is replaced, its parameters stay.

A module of class C becomes one of a subclass of C whose forward runs ours, so checkpointing and state dictionaries work
as before. Query, key and value projections are one product, and so are gate and up; the norms of heads and the experts
are called by their weights: hooks on these modules are not run.
"""

from collections.abc import Iterable
from typing import Any

import torch

from kernelbraid.kernels.models.attending import chosen
from kernelbraid.kernels.models.cache import StaticCache
from kernelbraid.kernels.models.joined import Joined, join
from kernelbraid.kernels.models.refusal import Refusal
from kernelbraid.kernels.models.subclasses import become
from kernelbraid.kernels.runtime import rotary
from kernelbraid.kernels.runtime.activation import silu_and_mul
from kernelbraid.kernels.runtime.embedding import embedding
from kernelbraid.kernels.runtime.heads import heads, heads_stored
from kernelbraid.kernels.runtime.norms import fused_add_rms_norm, rms_norm
from kernelbraid.kernels.runtime.projection import linear, prepare
from kernelbraid.kernels.runtime.routing import moe_align, moe_combine, moe_linear, topk_softmax

FIXED_ROPE = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose angles depend on the position alone."""


def change(model: torch.nn.Module) -> None:
    """Put every module of a causal model on our operators. Raises Refusal for what they do not compute."""
    _require_computable(model.config)
    inner = model.model
    become(inner.embed_tokens, _embedding)
    become(inner.norm, _norm)
    become(model.lm_head, _linear)
    become(inner.rotary_emb, _rotary)
    inner.rotary_emb.cos_sin = _table(inner.rotary_emb, model.config.max_position_embeddings)
    for layer in inner.layers:
        _change_layer(layer)
    for module in model.modules():
        _prepare(module)


def is_unified(model: torch.nn.Module) -> bool:
    """Whether `change` was called on the model."""
    return isinstance(getattr(model.model.rotary_emb, "cos_sin", None), torch.Tensor)


def _require_computable(config: Any) -> None:
    if config.hidden_act != "silu":
        raise Refusal(f"the MLP's activation is {config.hidden_act}, and only silu is computed: take kernels='library'")
    kind = config.rope_parameters["rope_type"]
    if kind not in FIXED_ROPE:
        raise Refusal(
            f"rotary embedding of kind {kind} depends on the sequence's length: {', '.join(FIXED_ROPE)} do not"
        )


def _change_layer(layer: torch.nn.Module) -> None:
    attention, mlp = layer.self_attn, layer.mlp
    attention.qkv = join([attention.q_proj, attention.k_proj, attention.v_proj])
    become(attention.o_proj, _linear)
    become(attention, _attention)
    if hasattr(mlp, "experts"):
        become(mlp.gate, _router)
        become(mlp, _mixture)
    else:
        mlp.gate_up = join([mlp.gate_proj, mlp.up_proj])
        become(mlp.down_proj, _linear)
        become(mlp, _mlp)
    become(layer, _layer)


def _prepare(module: Any) -> None:
    """Check a linear layer's bits before anything depends on them, and not while a graph is captured."""
    if type(module).forward in (_linear, _router):
        prepare(module.weight, type(module).forward is _linear and module.bias is not None)
    for joined in (value for value in vars(module).values() if isinstance(value, Joined)):
        prepare(joined.weight, joined.bias is not None)


def _table(rotary_emb: Any, positions: int) -> torch.Tensor:
    return rotary.table(rotary_emb.inv_freq, positions, rotary_emb.attention_scaling)


def _embedding(self: Any, ids: torch.Tensor) -> torch.Tensor:
    return embedding(ids, self.weight)


def _norm(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    return rms_norm(hidden_states, self.weight, self.variance_epsilon)


def _linear(self: Any, x: torch.Tensor) -> torch.Tensor:
    return linear(x, self.weight, self.bias)


def _rotary(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the layers take for cosines and sines: each token's position, and the table for all positions."""
    batch, tokens = x.shape[:2]
    if tokens > len(self.cos_sin):
        raise Refusal(f"{tokens} tokens are more than max_position_embeddings = {len(self.cos_sin)}")
    if self.cos_sin.device != x.device:
        raise Refusal("the model was moved after unify: call unify(model) again")
    return position_ids.expand(batch, -1).reshape(-1), self.cos_sin


def _layer(
    self: Any,
    hidden_states: torch.Tensor,
    attention_mask: Any = None,
    position_ids: torch.Tensor | None = None,
    past_key_values: Any = None,
    use_cache: bool | None = False,
    position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
    **more: Any,
) -> torch.Tensor:
    norm, after = self.input_layernorm, self.post_attention_layernorm
    attended, _ = self.self_attn(
        rms_norm(hidden_states, norm.weight, norm.variance_epsilon),
        position_embeddings=position_embeddings,
        attention_mask=attention_mask,
        past_key_values=past_key_values,
        position_ids=position_ids,
        **more,
    )
    normed, total = fused_add_rms_norm(attended, hidden_states, after.weight, after.variance_epsilon)
    return total + self.mlp(normed)


def decoded(model: torch.nn.Module, ids: torch.Tensor, positions: torch.Tensor, cache: StaticCache) -> torch.Tensor:
    """Logits [batch, tokens, vocab] of ids [batch, tokens] against a cache: the bits of the model's own forward.

    A layer's last addition is done with the next layer's norm, in one launch for two.
    """
    inner = model.model
    hidden = inner.embed_tokens(ids)
    more, total = run_layers(inner.layers, hidden, inner.rotary_emb(hidden, positions), cache)
    normed, _ = fused_add_rms_norm(more, total, inner.norm.weight, inner.norm.variance_epsilon)
    return model.lm_head(normed)


def run_layers(
    layers: Iterable[Any], hidden: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], cache: StaticCache
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the layers make of hidden [batch, tokens, hidden], as two terms of which the last addition is not done."""
    total, more = hidden, None
    for layer in layers:
        norm, after = layer.input_layernorm, layer.post_attention_layernorm
        if more is None:
            normed = rms_norm(total, norm.weight, norm.variance_epsilon)
        else:
            normed, total = fused_add_rms_norm(more, total, norm.weight, norm.variance_epsilon)
        attended, _ = layer.self_attn(normed, angles, None, cache, static_cache=cache)
        normed, total = fused_add_rms_norm(attended, total, after.weight, after.variance_epsilon)
        more = layer.mlp(normed)
    if more is None:
        raise Refusal("a model without layers has nothing to decode")
    return more, total


def _attention(
    self: Any,
    hidden_states: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    attention_mask: Any,
    past_key_values: Any = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    shape = hidden_states.shape[:-1]
    qkv = self.qkv(hidden_states.flatten(0, 1), self.q_proj, self.k_proj, self.v_proj)
    given = qkv, len(self.q_proj.weight) // self.head_dim, *position_embeddings
    norms, epsilon = _head_norms(self)
    if isinstance(past_key_values, StaticCache) and past_key_values.decoding:
        place = past_key_values.places(self.layer_idx, shape[1])
        q, k, v = heads_stored(*given, *place, norms, epsilon), None, None
    else:
        q, k, v = heads(*given, norms, epsilon)
        k, v = (states.unflatten(0, shape).transpose(1, 2) for states in (k, v))
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
    attend = chosen(self.config._attn_implementation)
    dropout = self.attention_dropout if self.training else 0.0
    q = q.unflatten(0, shape).transpose(1, 2)
    out, _ = attend(self, q, k, v, attention_mask, scaling=self.scaling, dropout=dropout, **more)
    return self.o_proj(out.reshape(*shape, -1)), None


def _head_norms(attention: Any) -> tuple[tuple[torch.Tensor, ...], float]:
    """The weights for query and key heads, and epsilon; none where a model has no such norms."""
    if not hasattr(attention, "q_norm"):
        return (), 0.0
    return (attention.q_norm.weight, attention.k_norm.weight), attention.q_norm.variance_epsilon


def _mlp(self: Any, x: torch.Tensor) -> torch.Tensor:
    gate_up = self.gate_up(x, self.gate_proj, self.up_proj)
    return self.down_proj(silu_and_mul(gate_up.flatten(0, -2)).view(*x.shape[:-1], -1))


def _router(self: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logits = linear(hidden_states.reshape(-1, self.hidden_dim), self.weight)
    weights, ids = topk_softmax(logits, self.top_k, self.norm_topk_prob)
    return logits, weights, ids


def _mixture(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    rows = hidden_states.flatten(0, -2)
    _, weights, ids = self.gate(rows)
    order, block_expert, _ = moe_align(ids, self.gate.num_experts, _block(ids.numel(), self.gate.num_experts))
    gate_up = moe_linear(rows, self.experts.gate_up_proj, ids, order, block_expert)
    acted = silu_and_mul(gate_up.flatten(0, 1))
    results = moe_linear(acted, self.experts.down_proj, ids.view(-1, 1), order, block_expert)
    return moe_combine(results.view(*ids.shape, -1), weights).view(hidden_states.shape)


def _block(slots: int, experts: int) -> int:
    """Larger blocks where an expert fills them."""
    return 128 if slots >= 64 * experts else 64
