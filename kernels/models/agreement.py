"""Do a full forward and prefill with token-wise decode give the same logits, bit for bit?"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernelbraid.kernels.models.decoding import Decoder


@dataclass(frozen=True, slots=True)
class Agreement:
    """Rows compared (tokens of all sequences), and those that differ; elements are single logits."""

    rows: int
    differing_rows: int
    differing_elements: int
    first_difference: tuple[int, int] | None
    """Sequence and position of the first row that differs."""
    largest_difference: float

    @property
    def agrees(self) -> bool:
        """No bit differs in any row."""
        return self.rows > 0 and self.differing_rows == 0


def logits_agree(
    model: torch.nn.Module,
    ids: torch.Tensor,
    lengths: Sequence[int],
    prompts: Sequence[int],
    graph: bool = False,
) -> Agreement:
    """Compare every row of sequences ids [batch, width], padded on the right.

    Sequence b has lengths[b] tokens; the first prompts[b] are prefilled and the rest decoded one by one, all sequences
    at once, also beside those that have ended. `graph` replays a CUDA graph for the steps.
    """
    with torch.no_grad():
        full = model(input_ids=ids, use_cache=False).logits
    decoded = decode_given(model, ids, lengths, prompts, graph)
    return compare(full, decoded, lengths)


def decode_given(
    model: torch.nn.Module, ids: torch.Tensor, lengths: Sequence[int], prompts: Sequence[int], graph: bool = False
) -> torch.Tensor:
    """Logits [batch, width, vocab] by prefill and steps; rows beyond a sequence's length are zero."""
    batch, width = ids.shape
    steps = max(length - prompt for length, prompt in zip(lengths, prompts, strict=True))
    decoder = Decoder(model, batch, max(prompts) + steps)
    if graph:
        decoder.capture()
    most = max(prompts)
    start = torch.tensor(prompts, device=ids.device)
    first = decoder.prefill(ids[:, :most], start.int())
    decoded = first.new_zeros((batch, width, first.shape[-1]))
    for sequence, prompt in enumerate(prompts):
        decoded[sequence, :prompt] = first[sequence, :prompt]
    every = torch.arange(batch, device=ids.device)
    last = torch.tensor(lengths, device=ids.device) - 1
    for offset in range(steps):
        place = torch.minimum(start + offset, last.clamp(min=0))
        logits = decoder.step(ids[every, place])
        running = start + offset <= last
        decoded[every[running], place[running]] = logits[running]
    return decoded


def compare(full: torch.Tensor, decoded: torch.Tensor, lengths: Sequence[int]) -> Agreement:
    """Bits of logits [batch, width, vocab], in the rows that each sequence has."""
    width = full.shape[1]
    inside = torch.arange(width, device=full.device) < torch.tensor(lengths, device=full.device)[:, None]
    unequal = (full.view(torch.int16) != decoded.view(torch.int16)) & inside[:, :, None]
    rows = unequal.any(-1)
    found = rows.nonzero()
    first = (int(found[0, 0]), int(found[0, 1])) if len(found) else None
    distance = (full.float() - decoded.float()).abs()[inside]
    return Agreement(
        int(inside.sum()),
        int(rows.sum()),
        int(unequal.sum()),
        first,
        float(distance.max()) if distance.numel() else 0.0,
    )
