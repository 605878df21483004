"""What a phase of a layer launches: each kernel's name, how often, and microseconds in all.

    python -m kernelbraid.ops.bench.layer_launches ARM MODEL [MODEL ...]

Phases are those of layer_phases; a decoded token is the whole stack of layers, replayed. One line of JSON for each
phase on stdout: `busy_us` is the sum over kernels, `span_us` from the first one's start to the last one's end.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from kernelbraid.ops.bench import layer_phases
from kernelbraid.ops.bench.layer_phases import Phase, Stack

NAME_CHARACTERS = 90

PHASES: Mapping[str, Callable[[Stack], Phase]] = {
    "decode": lambda stack: layer_phases.decode(stack, masked=stack.arm == "stock"),
    "prefill": layer_phases.prefill,
    "update_forward": layer_phases.update_forward,
    "update": layer_phases.update,
}


def launched(run: Phase) -> Mapping[str, Any]:
    """The kernels of one call, after two others, the most costly first."""
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    kernels = [event for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return summed([(kernel.name, kernel.time_range.start, kernel.time_range.end) for kernel in kernels])


def summed(kernels: Sequence[tuple[str, float, float]]) -> Mapping[str, Any]:
    """Of kernels by name, start and end in microseconds."""
    spent: dict[str, list[float]] = defaultdict(list)
    for name, start, end in kernels:
        spent[name[:NAME_CHARACTERS]].append(end - start)
    by_cost = sorted(spent.items(), key=lambda each: -sum(each[1]))
    return {
        "launches": len(kernels),
        "busy_us": round(sum(end - start for _, start, end in kernels), 1),
        "span_us": round(max((end for *_, end in kernels), default=0) - min((s for _, s, _ in kernels), default=0), 1),
        "kernels": [{"name": name, "launches": len(us), "us": round(sum(us), 1)} for name, us in by_cost],
    }


def lines(arm: str, models: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    """One for each model and phase."""
    for name in models:
        stack = layer_phases.build(arm, name)
        for phase, of in PHASES.items():
            yield {"arm": arm, "model": name, "phase": phase, **launched(of(stack))}


def main(arm: str, *models: str) -> None:
    """Print them."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    for line in lines(arm, models):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
