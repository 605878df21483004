"""Run Triton implementations on the GPU here: bitwise agreement over random shapes, accuracy, and times.

    python tests/kernels/operators/on_device.py [OPERATOR ...] [--shapes 200] [--variants 20] [--only agreement|times]
        [--compile] [--out DIR]

Variants are `best`, where an operator has one, and the root after mechanisms of the catalogue, as VARIANTS lists them.
Times are those of CUDA-graph replays over several sets of tensors, more than the cache holds where they are large;
beside them stand PyTorch's for the same formula, eager and compiled, and the share of the bandwidth that a large copy
had in the same run. One line for each; everything as JSON under DIR. Needs torch and triton, and is itself a test's
machinery: test_on_device.py.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.attention

from kernelbraid.kernels.audit.comparison import inaccuracy
from kernelbraid.kernels.operators.cases import Agreement, Call, load_reference
from kernelbraid.kernels.operators.catalogue import apply, load_catalogue
from kernelbraid.kernels.operators.operator import (
    Entry,
    Hidden,
    Operator,
    Sources,
    Workload,
    load_operator,
    operator_names,
    operator_targets,
)
from kernelbraid.kernels.operators.peers import PEERS
from kernelbraid.kernels.toolchains.triton import FLAGS

VARIANTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "rms_norm": (
        ("warps_4",),
        ("warps_of_16",),
        ("warps_of_32",),
        ("warps_4", "full_resident_16", "full_streamed"),
    ),
    "fused_add_rms_norm": (("warps_4",), ("warps_of_16",), ("warps_of_32",)),
    "qk_norm": (("tile_8_2",), ("tile_16_2",), ("tile_32_8",)),
    "rope": (
        ("full_tile_32_4", "decode_heads_apart", "decode_tile_8_2"),
        ("full_heads_apart", "full_tile_8_1", "decode_heads_apart", "decode_tile_8_1"),
        ("full_heads_apart", "decode_heads_apart"),
    ),
    "silu_and_mul": (
        ("full_short_rows", "decode_short_rows"),
        ("full_tile_2048_8", "decode_tile_512_2"),
        ("full_tile_512_2", "full_short_rows", "decode_tile_256_1"),
    ),
    "kv_cache_store": (
        ("full_tokens_of_2048", "decode_tokens_of_1024"),
        ("full_tokens_of_4096", "full_warps_8", "decode_tokens_of_512", "decode_warps_2"),
        ("full_tokens_of_1024", "full_warps_2", "decode_warps_1"),
    ),
    "rope_store": (("tile_16_2",), ("tile_8_2",), ("tile_32_4",), ("tile_8_1",)),
    "embedding": (("full_warps_1", "decode_warps_8"), ("full_warps_2",), ("full_warps_8",)),
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
REPLAYS, LAUNCHES = 15, 10
ACCURATE_ELEMENTS = 1 << 22
COLD_BYTES, MOST_SETS = 300 << 20, 16
"""Sets of tensors are made until they hold so much, several times the cache; small ones stay warm, as in a model."""
COPY_BYTES = (160 << 20, 320 << 20, 640 << 20)
POISON = {"float32": float("nan"), "bfloat16": float("nan"), "int32": -(1 << 30), "int64": -(1 << 30)}


@dataclass(frozen=True)
class Implementation:
    """A candidate's module, loaded here with the real torch."""

    operator: Operator
    module: Any

    def run(self, call: Call, kept: "Kept | None" = None) -> Mapping[str, torch.Tensor]:
        """The outputs of one call, on memory poisoned beforehand."""
        arguments = self.arguments(call, kept)
        vars(self.module)[call.entry.symbol](*arguments)
        names = [tensor.name for tensor in call.entry.outputs]
        return dict(zip(names, arguments[len(call.entry.inputs) :], strict=True))

    def arguments(self, call: Call, kept: "Kept | None" = None) -> list[torch.Tensor]:
        """Inputs on the device, and outputs full of what no entry writes."""
        place = kept.on_device if kept is not None else _on_device
        inputs = [place(np.asarray(call.inputs[tensor.name])) for tensor in call.entry.inputs]
        outputs = [
            torch.full(tensor.resolve(call.dims), POISON[tensor.dtype], dtype=TORCH_DTYPES[tensor.dtype], device=DEVICE)
            for tensor in call.entry.outputs
        ]
        return [*inputs, *outputs]


@dataclass(frozen=True)
class Kept:
    """What the calls of one shape share, on the device once: a table, a weight."""

    shared: Mapping[int, torch.Tensor]

    @classmethod
    def of(cls, call: Call) -> "Kept":
        """The inputs of the whole call."""
        return cls({id(values): _on_device(np.asarray(values)) for values in call.inputs.values()})

    def on_device(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        """A shared tensor, else a new one."""
        found = self.shared.get(id(values))
        return found if found is not None else _on_device(values)


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
        compared = list(_compared(implementation, call, decode, whole))
        differing = torch.stack([count for _, _, count in compared]).tolist() if compared else []
        counts["shapes"] += 1
        counts["calls"] += len(compared)
        counts["elements"] += sum(elements for _, elements, _ in compared)
        counts["differing"] += sum(differing)
        for (agreement, _, _), count in zip(compared, differing, strict=True):
            if count:
                found.append(f"{where}: {agreement.output} of {dict(agreement.call.dims)}: {count} differ")
        found += _inaccuracies(operator, call, whole, where)
    return counts, found


def _compared(
    implementation: Implementation, call: Call, decode: Entry, whole: Mapping[str, torch.Tensor]
) -> Iterator[tuple[Agreement, int, torch.Tensor]]:
    """Every agreement of a call, how many elements it has and, on the device, how many of them differ."""
    kept = Kept.of(call)
    made, outputs = call, whole
    for agreement in load_reference(implementation.operator).agreements(call, decode):
        if agreement.call is not made:
            made, outputs = agreement.call, implementation.run(agreement.call, kept)
        got = outputs[agreement.output]
        index = tuple(
            torch.from_numpy(part).to(DEVICE) if isinstance(part, np.ndarray) else part for part in agreement.index
        )
        expected = whole[agreement.output][index]
        if got.shape != expected.shape:
            raise ValueError(f"{agreement.output}: {list(got.shape)} is compared with {list(expected.shape)}")
        yield agreement, got.numel(), (bits(got) != bits(expected)).sum()


def _inaccuracies(operator: Operator, call: Call, outputs: Mapping[str, torch.Tensor], where: str) -> Iterator[str]:
    if sum(np.asarray(values).size for values in call.inputs.values()) > ACCURATE_ELEMENTS:
        return
    exact = load_reference(operator).reference(call.entry, call.dims, call.inputs)
    for name, values in exact.items():
        if values.size and (
            problem := inaccuracy(_as_numpy(outputs[name]), values, operator.tolerances[call.entry.dtype])
        ):
            yield f"{where}: {name}: {problem}"


def _as_numpy(values: torch.Tensor) -> Any:
    if values.dtype == torch.bfloat16:
        return values.view(torch.int16).cpu().numpy().view(np.uint16)
    return values.cpu().numpy()


def median_s(launches: Sequence[Callable[[], object]]) -> float:
    """Median seconds of one launch, by replays of a CUDA graph of all of them, several times over."""
    for launch in launches[:2]:
        launch()
    torch.cuda.synchronize()
    rounds = max(1, LAUNCHES // len(launches))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for launch in launches:
                launch()
    samples = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end) / 1e3 / rounds / len(launches))
    return statistics.median(samples)


Arguments = list[torch.Tensor]


def in_sets(arguments: Arguments) -> list[Arguments]:
    """The same arguments, and copies of them until they hold COLD_BYTES together."""
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in arguments)
    count = min(MOST_SETS, 1 + COLD_BYTES // max(1, size_bytes))
    return [arguments, *([tensor.clone() for tensor in arguments] for _ in range(count - 1))]


def moved_bytes(name: str, entry: Entry, arguments: Arguments) -> int:
    """What one call must read and write at least; of an embedding's table, the rows that it takes."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in arguments]
    if name == "embedding":
        sizes[1] = sizes[2]
    return sum(sizes)


def copied_bytes_per_s() -> float:
    """Bytes read and written a second by copies far larger than the cache, of whichever size and way is fastest."""
    found = [0.0]
    for size_bytes in COPY_BYTES:
        one, other = (torch.zeros(size_bytes // 2, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
        for launch in (partial(one.copy_, other), partial(torch.neg, other, out=one)):
            found.append(2 * size_bytes / median_s([launch]))
    return max(found)


@dataclass(frozen=True)
class Timed:
    """A workload's tensors on the device, several sets of them."""

    workload: Workload
    entry: Entry
    sets: list[Arguments]
    moved_bytes: int

    def of(self, implementation: Implementation) -> float:
        """Seconds of one call."""
        function = vars(implementation.module)[self.entry.symbol]
        return median_s([partial(function, *arguments) for arguments in self.sets])

    def of_peer(self, operator: Operator, compiled: bool) -> float | None:
        """Seconds of PyTorch's formula; None where there is none."""
        names = [tensor.name for tensor in (*self.entry.inputs, *self.entry.outputs)]
        named = [dict(zip(names, arguments, strict=True)) for arguments in self.sets]
        if operator.name not in PEERS:
            launch = _library(operator.name, named[0], dict(self.workload.dims))
            return None if launch is None or compiled else median_s([launch])
        peer = PEERS[operator.name]
        torch._dynamo.reset()  # its limit of shapes would end in eager calls that count as compiled
        function = torch.compile(peer.function, dynamic=False) if compiled else peer.function
        return median_s([partial(function, *peer.arguments(tensors)) for tensors in named])

    def error_to_peer(self, name: str, implementation: Implementation) -> float | None:
        """Largest difference to PyTorch's formula over the largest value of its row; None where there is none."""
        if name not in PEERS:
            return None
        arguments = [tensor.clone() for tensor in self.sets[0]]
        inputs = len(self.entry.inputs)
        named = {t.name: a for t, a in zip((*self.entry.inputs, *self.entry.outputs), arguments, strict=True)}
        theirs = PEERS[name].function(*PEERS[name].arguments(named))
        vars(implementation.module)[self.entry.symbol](*self.sets[0])
        pairs = zip(self.sets[0][inputs:], theirs if isinstance(theirs, tuple) else (theirs,), strict=True)
        return max(_row_error(ours, their) for ours, their in pairs)

    def of_copy(self) -> float:
        """Seconds of a copy that moves as many bytes, by the faster of two ways."""
        pairs = [[torch.zeros(self.moved_bytes // 4, device=DEVICE).bfloat16() for _ in range(2)] for _ in self.sets]
        ways = ([partial(a.copy_, b) for a, b in pairs], [partial(torch.neg, b, out=a) for a, b in pairs])
        return min(map(median_s, ways))


def _row_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    error = (ours.float() - theirs.float()).abs().amax(-1)
    return float((error / theirs.float().abs().amax(-1).clamp(min=1e-30)).max())


def timed_workloads(operator: Operator) -> Iterator[Timed]:
    """Each workload with tensors of its own, one after another: all of them together may not fit."""
    reference, rng = load_reference(operator), np.random.default_rng(1)
    nobody = Implementation(operator, None)
    for workload in operator.workloads:
        entry = operator.entry(workload.entry)
        inputs = reference.make_inputs(entry, workload.dims, rng, "normal")
        arguments = nobody.arguments(Call(entry, workload.dims, inputs))
        yield Timed(workload, entry, in_sets(arguments), moved_bytes(operator.name, entry, arguments))


def times_us(
    operator: Operator, implementations: Mapping[str, Implementation], compiled: bool, bytes_per_s: float
) -> dict[str, dict[str, float]]:
    """Microseconds by workload and arm; `NAME of copy` is the share of a large copy's bandwidth.

    Compiled is the last workload of each path: a compilation takes seconds.
    """
    found = {}
    last = {operator.entry(workload.entry).path: workload.name for workload in operator.workloads}.values()
    for timed in timed_workloads(operator):
        arms: dict[str, Callable[[], float | None]] = {
            name: partial(timed.of, implementation) for name, implementation in implementations.items()
        }
        arms |= {"copy": timed.of_copy, "eager": partial(timed.of_peer, operator, False)}
        if compiled and timed.workload.name in last:
            arms |= {"compiled": partial(timed.of_peer, operator, True)}
        row: dict[str, float] = {}
        for name, measure in arms.items():
            try:
                taken_s = measure()
            except Exception as error:  # noqa: BLE001 one arm that does not run must not hide the others
                print(f"{operator.name} {timed.workload.name} {name}: {_first_line(error)}", flush=True)
                continue
            if taken_s is not None:
                row |= {name: round(taken_s * 1e6, 2)}
                row |= {f"{name} of copy": round(timed.moved_bytes / taken_s / bytes_per_s, 3)}
        if (error := timed.error_to_peer(operator.name, next(iter(implementations.values())))) is not None:
            row["error to eager"] = round(error, 5)
        found[timed.workload.name] = row
        print(f"{operator.name} {timed.workload.name}", *(f"{key} {value}" for key, value in row.items()), sep="  ")
    return found


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _library(name: str, tensors: Mapping[str, torch.Tensor], dims: Mapping[str, int]) -> Callable[[], object] | None:
    if name == "linear":
        return lambda: torch.nn.functional.linear(tensors["x"], tensors["w"])
    if name != "attention" or dims["ragged"] or dims.get("slots", 1) != 1:
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


def variants(operator: Operator) -> Iterator[tuple[str, Sources]]:
    """The root, the best where there is one, and the root after some mechanisms."""
    catalogue = {mechanism.name: mechanism for mechanism in load_catalogue(operator, "triton")}
    yield "root", operator.root_sources()
    if (operator.folder / "triton" / "best").is_dir():
        yield "best", operator.best_sources()
    for names in VARIANTS.get(operator.name, ()):
        yield "+".join(names), apply([catalogue[each] for each in names], operator.root_sources())


def agreement(implementation: Implementation, shapes: int) -> dict[str, Any]:
    """What was compared and what was found, or the error that ended it."""
    started = time.perf_counter()
    try:
        counts, found = disagreements(implementation, shapes)
    except Exception as error:  # noqa: BLE001 one variant that does not run must not hide the others
        return {"error": _first_line(error)}
    return {**counts, "wrong": len(found), "found": found[:20], "took_s": round(time.perf_counter() - started, 1)}


def measured(name: str, wanted: argparse.Namespace, folder: Path, bytes_per_s: float) -> dict[str, Any]:
    """The root and every variant of one operator."""
    operator = load_operator(name, "triton")
    loaded = {label: load(operator, sources, folder) for label, sources in variants(operator)}
    record: dict[str, Any] = {}
    if wanted.only != "times":
        record["agreement"] = {}
        for label, implementation in loaded.items():
            shapes = wanted.shapes if label in ("root", "best") else wanted.variants
            record["agreement"][label] = agreement(implementation, shapes)
            print(f"{name} {label}: {record['agreement'][label]}", flush=True)
    if wanted.only != "agreement":
        record["us"] = times_us(operator, loaded, wanted.compile, bytes_per_s)
    return record


def main() -> int:
    """0 when nothing differed anywhere."""
    every = [name for name in operator_names() if "triton" in operator_targets(name)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", default=every)
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--variants", type=int, default=20)
    parser.add_argument("--only", choices=["agreement", "times"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path, default=Path())
    wanted = parser.parse_args()
    bytes_per_s = copied_bytes_per_s() if wanted.only != "agreement" else 1.0
    record: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    record |= {"copied_bytes_per_s": bytes_per_s}
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted.operators:
            record[name] = measured(name, wanted, Path(folder), bytes_per_s)
            (wanted.out / "operators.json").write_text(json.dumps(record, indent=1))
    found = [item for name in wanted.operators for item in record[name].get("agreement", {}).values()]
    return int(any(item.get("wrong", 1) for item in found))


os.environ.update(dict(flag.split("=") for flag in FLAGS))
if __name__ == "__main__":
    sys.exit(main())
