"""Unify a Qwen3 with random weights: decoded logits, sampled log-probabilities, a gradient. Needs an NVIDIA GPU.

python examples/whole_model/run.py [LAYERS]
"""

import sys

import torch
import transformers

from kernelbraid.kernels import unify
from kernelbraid.kernels.models.agreement import logits_agree
from kernelbraid.kernels.models.decoding import Decoder
from kernelbraid.kernels.models.rollout import finished, sample
from kernelbraid.kernels.models.scoring import token_log_probabilities
from kernelbraid.kernels.models.widths import WIDTHS
from kernelbraid.kernels.runtime import ran

VOCABULARY, BATCH, NEW = 4096, 4, 32


def build(layers: int) -> transformers.PreTrainedModel:
    """So many layers of Qwen3-4B's width."""
    config = transformers.AutoConfig.for_model(**WIDTHS["Qwen3-4B"], vocab_size=VOCABULARY, num_hidden_layers=layers)
    with torch.device("cuda"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def main(layers: int = 2) -> None:
    """Print what agrees."""
    torch.manual_seed(0)
    model = unify(build(layers))
    ids = torch.randint(0, VOCABULARY, (BATCH, 200), device="cuda")
    found = logits_agree(model, ids, lengths=[200, 97, 1, 64], prompts=[64, 64, 0, 1], graph=True)
    print(f"decoded     {found.rows} rows of logits, {found.differing_rows} differ from a full forward's")

    prompts, lengths = ids[:, :16], torch.tensor([16, 3, 9, 1], device="cuda")
    decoder = Decoder(model, BATCH, capacity=64)
    decoder.capture()
    rollout = sample(decoder, prompts, lengths, NEW)
    again = token_log_probabilities(model, finished(prompts, lengths, rollout))
    place = lengths[:, None] - 1 + torch.arange(NEW, device="cuda")
    ratio = (again.gather(1, place) - rollout.log_probabilities).exp()
    print(f"sampled     {ratio.numel()} tokens, importance ratios from {ratio.min():.6f} to {ratio.max():.6f}")

    again.sum().backward()
    trained = sum(parameter.grad is not None for parameter in model.parameters())
    print(f"trained     {trained} of {len(list(model.parameters()))} parameters have a gradient")
    print(f"ran         {', '.join(sorted({f'{each.operator} ({each.kind})' for each in ran()}))}")


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("needs an NVIDIA GPU, and torch sees none")
    main(*map(int, sys.argv[1:]))
