"""Arms of the layer benchmark that share a process: how torch multiplies is decided when it starts.

    python -m kernelbraid.ops.bench.layer_phases ARM[,ARM] MODEL [MODEL ...]

One line of JSON for each model and arm on stdout. Needs a CUDA device, torch and transformers.
"""

import json
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from kernelbraid.kernels import unify
from kernelbraid.kernels.models.cache import StaticCache
from kernelbraid.kernels.models.unified import run_layers
from kernelbraid.kernels.models.widths import WIDTHS
from kernelbraid.kernels.runtime import ran, reset_ran
from kernelbraid.ops.bench.device import environment, sm_mhz

DEVICE = "cuda"
BATCH, TOKENS = 8, 1024
STACK = 4
"""Layers in a decoded graph, so that each finds its weights in memory and not in a cache."""
WARMUP, REPEATS, REPLAYS = 3, 15, 40

Phase = Callable[[], object]


@dataclass
class Stack:
    """A few layers of one model under one arm, and what they are called with."""

    arm: str
    model: Any
    hidden: torch.Tensor
    token: torch.Tensor

    @property
    def layers(self) -> Any:
        """The decoder layers."""
        return self.model.model.layers

    def angles(self, hidden: torch.Tensor, first: int) -> Any:
        """What a layer takes as position_embeddings, for tokens from `first` on."""
        positions = torch.arange(first, first + hidden.shape[1], device=hidden.device)[None]
        return self.model.model.rotary_emb(hidden, positions)

    def stored(self) -> tuple[Any, Mapping[str, Any], Callable[[bool], None]]:
        """A cache, what else the layers are given with it, and how to set it to the start of prefill or decode."""
        if self.arm.startswith("stock"):
            cache = transformers.StaticCache(config=self.model.config, max_cache_len=TOKENS)

            def begin(decoding: bool) -> None:
                for layer in cache.layers:
                    layer.cumulative_length.fill_(TOKENS - 1 if decoding else 0)

            return cache, {}, begin
        ours = StaticCache.of(self.model, BATCH, TOKENS, ours=self.arm == "unified")

        def start(decoding: bool) -> None:
            ours.decoding = decoding
            ours.seen.fill_(TOKENS - 1 if decoding else 0)
            ours.lengths.fill_(TOKENS)

        return ours, {"static_cache": ours}, start


def build(arm: str, name: str) -> Stack:
    """Random weights; the arm's kernels."""
    torch.manual_seed(0)
    sizes = dict(WIDTHS[name]) | {"vocab_size": 512, "num_hidden_layers": STACK, "max_position_embeddings": 4096}
    config = transformers.AutoConfig.for_model(**sizes)
    with torch.device(DEVICE):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
        hidden = torch.randn(BATCH, TOKENS, config.hidden_size, dtype=torch.bfloat16)
    model.eval()
    if arm == "unified":
        unify(model)
    elif arm.startswith("library"):
        unify(model, "library", attention="triton" if arm == "library_triton" else "flash_attn_4")
    return Stack(arm, model, hidden, hidden[:, -1:].contiguous())


def prefill(stack: Stack) -> Phase:
    """A whole prompt into an empty cache, one layer."""
    cache, more, begin = stack.stored()
    angles, layer = stack.angles(stack.hidden, 0), stack.layers[0]

    def run() -> object:
        begin(False)
        with torch.no_grad():
            return layer(stack.hidden, position_embeddings=angles, past_key_values=cache, use_cache=True, **more)

    return run


def decode(stack: Stack, masked: bool) -> Phase:
    """One token of every sequence through the whole stack, captured. `masked` as transformers' static cache asks."""
    cache, more, begin = stack.stored()
    angles = stack.angles(stack.token, TOKENS - 1)
    whole = stack.angles(stack.hidden, 0)
    mask = torch.ones(BATCH, 1, 1, TOKENS, dtype=torch.bool, device=DEVICE) if masked else None
    begin(False)
    with torch.no_grad():
        for layer in stack.layers:
            layer(stack.hidden, position_embeddings=whole, past_key_values=cache, use_cache=True, **more)

    def run() -> None:
        begin(True)
        hidden = stack.token
        with torch.no_grad():
            if stack.arm == "unified":
                torch.add(*run_layers(stack.layers, hidden, angles, cache))
                return
            for layer in stack.layers:
                hidden = layer(
                    *(hidden, mask), position_embeddings=angles, past_key_values=cache, use_cache=True, **more
                )

    return captured(run)


def captured(run: Phase) -> Phase:
    """The same as a replayed CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Phase = graph.replay
    return replay


def recompute(stack: Stack) -> Phase:
    """The forward that a trainer repeats to have old log-probabilities, one layer."""
    angles, layer = stack.angles(stack.hidden, 0), stack.layers[0]

    def run() -> object:
        with torch.no_grad():
            return layer(stack.hidden, position_embeddings=angles)

    return run


def update_forward(stack: Stack) -> Callable[[], Any]:
    """The forward that keeps what the backward needs, one layer."""
    angles, layer = stack.angles(stack.hidden, 0), stack.layers[0]
    hidden = stack.hidden.clone().requires_grad_()
    return lambda: layer(hidden, position_embeddings=angles)


def update(stack: Stack) -> Phase:
    """Forward and backward of one layer, into fresh gradients."""
    forward, layer = update_forward(stack), stack.layers[0]
    gradient = torch.randn_like(stack.hidden)

    def run() -> None:
        layer.zero_grad(set_to_none=True)
        forward().backward(gradient)

    return run


def median_ms(run: Phase, repeats: int) -> float:
    """Median of single calls between two events, after a warm-up."""
    for _ in range(WARMUP):
        run()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for before, after in pairs:
        before.record()
        run()
        after.record()
    torch.cuda.synchronize()
    return statistics.median([float(before.elapsed_time(after)) for before, after in pairs])


def measured(arm: str, name: str) -> Mapping[str, object]:
    """Milliseconds of each phase of one layer; decode is one token of every sequence."""
    stack = build(arm, name)
    reset_ran()
    phases = {
        "prefill": median_ms(prefill(stack), REPEATS),
        "decode": median_ms(decode(stack, masked=arm == "stock"), REPLAYS) / STACK,
        "recompute": median_ms(recompute(stack), REPEATS),
        "update_forward": median_ms(update_forward(stack), REPEATS),
        "update": median_ms(update(stack), REPEATS),
    }
    if arm == "stock":
        phases["decode_unmasked"] = median_ms(decode(stack, masked=False), REPLAYS) / STACK
    operators = {f"{each.operator}/{each.symbol}": f"{each.kind} {each.digest[:12]}" for each in ran()}
    return {"arm": arm, "model": name, "ms": phases, "sm_mhz": sm_mhz(), "operators": operators}


def place() -> Mapping[str, str | int]:
    """Where and over what this was measured."""
    return {**environment(), "transformers": transformers.__version__, "batch": BATCH, "tokens": TOKENS}


def main(arms: str, *models: str) -> None:
    """Print the environment, then a line for each model and arm; the arms of one model follow each other."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    print(json.dumps({"environment": place()}), flush=True)
    for name in models:
        for arm in arms.split(","):
            try:
                print(json.dumps(measured(arm, name)), flush=True)
            except (RuntimeError, ValueError, TypeError) as failure:
                said = {"arm": arm, "model": name, "failed": f"{type(failure).__name__}: {failure}"}
                print(json.dumps(said), flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main(*sys.argv[1:])
