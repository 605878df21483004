"""log_softmax_gather for Triton: a program for each chunk of a token's logits, and one that puts a token's together.

Both paths are the same two launches, each begun before the kernel ahead of it has ended. Chunks are cut at the same
places, summed and put together by the same functions, in as many warps: no batch decides a bit.
"""

import torch
import triton
import triton.language as tl

# region chunk
CHUNK, WARPS = 8192, 4


@triton.jit
def chunk_values(logits, token, chunk, vocab, CHUNK: tl.constexpr):
    """One chunk of a token's logits; -inf past the vocabulary's end."""
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    return tl.load(logits + token.to(tl.int64) * vocab + at, mask=at < vocab, other=float("-inf"))


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


@triton.jit
def parts(logits, tops, sums, vocab, chunks, CHUNK: tl.constexpr):
    """One chunk of one token."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    part = tl.program_id(0)
    top, total = chunk_sum(chunk_values(logits, part // chunks, part % chunks, vocab, CHUNK))
    tl.store(tops + part, top)
    tl.store(sums + part, total)


@triton.jit
def joined(logits, labels, tops, sums, logprobs, lse, vocab, chunks, CHUNKS: tl.constexpr):
    """One token from its chunks."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    token, c = tl.program_id(0), tl.arange(0, CHUNKS)
    at = token * chunks + c
    top = tl.load(tops + at, mask=c < chunks, other=float("-inf"))
    total = tl.load(sums + at, mask=c < chunks, other=0.0)
    finished(logits, labels, logprobs, lse, token, vocab, top, total)


def launch(logits: torch.Tensor, labels: torch.Tensor, logprobs: torch.Tensor, lse: torch.Tensor) -> None:
    """logprobs and lse [tokens] from logits [tokens, vocab] and labels [tokens]."""
    tokens, vocab = logits.shape
    chunks = triton.cdiv(vocab, CHUNK)
    tops = torch.empty(tokens, chunks, dtype=torch.float32, device=logits.device)
    sums = torch.empty(tokens, chunks, dtype=torch.float32, device=logits.device)
    parts[(tokens * chunks,)](logits, tops, sums, vocab, chunks, CHUNK=CHUNK, launch_pdl=True, num_warps=WARPS)
    joined[(tokens,)](
        *(logits, labels, tops, sums, logprobs, lse, vocab, chunks),
        CHUNKS=triton.next_power_of_2(chunks),
        launch_pdl=True,
        num_warps=WARPS,
    )


# endregion finish


# region full
def log_softmax_gather_full_bf16(
    logits: torch.Tensor, labels: torch.Tensor, logprobs: torch.Tensor, lse: torch.Tensor
) -> None:
    """logprobs and lse [tokens] from logits [tokens, vocab] and labels [tokens]."""
    launch(logits, labels, logprobs, lse)


def log_softmax_gather_full_f32(
    logits: torch.Tensor, labels: torch.Tensor, logprobs: torch.Tensor, lse: torch.Tensor
) -> None:
    """logprobs and lse [tokens] from logits [tokens, vocab] and labels [tokens]."""
    launch(logits, labels, logprobs, lse)


# endregion full


# region decode
def log_softmax_gather_decode_bf16(
    logits: torch.Tensor, labels: torch.Tensor, logprobs: torch.Tensor, lse: torch.Tensor
) -> None:
    """logprobs and lse [tokens] from logits [tokens, vocab] and labels [tokens]."""
    launch(logits, labels, logprobs, lse)


def log_softmax_gather_decode_f32(
    logits: torch.Tensor, labels: torch.Tensor, logprobs: torch.Tensor, lse: torch.Tensor
) -> None:
    """logprobs and lse [tokens] from logits [tokens, vocab] and labels [tokens]."""
    launch(logits, labels, logprobs, lse)


# endregion decode
