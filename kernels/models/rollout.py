"""Sampled continuations with the log-probabilities under which they were sampled."""

from dataclasses import dataclass

import torch

from kernelbraid.kernels.models.decoding import Decoder
from kernelbraid.kernels.models.scoring import log_probabilities


@dataclass(frozen=True)
class Rollout:
    """Sampled tokens [batch, new] int64 and log p(token) [batch, new] float32, at temperature 1 over all tokens."""

    tokens: torch.Tensor
    log_probabilities: torch.Tensor


def sample(
    decoder: Decoder, prompts: torch.Tensor, lengths: torch.Tensor, new: int, generator: torch.Generator | None = None
) -> Rollout:
    """Continue prompts [batch, width], padded on the right to lengths [batch] of at least 1, by `new` tokens each.

    The log-probabilities are, bit for bit, those of `token_log_probabilities` over the finished sequences.
    """
    logits = decoder.prefill(prompts, lengths, last=True)
    tokens, scores = [], []
    for step in range(new):
        token = torch.multinomial(logits.float().softmax(-1), 1, generator=generator)[:, 0]
        tokens.append(token)
        scores.append(log_probabilities(decoder.model, logits, token))
        if step + 1 < new:
            logits = decoder.step(token)
    return Rollout(torch.stack(tokens, 1), torch.stack(scores, 1))


def finished(prompts: torch.Tensor, lengths: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    """Prompts and their continuations [batch, width + new], each continuation right after its prompt's last token."""
    whole = torch.cat((prompts, torch.zeros_like(rollout.tokens)), 1)
    place = lengths.long()[:, None] + torch.arange(rollout.tokens.shape[1], device=prompts.device)
    return whole.scatter(1, place, rollout.tokens)
