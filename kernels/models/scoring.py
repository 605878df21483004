"""Log-probabilities of tokens: one function for a rollout's steps and for whole sequences, so that their bits agree."""

import torch

from kernelbraid.kernels.models.unified import is_unified
from kernelbraid.kernels.runtime.log_probabilities import log_softmax_gather


def log_probabilities(model: torch.nn.Module, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """log p(token) [...] float32 under logits [..., vocab], at temperature 1.

    By our operator for a unified model, else by torch's float32 log-softmax, which takes a row at a time too.
    """
    if is_unified(model):
        return log_softmax_gather(logits, tokens)[0]
    return logits.float().log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)


def token_log_probabilities(model: torch.nn.Module, ids: torch.Tensor, **forward: object) -> torch.Tensor:
    """log p(ids[:, t] | ids[:, :t]) for t from 1 on, [batch, width - 1] float32, with a gradient where one is wanted.

    ids [batch, width] may be padded on the right; what stands at padding means nothing. `forward` goes to the model.
    """
    logits = model(input_ids=ids, use_cache=False, **forward).logits
    return log_probabilities(model, logits[:, :-1], ids[:, 1:])
