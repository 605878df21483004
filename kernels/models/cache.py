"""A static KV cache that a Hugging Face model fills: one contiguous piece for each sequence."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kernelbraid.kernels.runtime.cache import kv_cache_store


@dataclass
class StaticCache:
    """Keys and values [batch, capacity, kv_heads, head_dim] for each layer, and how many tokens each sequence has.

    `seen` [batch] int32 counts the tokens before the running forward, `lengths` those with it; `decoding` says that
    every sequence adds as many tokens as the forward is wide. Otherwise it is a prefill from an empty cache, whose
    rows are padded on the right and may run over what a sequence has: a later token overwrites them. `ours` says that
    rows are stored by our operator, else by torch's indexing.
    """

    keys: Sequence[torch.Tensor]
    values: Sequence[torch.Tensor]
    seen: torch.Tensor
    lengths: torch.Tensor
    table: torch.Tensor
    ours: bool
    decoding: bool = False
    first: torch.Tensor = field(init=False)
    slots: torch.Tensor | None = field(default=None, init=False)
    is_compileable: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.first = self.table[:, 0].long() * self.capacity

    @staticmethod
    def of(model: torch.nn.Module, batch: int, capacity: int, ours: bool = False) -> "StaticCache":
        """An empty cache for a causal model, on its device and in its dtype."""
        config, weight = model.config, next(model.parameters())
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (batch, capacity, config.num_key_value_heads, head_dim)

        def layers() -> list[torch.Tensor]:
            return [torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in range(layer_count)]

        layer_count = config.num_hidden_layers
        counts = torch.zeros((2, batch), dtype=torch.int32, device=weight.device)
        table = torch.arange(batch, dtype=torch.int32, device=weight.device)[:, None]
        return StaticCache(layers(), layers(), counts[0], counts[1], table, ours)

    @property
    def capacity(self) -> int:
        """Tokens a sequence may have."""
        return int(self.keys[0].shape[1])

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store rows [batch, kv_heads, tokens, head_dim] of a layer and give them back; attention reads the cache."""
        k, v = key_states.transpose(1, 2), value_states.transpose(1, 2)
        if self.ours:
            kv_cache_store(k.flatten(0, 1), v.flatten(0, 1), *self.places(layer_idx, k.shape[1]))
        elif self.decoding:
            self._put(k, v, layer_idx)
        else:
            self.keys[layer_idx][:, : k.shape[1]], self.values[layer_idx][:, : k.shape[1]] = k, v
        return key_states, value_states

    def places(self, layer_idx: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Where a forward's tokens go [batch * tokens] int64, and a layer's keys and values [slots, heads, width]."""
        if layer_idx == 0 or self.slots is None:
            first = self.first + self.seen if self.decoding else self.first
            if tokens > 1:
                first = (first[:, None] + torch.arange(tokens, device=first.device)).flatten()
            self.slots = first
        return self.slots, self.keys[layer_idx].flatten(0, 1), self.values[layer_idx].flatten(0, 1)

    def _put(self, k: torch.Tensor, v: torch.Tensor, layer_idx: int) -> None:
        row = torch.arange(k.shape[0], device=k.device)[:, None]
        place = self.seen[:, None] + torch.arange(k.shape[1], device=k.device)
        self.keys[layer_idx].index_put_((row, place), k)
        self.values[layer_idx].index_put_((row, place), v)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Refuse: sequences differ in length, so positions are always given."""
        raise ValueError(f"layer {layer_idx} holds sequences of different lengths: give the model position_ids")

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """What transformers asks for before it builds a mask; no mask is built here."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """What transformers asks for before it builds a mask; no mask is built here."""
        return query_length, 0
