"""The operators' entries in plain torch, so that what surrounds them can be tried without a GPU."""

import math

import torch


def attention_full_bf16(q, k, v, query_start, query_count, key_start, key_count, out, lse):  # type: ignore[no-untyped-def]
    """As attention/operator.toml has it."""
    out.zero_()
    lse.fill_(-math.inf)
    for start, count, key, keys in zip(
        *(t.tolist() for t in (query_start, query_count, key_start, key_count)), strict=True
    ):
        rows = slice(start, start + count)
        out[rows], lse[rows] = _causal(q[rows], k[key : key + keys], v[key : key + keys])


def attention_decode_bf16(q, k, v, table, lengths, out, lse):  # type: ignore[no-untyped-def]
    """As attention/operator.toml has it."""
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
