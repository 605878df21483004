"""The operators' entries in plain torch, so that what surrounds them can be tried without a GPU.

Each is what its operator.toml defines, in float32 or better; a full and a decode entry are one function here.
"""

import math

import torch


def attention_full_bf16(q, k, v, query_start, query_count, key_start, key_count, out, lse):  # type: ignore[no-untyped-def]
    """Ragged sequences one after the other."""
    out.zero_()
    lse.fill_(-math.inf)
    places = (t.tolist() for t in (query_start, query_count, key_start, key_count))
    for start, count, key, keys in zip(*places, strict=True):
        rows = slice(start, start + count)
        out[rows], lse[rows] = _causal(q[rows], k[key : key + keys], v[key : key + keys])


def attention_decode_bf16(q, k, v, table, lengths, out, lse):  # type: ignore[no-untyped-def]
    """The last tokens of each sequence, against pages."""
    for sequence, length in enumerate(lengths.tolist()):
        keys, values = (t[table[sequence].long()].flatten(0, 1)[:length] for t in (k, v))
        out[sequence], lse[sequence] = _causal(q[sequence], keys, values)


def _causal(q, k, v):  # type: ignore[no-untyped-def]
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1).float() for t in (k, v))
    scores = torch.einsum("qhd,khd->qhk", q.float(), k) / math.sqrt(q.shape[-1])
    own = torch.arange(len(q))[:, None] + len(k) - len(q)
    scores = scores.masked_fill((torch.arange(len(k)) > own)[:, None], -math.inf)
    return torch.einsum("qhk,khd->qhd", scores.softmax(-1).nan_to_num(), v).to(q.dtype), scores.logsumexp(-1)


def attention_gradients(gradient, q, k, v, out, lse, cu_queries, cu_keys, most_queries, most_keys):  # type: ignore[no-untyped-def]
    """Instead of kernels/runtime's, which calls CUDA's."""
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    with torch.enable_grad():
        for sequence in range(len(cu_queries) - 1):
            rows, keys = (slice(*cu[sequence : sequence + 2].tolist()) for cu in (cu_queries, cu_keys))
            again, _ = _causal(q[rows], k[keys], v[keys])
            again.backward(gradient[rows])
    return q.grad, k.grad, v.grad


def rms_norm_full_bf16(x, weight, y, epsilon=1e-6):  # type: ignore[no-untyped-def]
    """Rows."""
    wide = x.double()
    y.copy_(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon) * weight.double())


def fused_add_rms_norm_full_bf16(x, residual, weight, y, residual_out, epsilon=1e-6):  # type: ignore[no-untyped-def]
    """The sum, then its norm."""
    residual_out.copy_(x + residual)
    rms_norm_full_bf16(residual_out, weight, y, epsilon)


def qk_norm_full_bf16(q, k, q_weight, k_weight, q_out, k_out, epsilon=1e-6):  # type: ignore[no-untyped-def]
    """Heads."""
    rms_norm_full_bf16(q, q_weight, q_out, epsilon)
    rms_norm_full_bf16(k, k_weight, k_out, epsilon)


def rope_full_bf16(q, k, positions, cos_sin, q_out, k_out):  # type: ignore[no-untyped-def]
    """Pairs half a head apart."""
    cos, sin = cos_sin[positions][:, None].chunk(2, -1)
    for heads, out in ((q, q_out), (k, k_out)):
        left, right = heads.float().chunk(2, -1)
        out.copy_(torch.cat((left * cos - right * sin, right * cos + left * sin), -1))


def qk_norm_rope_store_full_bf16(  # type: ignore[no-untyped-def]
    q, k, v, q_weight, k_weight, positions, cos_sin, slot_mapping, q_out, k_cache, v_cache, epsilon=1e-6
):
    """The three one after another."""
    normed = torch.empty(q.shape, dtype=q.dtype), torch.empty(k.shape, dtype=k.dtype)
    qk_norm_full_bf16(q, k, q_weight, k_weight, *normed, epsilon)
    rope_store_full_bf16(*normed, v, positions, cos_sin, slot_mapping, q_out, k_cache, v_cache)


def rope_store_full_bf16(q, k, v, positions, cos_sin, slot_mapping, q_out, k_cache, v_cache):  # type: ignore[no-untyped-def]
    """Two of them."""
    turned = torch.empty(k.shape, dtype=k.dtype)
    rope_full_bf16(q, k, positions, cos_sin, q_out, turned)
    kv_cache_store_full_bf16(turned, v, slot_mapping, k_cache, v_cache)


def silu_and_mul_full_bf16(gate_up, y):  # type: ignore[no-untyped-def]
    """silu rounded before the product."""
    y.copy_(torch.nn.functional.silu(gate_up[:, 0].float()).bfloat16() * gate_up[:, 1])


def linear_full_bf16(x, w, y):  # type: ignore[no-untyped-def]
    """Each row by itself."""
    y.copy_(x.double() @ w.double().t())


def embedding_full_bf16(ids, table, y):  # type: ignore[no-untyped-def]
    """Rows of a table."""
    y.copy_(table[ids])


def kv_cache_store_full_bf16(k, v, slot_mapping, k_cache, v_cache):  # type: ignore[no-untyped-def]
    """A token without a slot goes nowhere."""
    kept = slot_mapping >= 0
    k_cache[slot_mapping[kept]], v_cache[slot_mapping[kept]] = k[kept], v[kept]


def topk_softmax_full_bf16(logits, weights, ids):  # type: ignore[no-untyped-def]
    """A softmax over the chosen; a stable sort lets the lower index win."""
    top, chosen = _top(logits, ids.shape[1])
    ids.copy_(chosen)
    weights.copy_(top.softmax(-1))


def topk_probabilities_full_bf16(logits, weights, ids):  # type: ignore[no-untyped-def]
    """A softmax over all."""
    _, chosen = _top(logits, ids.shape[1])
    ids.copy_(chosen)
    weights.copy_(logits.float().softmax(-1).gather(-1, chosen))


def _top(logits, k):  # type: ignore[no-untyped-def]
    top, order = torch.sort(logits.float(), stable=True, dim=-1, descending=True)
    return top[:, :k], order[:, :k]


def moe_align_full_i32(ids, order, block_expert, ends):  # type: ignore[no-untyped-def]
    """Each expert's slots from a block's first place on."""
    flat, block = ids.flatten(), order.shape[1]
    order.fill_(len(flat))
    block_expert.fill_(-1)
    first = 0
    for expert in range(len(ends)):
        slots = (flat == expert).nonzero()[:, 0]
        used = -(-len(slots) // block)
        order.view(-1)[first * block : first * block + len(slots)] = slots.int()
        block_expert[first : first + used] = expert
        first += used
        ends[expert] = first * block


def moe_linear_full_bf16(x, w, order, block_expert, y):  # type: ignore[no-untyped-def]
    """Slot by slot."""
    slots = y.flatten(0, 1)
    for block, expert in zip(order, block_expert.tolist(), strict=True):
        here = block[block < len(slots)].long()
        slots[here] = (x[here // y.shape[1]].double() @ w[expert].double().t()).bfloat16()


def moe_combine_full_bf16(outputs, weights, y):  # type: ignore[no-untyped-def]
    """Slot by slot."""
    y.copy_((outputs.float() * weights[:, :, None]).sum(1))


def log_softmax_gather_full_bf16(logits, labels, logprobs, lse):  # type: ignore[no-untyped-def]
    """A negative label leaves its token out."""
    wide = logits.float()
    lse.copy_(wide.logsumexp(-1))
    chosen = wide.gather(-1, labels.clamp(min=0)[:, None])[:, 0] - lse
    logprobs.copy_(chosen.where(labels >= 0, 0.0))


log_softmax_gather_full_f32 = log_softmax_gather_full_bf16
for _name in [name for name in globals() if "_full_" in name and not name.startswith("attention")]:
    globals()[_name.replace("_full_", "_decode_")] = globals()[_name]
