"""Each operator beside what others do for it, on the GPU here, in one process.

    python -m kernelbraid.ops.bench.operator_times [--no-compile] OPERATOR [OPERATOR ...]

One line of JSON for each workload on stdout, and one for each operator that came to its end. Times are medians over
replays of a CUDA graph, whose calls go round sets of tensors: together larger than the cache, but of small tensors no
more than MOST_SETS, which stay in it as a decode step's do. A kernel that may be launched before the one ahead of it
has ended is. What memory bounds is also timed at large shapes, as a short kernel's time is that of starting it, and
stands beside a copy of as many bytes and beside the rate of the largest copies. torch.compile (a whole graph, shapes
fixed) takes part in each path's last cell. Needs a CUDA device, torch and triton.
"""

import importlib
import json
import math
import signal
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.attention
import triton

from kernelbraid.kernels.operators.operator import Entry, Operator, Tensor, Workload, load_operator
from kernelbraid.kernels.operators.peers import PEERS
from kernelbraid.kernels.runtime import implementation
from kernelbraid.kernels.runtime.projection import product
from kernelbraid.ops.bench.device import environment, sm_mhz

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int32": torch.int32, "int64": torch.int64}
COLD_BYTES, MOST_SETS = 200 << 20, 12
REPLAYS, LAUNCHES = 15, 12
HEADS = {"query_heads": 32, "kv_heads": 8, "head_dim": 128, "ragged": 0}
CONTEXTS, BATCHES = (128, 1024, 4096, 8192), (1, 4, 8, 16)
PROMPTS = (1024, 4096, 8192, 16384)
PRODUCTS = (
    *((1536, 2048), (1536, 17920), (8960, 1536), (2560, 6144), (2560, 19456), (4096, 2560), (9728, 2560)),
    *((4096, 6144), (4096, 24576), (12288, 4096), (4096, 28672), (14336, 4096), (2048, 5120), (4096, 2048)),
)
"""(in, out) of the five models' products, with query, key and value in one, and gate and up."""
LARGE_BYTES = 256 << 20
"""A call that moves as much or more is large: what starts and ends a kernel is less than a fiftieth of its time."""
COMPILE_S = 60
"""An arm that has not been compiled and timed by then does not run."""
COPY_BYTES = (160 << 20, 320 << 20, 640 << 20)
COMPUTED = ("attention", "linear", "moe_align", "moe_linear")
"""Operators whose time is not that of moving what they read and write once."""
GATHERED = ("table", "cos_sin")
"""Inputs of which a token takes one row."""
ROWS = (1, 16, 64, 128, 256, 512, 2048, 8192)

Tensors = dict[str, torch.Tensor]
Launch = Callable[[], object]


@dataclass(frozen=True)
class Cell:
    """One call: an entry at given dims."""

    name: str
    entry: Entry
    dims: Mapping[str, int]

    @property
    def moved_bytes(self) -> int:
        """What a call must read and write at least: of what is gathered, a row for each token and no more than all."""
        return sum(map(self._moved_bytes, (*self.entry.inputs, *self.entry.outputs)))

    def _moved_bytes(self, tensor: Tensor) -> int:
        shape = list(tensor.resolve(self.dims))
        if tensor.name in GATHERED and "tokens" in self.dims:
            shape[0] = min(shape[0], self.dims["tokens"])
        return math.prod(shape) * int(DTYPES[tensor.dtype].itemsize)

    def tensors(self) -> Tensors:
        """Inputs of usual size, and outputs."""
        return {tensor.name: drawn(tensor, self.dims) for tensor in (*self.entry.inputs, *self.entry.outputs)}

    def sets(self) -> list[Tensors]:
        """As many as make the cache useless."""
        first = self.tensors()
        size_bytes = sum(tensor.nbytes for tensor in first.values())
        more = min(MOST_SETS - 1, COLD_BYTES // max(1, size_bytes))
        return [first, *({name: tensor.clone() for name, tensor in first.items()} for _ in range(more))]


def cells(operator: Operator) -> Iterator[Cell]:
    """The operator's workloads; what memory bounds at large shapes too.

    For attention and linear the denser grids that their goals are stated over.
    """
    match operator.name:
        case "attention":
            full, decode = operator.entry("attention_full_bf16"), operator.entry("attention_decode_bf16")
            for tokens in PROMPTS:
                yield Cell(f"prefill_{tokens}", full, HEADS | {"batch": 1, "tokens": tokens, "keys": tokens})
            for batch in BATCHES:
                for context in CONTEXTS:
                    pages = {"batch": batch, "steps": 1, "pages": batch, "page_tokens": context, "slots": 1}
                    yield Cell(f"decode_b{batch}_{context}", decode, HEADS | pages)
        case "linear":
            for width, out in PRODUCTS:
                for rows in ROWS:
                    symbol = "linear_decode_bf16" if rows <= 256 else "linear_full_bf16"
                    dims = {"rows": rows, "in": width, "out": out}
                    yield Cell(f"r{rows}_{width}_{out}", operator.entry(symbol), dims)
        case _:
            yield from (_cell(operator, workload) for workload in operator.workloads)
            if operator.name not in COMPUTED:
                yield from _large_cells(operator)


def _cell(operator: Operator, workload: Workload) -> Cell:
    return Cell(workload.name, operator.entry(workload.entry), workload.dims)


def _large_cells(operator: Operator) -> Iterator[Cell]:
    """Full-path workloads of so many times the tokens, a power of two, that they are large; each shape once."""
    found: dict[tuple[object, ...], Cell] = {}
    for workload in operator.workloads:
        cell = _cell(operator, workload)
        if cell.entry.path == "full" and cell.moved_bytes < LARGE_BYTES:
            larger = _large(cell)
            found.setdefault((larger.entry.symbol, *larger.dims.values()), larger)
    yield from found.values()


def _large(cell: Cell) -> Cell:
    """With as many times the rows that are gathered from a table, or most would be gathered twice."""
    grows = {"rows", "tokens", "slots", *(tensor.shape[0] for tensor in cell.entry.inputs if tensor.name == "table")}
    times, grown = 1, cell
    while grown.moved_bytes < LARGE_BYTES:
        times *= 2
        dims = {name: times * size if name in grows else size for name, size in cell.dims.items()}
        grown = replace(cell, name=f"{cell.name}_x{times}", dims=dims)
    return grown


def drawn(tensor: Tensor, dims: Mapping[str, int]) -> torch.Tensor:
    """A tensor of an entry: normal values, and whole numbers that mean what their name says."""
    shape, dtype = tensor.resolve(dims), DTYPES[tensor.dtype]
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype, device="cuda")
    return torch.as_tensor(_whole(tensor.name, shape, dims), device="cuda").to(dtype).reshape(shape)


def _whole(name: str, shape: Sequence[int], dims: Mapping[str, int]) -> torch.Tensor:
    batch = dims.get("batch", 1)
    match name:
        case "positions":
            return torch.randint(dims["max_position"], tuple(shape))
        case "slot_mapping":
            padding = torch.full((max(0, dims["tokens"] - dims["slots"]),), -1)
            return torch.cat((torch.randperm(dims["slots"])[: dims["tokens"]], padding))
        case "ids" if "experts" in dims:
            return torch.rand(dims["tokens"], dims["experts"]).topk(dims["k"]).indices
        case "ids" if math.prod(shape) <= dims["vocab"]:
            return torch.randperm(dims["vocab"])[: math.prod(shape)]  # a row that is taken twice would be read once
        case "ids" | "labels":
            return torch.randint(dims["vocab"], tuple(shape))
        case "order" | "block_expert" if "each" in dims:
            return _blocks(dims)[name == "block_expert"]
        case "query_start" | "key_start":
            each = dims["tokens" if name == "query_start" else "keys"] // batch
            return torch.arange(batch) * each
        case "query_count" | "key_count":
            return torch.full((batch,), dims["tokens" if name == "query_count" else "keys"] // batch)
        case "table":
            return torch.arange(dims["pages"])[: shape[0] * shape[1]]
        case "lengths":
            return torch.full((batch,), dims["page_tokens"] * dims["slots"])
        case _:
            return torch.zeros(tuple(shape), dtype=torch.int64)


def _blocks(dims: Mapping[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """order and block_expert for slots that go to random experts, the same ones whenever asked."""
    slots, block = dims["rows"] * dims["each"], dims["block"]
    ids = torch.randint(dims["experts"], (slots,), generator=torch.Generator().manual_seed(0))
    order = torch.full((dims["blocks"], block), slots)
    expert_of = torch.full((dims["blocks"],), -1)
    first = 0
    for expert in range(dims["experts"]):
        for part in (ids == expert).nonzero()[:, 0].split(block):
            if len(part):
                order[first, : len(part)], expert_of[first] = part, expert
                first += 1
    return order, expert_of


def arms(operator: Operator, cell: Cell, compiled: bool) -> Iterator[tuple[str, Callable[[Tensors], Launch]]]:
    """Who computes a cell: the name, and from a set of tensors what to launch."""
    entry = product if operator.name == "linear" else implementation(operator.name).entry(cell.entry.symbol)
    yield "ours", lambda tensors: partial(entry, *tensors.values())
    if operator.name == "attention":
        yield from _attentions(cell)
    elif operator.name == "linear":
        yield "cublas", lambda tensors: partial(torch.nn.functional.linear, tensors["x"], tensors["w"])
    elif (peer := PEERS.get(operator.name)) is not None:
        yield "eager", lambda tensors: partial(peer.function, *peer.arguments(tensors))
        if compiled:
            torch._dynamo.reset()  # its limit of shapes would end in eager calls that count as compiled
            function = torch.compile(peer.function, dynamic=False, fullgraph=True)
            yield "compiled", lambda tensors: partial(function, *peer.arguments(tensors))


def _attentions(cell: Cell) -> Iterator[tuple[str, Callable[[Tensors], Launch]]]:
    causal = cell.entry.path == "full"
    for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
        backend = getattr(torch.nn.attention.SDPBackend, name)
        yield f"sdpa_{name.split('_')[0].lower()}", partial(_sdpa, backend, cell.dims, causal)
    for name, module in (("flash_attn_2", "flash_attn"), ("flash_attn_3", "flash_attn_interface"), FLASH_4):
        if (function := _function(module, "flash_attn_func")) is not None:
            yield name, partial(_flash, function, cell.dims, causal)


FLASH_4 = ("flash_attn_4", "flash_attn.cute")


def _function(module: str, name: str) -> Callable[..., object] | None:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return found if callable(found) else None


def _by_sequence(tensors: Tensors, dims: Mapping[str, int]) -> list[torch.Tensor]:
    """q, k, v [batch, tokens, heads, head_dim]."""
    return [tensors[name].view(dims["batch"], -1, *tensors[name].shape[-2:]) for name in "qkv"]


def _sdpa(backend: Any, dims: Mapping[str, int], causal: bool, tensors: Tensors) -> Launch:
    q, k, v = (states.transpose(1, 2) for states in _by_sequence(tensors, dims))

    def launch() -> object:
        with torch.nn.attention.sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    return launch


def _flash(function: Callable[..., object], dims: Mapping[str, int], causal: bool, tensors: Tensors) -> Launch:
    return partial(function, *_by_sequence(tensors, dims), causal=causal)


def median_us(launches: Sequence[Launch]) -> float:
    """Median microseconds of one launch, over replays of a graph that holds each of them at least once."""
    for launch in (*launches[:2], launches[0]):
        launch()
    torch.cuda.synchronize()
    rounds = max(1, LAUNCHES // len(launches))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in list(launches) * rounds:
            launch()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPLAYS)]
    for before, after in pairs:
        before.record()
        graph.replay()
        after.record()
    torch.cuda.synchronize()
    each_ms = [float(before.elapsed_time(after)) for before, after in pairs]
    return statistics.median(each_ms) * 1e3 / rounds / len(launches)


def copies(size_bytes: int, sets: int) -> Iterator[list[Launch]]:
    """Two ways to read and write so many bytes in all: torch's copy, and a kernel of torch's."""
    pairs = [[torch.zeros(size_bytes // 4, dtype=torch.bfloat16, device="cuda") for _ in range(2)] for _ in range(sets)]
    yield [partial(one.copy_, other) for one, other in pairs]
    yield [partial(torch.neg, other, out=one) for one, other in pairs]


def copied_bytes_per_s() -> float:
    """Bytes read and written a second by copies far larger than the cache, of whichever size and way is fastest."""
    return max(2e6 * size / median_us(way) for size in COPY_BYTES for way in copies(2 * size, 1))


@contextmanager
def at_most(limit_s: int) -> Iterator[None]:
    """Raises TimeoutError in here after so many seconds, once Python runs again."""

    def ring(number: int, frame: object) -> None:
        raise TimeoutError(f"it took more than {limit_s} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def measured(operator: Operator, cell: Cell, compiled: bool) -> Mapping[str, object]:
    """Microseconds by arm; an arm that does not run says why, and so does a cell whose tensors do not fit."""
    times: dict[str, float] = {}
    failed: dict[str, str] = {}
    try:
        sets = cell.sets()
        for name, launch in arms(operator, cell, compiled):
            try:
                with at_most(COMPILE_S):
                    times[name] = round(median_us([launch(tensors) for tensors in sets]), 3)
            except Exception as error:  # noqa: BLE001 another library's arm that does not run must not hide the others
                failed[name] = _described(error)
                torch.cuda.synchronize()
        if operator.name not in COMPUTED:
            times["copy"] = round(min(map(median_us, copies(cell.moved_bytes, len(sets)))), 3)
    except Exception as error:  # noqa: BLE001 nor must a cell hide the others
        failed["cell"] = _described(error)
        torch.cuda.synchronize()  # raises where the device is lost to this process: another one goes on
    line = {"operator": operator.name, "cell": cell.name, "path": cell.entry.path, "us": times, "failed": failed}
    large = cell.moved_bytes >= LARGE_BYTES
    return {**line, "bytes": cell.moved_bytes, "large": large, "sm_mhz": sm_mhz()}


def _described(error: Exception) -> str:
    return (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:200]


def main(*words: str) -> None:
    """Print the environment, then a line for each cell, and one after each operator."""
    place = {**environment(), "triton": triton.__version__, "copied_bytes_per_s": copied_bytes_per_s()}
    print(json.dumps({"environment": place}), flush=True)
    for name in (word for word in words if not word.startswith("-")):
        operator = load_operator(name, "triton")
        every = list(cells(operator))
        last = {cell.entry.path: cell.name for cell in every}.values()
        for cell in every:
            compiled = "--no-compile" not in words and cell.name in last
            print(json.dumps(measured(operator, cell, compiled)), flush=True)
        print(json.dumps({"done": name}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
