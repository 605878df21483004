"""log_softmax_gather for Triton, plain: a token's logits in chunks of one size, and their sums put together at the end.

The full path walks over the chunks in one program for each token. Decode gives each chunk a program, so that one
token is read by many multiprocessors, and a second kernel puts the sums together. Chunks are cut at the same places,
summed and put together by the same functions, in as many warps: no batch decides a bit.
"""

import torch
import triton
import triton.language as tl

# region chunk
CHUNK, WARPS = 8192, 8


@triton.jit
def chunk_values(logits, token, chunk, vocab, CHUNK: tl.constexpr):
    """One chunk of a token's logits; -inf past the vocabulary's end."""
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    return tl.load(
        logits + token.to(tl.int64) * vocab + at, mask=at < vocab, other=float("-inf"), eviction_policy="evict_first"
    )


@triton.jit
def chunk_sum(logits):
    """The largest logit of one chunk, and the sum of exp(logit - largest); 0 where all of them are -inf."""
    values = logits.to(tl.float32)
    top = tl.max(values, 0)
    finite = tl.where(top == float("-inf"), 0.0, top)
    finite = finite * 1.4426950408889634
    return top, tl.sum(tl.exp2(tl.fma(values, 1.4426950408889634, -finite)), 0)


# endregion chunk


# region finish
@triton.jit
def finished(logits, labels, logprobs, lse, token, vocab, tops, sums):
    """One token's results from the largest logit and the sum of each chunk, tops and sums [CHUNKS]."""
    top = tl.max(tops, 0)
    log = tl.log(tl.sum(sums * tl.exp(tops - top), 0))
    label = tl.load(labels + token)
    chosen = tl.load(
        logits + token.to(tl.int64) * vocab + label, mask=(label >= 0) & (label < vocab), other=float("nan")
    )
    logprob = chosen.to(tl.float32) - top - log
    tl.store(logprobs + token, tl.where(label < 0, 0.0, logprob))
    tl.store(lse + token, top + log)


# endregion finish


# region full
@triton.jit
def full(logits, labels, logprobs, lse, vocab, CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    """One token, chunk after chunk."""
    token, c = tl.program_id(0), tl.arange(0, CHUNKS)
    sums = tl.zeros([CHUNKS], tl.float32)
    tops = sums - float("inf")
    for chunk in range(tl.cdiv(vocab, CHUNK)):
        top, total = chunk_sum(chunk_values(logits, token, chunk, vocab, CHUNK))
        tops, sums = tl.where(c == chunk, top, tops), tl.where(c == chunk, total, sums)
    finished(logits, labels, logprobs, lse, token, vocab, tops, sums)


def _full(logits: torch.Tensor, labels: torch.Tensor, logprobs: torch.Tensor, lse: torch.Tensor) -> None:
    tokens, vocab = logits.shape
    chunks = triton.next_power_of_2(triton.cdiv(vocab, CHUNK))
    full[(tokens,)](logits, labels, logprobs, lse, vocab, CHUNKS=chunks, CHUNK=CHUNK, num_warps=WARPS)


def log_softmax_gather_full_bf16(
    logits: torch.Tensor, labels: torch.Tensor, logprobs: torch.Tensor, lse: torch.Tensor
) -> None:
    """logprobs and lse [tokens] from logits [tokens, vocab] and labels [tokens]."""
    _full(logits, labels, logprobs, lse)


def log_softmax_gather_full_f32(
    logits: torch.Tensor, labels: torch.Tensor, logprobs: torch.Tensor, lse: torch.Tensor
) -> None:
    """logprobs and lse [tokens] from logits [tokens, vocab] and labels [tokens]."""
    _full(logits, labels, logprobs, lse)


# endregion full


# region decode
@triton.jit
def parts(logits, tops, sums, vocab, chunks, CHUNK: tl.constexpr):
    """One chunk of one token."""
    part = tl.program_id(0)
    top, total = chunk_sum(chunk_values(logits, part // chunks, part % chunks, vocab, CHUNK))
    tl.store(tops + part, top)
    tl.store(sums + part, total)


@triton.jit
def joined(logits, labels, tops, sums, logprobs, lse, vocab, chunks, CHUNKS: tl.constexpr):
    """One token from its chunks."""
    token, c = tl.program_id(0), tl.arange(0, CHUNKS)
    at = token * chunks + c
    top = tl.load(tops + at, mask=c < chunks, other=float("-inf"))
    total = tl.load(sums + at, mask=c < chunks, other=0.0)
    finished(logits, labels, logprobs, lse, token, vocab, top, total)


def _decode(logits: torch.Tensor, labels: torch.Tensor, logprobs: torch.Tensor, lse: torch.Tensor) -> None:
    tokens, vocab = logits.shape
    chunks = triton.cdiv(vocab, CHUNK)
    tops = torch.empty(tokens, chunks, dtype=torch.float32, device=logits.device)
    sums = torch.empty(tokens, chunks, dtype=torch.float32, device=logits.device)
    parts[(tokens * chunks,)](logits, tops, sums, vocab, chunks, CHUNK=CHUNK, num_warps=WARPS)
    joined[(tokens,)](
        *(logits, labels, tops, sums, logprobs, lse, vocab, chunks),
        CHUNKS=triton.next_power_of_2(chunks),
        num_warps=WARPS,
    )


def log_softmax_gather_decode_bf16(
    logits: torch.Tensor, labels: torch.Tensor, logprobs: torch.Tensor, lse: torch.Tensor
) -> None:
    """logprobs and lse [tokens] from logits [tokens, vocab] and labels [tokens]."""
    _decode(logits, labels, logprobs, lse)


def log_softmax_gather_decode_f32(
    logits: torch.Tensor, labels: torch.Tensor, logprobs: torch.Tensor, lse: torch.Tensor
) -> None:
    """logprobs and lse [tokens] from logits [tokens, vocab] and labels [tokens]."""
    _decode(logits, labels, logprobs, lse)


# endregion decode
