"""Do a full forward and prefill with token-wise decode give the same logits, bit for bit?"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    more: int = 1,
) -> Agreement:
    """Compare every row of sequences ids [batch, width], padded on the right.

    Sequence b has lengths[b] tokens; the first prompts[b] are prefilled and the rest decoded one by one, all sequences
    at once, also beside those that have ended. `graph` replays a CUDA graph for the steps; `more` than one token at a
    time is what speculative decoding does.
    """
    with torch.no_grad():
        full = model(input_ids=ids, use_cache=False).logits
    decoded = decode_given(model, ids, lengths, prompts, graph, more)
    return compare(full, decoded, lengths)


def decode_given(
    model: torch.nn.Module,
    ids: torch.Tensor,
    lengths: Sequence[int],
    prompts: Sequence[int],
    graph: bool = False,
    more: int = 1,
) -> torch.Tensor:
    """Logits [batch, width, vocab] by prefill and steps; rows beyond a sequence's length are zero."""
    batch, width = ids.shape
    steps = max(length - prompt for length, prompt in zip(lengths, prompts, strict=True))
    decoder = Decoder(model, batch, max(prompts) + steps + more)
    if graph:
        decoder.capture()
    first = decoder.prefill(ids[:, : max(prompts)], torch.tensor(prompts, device=ids.device))
    decoded = first.new_zeros((batch, width, first.shape[-1]))
    for sequence, prompt in enumerate(prompts):
        decoded[sequence, :prompt] = first[sequence, :prompt]
    start, end = (torch.tensor(counts, device=ids.device)[:, None] for counts in (prompts, lengths))
    for offset in range(0, steps, more):
        place = start + offset + torch.arange(more, device=ids.device)
        tokens = ids.gather(1, place.clamp(max=width - 1))
        logits = decoder.step(tokens[:, 0])[:, None] if more == 1 else decoder.extend(tokens)
        row, column = (place < end).nonzero(as_tuple=True)
        decoded[row, place[row, column]] = logits[row, column]
    return decoded


def first_differing_module(
    model: torch.nn.Module, ids: torch.Tensor, length: int, prompt: int
) -> tuple[str, int, float] | None:
    """Which module's output differs first between a full forward and decode: its name, position, largest difference.

    ids [batch, width] have `length` tokens each, of which `prompt` are prefilled. The first position that differs in
    any module is looked at, and there the module that ran first. None when nothing differs. Slow: every output is kept.
    """
    with _outputs(model) as full, torch.no_grad():
        model(input_ids=ids[:, :length], use_cache=False)
    decoder = Decoder(model, len(ids), length)
    decoder.prefill(ids[:, :prompt], torch.full((len(ids),), prompt, device=ids.device))
    for position in range(prompt, length):
        with _outputs(model) as step:
            decoder.step(ids[:, position])
        for name, rows in step.items():
            whole = full[name].reshape(len(ids), length, -1)[:, position]
            distance = (rows.reshape(whole.shape).float() - whole.float()).abs().max()
            if distance:
                return name, position, float(distance)
    return None


@contextmanager
def _outputs(model: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """The output of every module with one row for each token, in the order in which they end."""
    kept: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_: object, __: object, output: object) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, torch.Tensor) and first.is_floating_point() and "rotary" not in name:
                kept[name] = first.detach()

        return hook

    hooks = [module.register_forward_hook(keep(name)) for name, module in model.named_modules() if name]
    try:
        yield kept
    finally:
        for each in hooks:
            each.remove()


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
