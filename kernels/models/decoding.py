"""Prefill and token-wise decode of a unified model over a static KV cache."""

from dataclasses import dataclass, field

import torch

from kernelbraid.kernels.models.attending import FLASH_4, OURS
from kernelbraid.kernels.models.cache import StaticCache
from kernelbraid.kernels.models.refusal import Refusal
from kernelbraid.kernels.models.unified import decoded, is_unified


@dataclass
class Decoder:
    """One batch of sequences of one model: `prefill` once, then `step` by step; after `capture`, steps replay a graph.

    Logits of a step live until the next one. Sequences may differ in length; none may outgrow `capacity`.
    """

    model: torch.nn.Module
    batch: int
    capacity: int
    cache: StaticCache = field(init=False)
    _tokens: torch.Tensor = field(init=False)
    _logits: torch.Tensor | None = field(default=None, init=False)
    _graph: "torch.cuda.CUDAGraph | None" = field(default=None, init=False)
    _longest: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.model.config._attn_implementation not in (FLASH_4, OURS):
            raise Refusal("the model's attention does not read this cache: call unify(model) first")
        ours = is_unified(self.model)
        self.cache = StaticCache.of(self.model, self.batch, self.capacity, ours)
        self._tokens = torch.zeros((self.batch, 1), dtype=torch.int64, device=self.cache.seen.device)

    def prefill(self, ids: torch.Tensor, lengths: torch.Tensor, last: bool = False) -> torch.Tensor:
        """Logits [batch, width, vocab] for prompts ids [batch, width], padded on the right to `width`.

        lengths [batch] counts each prompt's tokens, from 0; from 1 with `last`, which gives [batch, vocab] after each
        prompt's last token alone. Rows of padding mean nothing. Starts the batch anew.
        """
        width = self._require_room(ids)
        self.cache.decoding = False
        self.cache.seen.zero_()
        self.cache.lengths.copy_(lengths)
        self._longest = int(lengths.max())
        position = torch.arange(width, device=ids.device).expand(self.batch, -1)
        logits = self._forward(ids, position, lengths.long() - 1 if last else None)
        self.cache.seen.copy_(self.cache.lengths)
        return logits

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [batch, vocab] after one more token of every sequence, tokens [batch]."""
        self._grow(1)
        self._tokens.copy_(tokens[:, None])
        if self._graph is None:
            return self._advance(self._tokens)[:, 0]
        self._graph.replay()
        assert self._logits is not None
        return self._logits

    def extend(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [batch, more, vocab] after several more tokens of every sequence at once, tokens [batch, more].

        As for a verified draft or a chunk of a prompt; the same bits as one by one. Never a replayed graph.
        """
        self._grow(tokens.shape[1])
        return self._advance(tokens)

    def capture(self) -> None:
        """Record one step as a CUDA graph, which later steps replay. Forgets the sequences: prefill afterwards."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.cache.seen.zero_()
                self._advance(self._tokens)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._logits = self._advance(self._tokens)[:, 0]
        self._graph, self._longest = graph, self.capacity

    def _grow(self, more: int) -> None:
        if self._longest + more > self.capacity:
            raise Refusal(f"a sequence has {self._longest} tokens and the cache holds {self.capacity}: not {more} more")
        self._longest += more

    def _advance(self, tokens: torch.Tensor) -> torch.Tensor:
        cache, more = self.cache, tokens.shape[1]
        cache.decoding = True
        torch.add(cache.seen, more, out=cache.lengths)
        positions = cache.seen[:, None].long()
        if more > 1:
            positions = positions + torch.arange(more, device=tokens.device)
        logits = self._forward(tokens, positions)
        cache.seen.copy_(cache.lengths)
        return logits

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, last: torch.Tensor | None = None) -> torch.Tensor:
        cache = self.cache
        with torch.no_grad():
            if cache.ours and cache.decoding:
                return decoded(self.model, ids, positions, cache)
            hidden = self.model.model(
                input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, static_cache=cache
            ).last_hidden_state
            return self.model.lm_head(
                hidden if last is None else hidden[torch.arange(len(last), device=last.device), last]
            )

    def _require_room(self, ids: torch.Tensor) -> int:
        batch, width = ids.shape
        if batch != self.batch or width > self.capacity:
            raise Refusal(f"the cache holds {self.batch} sequences of {self.capacity} tokens, not {batch} of {width}")
        return int(width)
