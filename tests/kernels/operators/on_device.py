"""Run Triton implementations on the GPU here: bitwise agreement over random shapes, accuracy, and times.

    python tests/kernels/operators/on_device.py [OPERATOR ...] [--shapes 200] [--variants 20] [--out DIR]

Variants are the root after mechanisms of the catalogue, as VARIANTS lists them. One line for each; everything as JSON
under DIR. Needs torch and triton, and is itself a test's machinery: test_on_device.py.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.attention

from kernelbraid.kernels.audit.comparison import inaccuracy
from kernelbraid.kernels.operators.cases import Arrays, Call, load_reference
from kernelbraid.kernels.operators.catalogue import apply, load_catalogue
from kernelbraid.kernels.operators.operator import Hidden, Operator, Sources, load_operator
from kernelbraid.kernels.toolchains.triton import FLAGS

OPERATORS = ("rms_norm", "linear", "attention")
VARIANTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "rms_norm": (
        ("warps_4",),
        ("warps_16",),
        ("full_resident_8", "full_streamed"),
        ("warps_4", "full_resident_16", "full_streamed"),
    ),
    "linear": tuple(
        ("full_groups", *more)
        for more in (
            ("full_tile_128x128", "decode_tile_64x32"),
            ("full_tile_128x128", "decode_tile_64x32", "descriptors"),
            ("full_tile_128x256", "decode_tile_64x16", "descriptors"),
            ("k_chunks_1024", "full_tile_128x128", "decode_tile_64x32", "descriptors"),
            ("k_chunks_2048", "full_tile_128x256", "decode_tile_64x32", "descriptors", "decode_stage_more"),
            ("k_chunks_2048", "full_tile_128x256", "decode_tile_64x128", "descriptors"),
        )
    ),
    "attention": tuple(
        ("full_clear_tiles", "full_longest_first", "whole_pages", *more)
        for more in (
            (),
            ("full_rows_128",),
            ("full_rows_128", "full_descriptors"),
            ("full_rows_128", "full_descriptors", "split_256"),
            ("full_rows_128", "full_descriptors", "split_256", "decode_merge_unrolled"),
            ("full_rows_128", "full_descriptors", "split_256", "decode_merge_unrolled", "decode_stage_more"),
            ("full_rows_128", "full_descriptors", "split_1024", "decode_alone"),
            ("full_rows_128", "full_descriptors", "keys_128", "full_stage_fewer"),
        )
    ),
}
TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
}
DEVICE = "cuda"
REPLAYS, LAUNCHES = 21, 10
ACCURATE_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class Implementation:
    """A candidate's module, loaded here with the real torch."""

    operator: Operator
    module: Any

    def run(self, call: Call) -> Mapping[str, torch.Tensor]:
        """The outputs of one call, on memory poisoned beforehand."""
        arguments = self.arguments(call)
        vars(self.module)[call.entry.symbol](*arguments)
        names = [tensor.name for tensor in call.entry.outputs]
        return dict(zip(names, arguments[len(call.entry.inputs) :], strict=True))

    def arguments(self, call: Call) -> list[torch.Tensor]:
        """Inputs on the device, and outputs full of NaN."""
        inputs = [_on_device(np.asarray(call.inputs[tensor.name])) for tensor in call.entry.inputs]
        outputs = [
            torch.full(tensor.resolve(call.dims), float("nan"), dtype=TORCH_DTYPES[tensor.dtype], device=DEVICE)
            for tensor in call.entry.outputs
        ]
        return [*inputs, *outputs]


def load(operator: Operator, sources: Sources, folder: Path) -> Implementation:
    """The sources as a module of their own."""
    place = Path(tempfile.mkdtemp(dir=folder))
    for name, text in sources.items():
        (place / name).write_text(text)
    spec = importlib.util.spec_from_file_location(f"kernel_{place.name}", place / "kernel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Implementation(operator, module)


def _on_device(values: np.ndarray[Any, Any]) -> torch.Tensor:
    if values.dtype == np.uint16:
        return torch.from_numpy(np.ascontiguousarray(values).view(np.int16)).to(DEVICE).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(values)).to(DEVICE)


def bits(values: torch.Tensor) -> torch.Tensor:
    """The values' bits as integers."""
    return values.view(torch.int16 if values.element_size() == 2 else torch.int32)


def random_dims(hidden: Hidden, rng: np.random.Generator) -> dict[str, int]:
    """Dims within the declared ranges, small ones as likely as large ones."""

    def drawn(low: int, high: int) -> int:
        exponent = rng.uniform(np.log(low + 1), np.log(high + 2))
        value = int(rng.integers(low, high + 1)) if rng.random() < 0.7 else int(np.exp(exponent)) - 1
        return min(high, max(low, value))

    return {name: drawn(*value) if isinstance(value, tuple) else value for name, value in hidden.dims.items()}


def cases(operator: Operator, shapes: int, rng: np.random.Generator) -> Iterator[tuple[str, str, dict[str, int], str]]:
    """Every declared check in every style, then random shapes from the hidden ranges until there are `shapes`."""
    declared = [(c.full, c.decode, dict(c.dims), style) for c in operator.checks for style in c.styles]
    yield from declared[:shapes]
    for number in range(max(0, shapes - len(declared))):
        hidden = operator.hidden[number % len(operator.hidden)]
        yield hidden.full, hidden.decode, random_dims(hidden, rng), "normal"


def disagreements(implementation: Implementation, shapes: int, seed: int = 0) -> tuple[dict[str, int], list[str]]:
    """How much was compared, and every case in which a bit differs or float64 is missed."""
    operator, rng = implementation.operator, np.random.default_rng(seed)
    reference, found = load_reference(operator), list[str]()
    counts = {"shapes": 0, "calls": 0, "elements": 0, "differing": 0}
    for full_name, decode_name, dims, style in cases(operator, shapes, rng):
        entry, decode = operator.entry(full_name), operator.entry(decode_name)
        call = Call(entry, dims, reference.make_inputs(entry, dims, rng, style))
        whole = implementation.run(call)
        where = f"{full_name} {dims} {style}"
        counts["shapes"] += 1
        made, outputs = call, whole
        for agreement in reference.agreements(call, decode):
            if agreement.call is not made:
                made, outputs = agreement.call, implementation.run(agreement.call)
            got = outputs[agreement.output]
            index = tuple(
                torch.from_numpy(part).to(DEVICE) if isinstance(part, np.ndarray) else part for part in agreement.index
            )
            expected = whole[agreement.output][index]
            differing = int((bits(got) != bits(expected)).sum()) if got.shape == expected.shape else got.numel()
            counts["calls"] += 1
            counts["elements"] += got.numel()
            counts["differing"] += differing
            if differing:
                found.append(f"{where}: {agreement.output} of {dict(agreement.call.dims)}: {differing} differ")
        found += _inaccuracies(operator, call, whole, where)
    return counts, found


def _inaccuracies(operator: Operator, call: Call, outputs: Mapping[str, torch.Tensor], where: str) -> Iterator[str]:
    if sum(np.asarray(values).size for values in call.inputs.values()) > ACCURATE_ELEMENTS:
        return
    exact = load_reference(operator).reference(call.entry, call.dims, call.inputs)
    for name, values in exact.items():
        if values.size and (problem := inaccuracy(_as_numpy(outputs[name]), values, operator.tolerances["bfloat16"])):
            yield f"{where}: {name}: {problem}"


def _as_numpy(values: torch.Tensor) -> Any:
    if values.dtype == torch.bfloat16:
        return values.view(torch.int16).cpu().numpy().view(np.uint16)
    return values.cpu().numpy()


def median_s(launch: Callable[[], object]) -> float:
    """Median seconds of one launch, by replays of a CUDA graph of several."""
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            launch()
    samples = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end) / 1e3 / LAUNCHES)
    return statistics.median(samples)


def latencies_s(implementation: Implementation, inputs: Mapping[str, Arrays]) -> dict[str, float]:
    """Seconds by workload, in a CUDA graph, inputs warm in the cache where they fit."""
    operator, found = implementation.operator, dict[str, float]()
    for workload in operator.workloads:
        entry = operator.entry(workload.entry)
        arguments = implementation.arguments(Call(entry, workload.dims, inputs[workload.name]))
        found[workload.name] = median_s(partial(vars(implementation.module)[entry.symbol], *arguments))
    return found


def library_s(operator: Operator, inputs: Mapping[str, Arrays]) -> dict[str, float]:
    """torch's own for the same shapes; attention over packed or whole-page keys alone."""
    found: dict[str, float] = {}
    for workload in operator.workloads:
        tensors = {name: _on_device(np.asarray(values)) for name, values in inputs[workload.name].items()}
        launch = _library(operator.name, tensors, dict(workload.dims))
        try:
            found |= {workload.name: median_s(launch)} if launch is not None else {}
        except RuntimeError as error:
            print(f"{operator.name} {workload.name}: the library refuses: {str(error).splitlines()[0]}", flush=True)
    return found


def _library(name: str, tensors: Mapping[str, torch.Tensor], dims: Mapping[str, int]) -> Callable[[], object] | None:
    if name == "rms_norm":
        return lambda: torch.nn.functional.rms_norm(tensors["x"], (dims["hidden"],), tensors["weight"], 1e-6)
    if name == "linear":
        return lambda: torch.nn.functional.linear(tensors["x"], tensors["w"])
    if dims["ragged"] or dims.get("slots", 1) != 1:
        return None
    batch, heads = dims["batch"], (dims["kv_heads"], dims["head_dim"])
    q = tensors["q"].view(batch, -1, dims["query_heads"], dims["head_dim"]).transpose(1, 2)
    k, v = (tensors[part].view(batch, -1, *heads).transpose(1, 2) for part in "kv")
    backend = torch.nn.attention.SDPBackend.CUDNN_ATTENTION

    def launch() -> object:
        with torch.nn.attention.sdpa_kernel(backend):
            causal = q.shape[2] > 1
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    return launch


def measured(name: str, shapes: int, variant_shapes: int, folder: Path) -> dict[str, Any]:
    """The root and every variant of one operator."""
    operator = load_operator(name, "triton")
    catalogue = {mechanism.name: mechanism for mechanism in load_catalogue(operator, "triton")}
    reference, rng = load_reference(operator), np.random.default_rng(1)
    inputs = {w.name: reference.make_inputs(operator.entry(w.entry), w.dims, rng, "normal") for w in operator.workloads}
    record: dict[str, Any] = {"library_us": _microseconds(library_s(operator, inputs)), "variants": {}}
    _say(f"{name} library", record["library_us"])
    for names in ((), *VARIANTS[name]):
        sources = apply([catalogue[each] for each in names], operator.root_sources())
        label = "+".join(names) or "root"
        started = time.perf_counter()
        try:
            implementation = load(operator, sources, folder)
            counts, found = disagreements(implementation, variant_shapes if names else shapes)
            times = _microseconds(latencies_s(implementation, inputs))
        except Exception as error:  # noqa: BLE001 one variant that does not run must not hide the others
            record["variants"][label] = {"error": f"{type(error).__name__}: {error}"[:500]}
            print(f"{name} {label}: {record['variants'][label]['error'][:200]}", flush=True)
            continue
        took_s = round(time.perf_counter() - started, 1)
        record["variants"][label] = {**counts, "found": found[:20], "us": times, "took_s": took_s}
        print(f"{name} {label}: {counts} wrong {len(found)} in {took_s} s", *found[:2], sep="\n  ", flush=True)
        _say("", times)
    return record


def _microseconds(times: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value * 1e6, 2) for name, value in times.items()}


def _say(label: str, times: Mapping[str, float]) -> None:
    print(label, *(f"{name} {value}" for name, value in times.items()), sep="  ", flush=True)


def main() -> int:
    """0 when nothing differed anywhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", default=list(OPERATORS))
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--variants", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path())
    wanted = parser.parse_args()
    record: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted.operators:
            record[name] = measured(name, wanted.shapes, wanted.variants, Path(folder))
            (wanted.out / "operators.json").write_text(json.dumps(record, indent=1))
    every = [item for name in wanted.operators for item in record[name]["variants"].values()]
    return int(any(item.get("found") or "error" in item for item in every))


os.environ.update(dict(flag.split("=") for flag in FLAGS))
if __name__ == "__main__":
    sys.exit(main())
