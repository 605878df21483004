"""Linear layers whose rows have the same bits whatever the batch: y = x times weight transposed, bfloat16.

    prepare(outs, width)          # when a model is loaded: chooses, and checks bits on this device
    linear(x, weight, out)        # 1 row or 8,192: the same bits for the same row

What runs for so many rows is in a table of measurements (linear_choice); `way_of` says it. Nothing else of the
process is touched: cuBLAS and its settings stay as they are for other code.

Errors: LinearError
          LinearUnsupported    this device, dtype or shape is not served
          LinearBitsDiffer     two ways of one shape do not agree here
"""

import logging
import threading
from collections.abc import Iterator

import torch

from kernelbraid.kernels.runtime import linear_chunked, linear_library
from kernelbraid.kernels.runtime.linear_choice import MOST_ROWS, Chosen, Origin, table

CAPABILITY = (9, 0)
ALIGNMENT = 8
SEED = 20261130
CHECKED_BYTES = 1 << 30
"""Results larger than this are checked on fewer rows: a check must not need the memory that a model needs."""

_prepared: dict[tuple[int, int, int, bool], Chosen] = {}
_lock = threading.Lock()
_log = logging.getLogger(__name__)


class LinearError(RuntimeError):
    """Root of this module's errors."""


class LinearUnsupported(LinearError):
    """This device, dtype or shape is not served; the message says what is."""


class LinearBitsDiffer(LinearError):
    """Two ways of one shape disagree on this device: its results would depend on the batch."""

    def __init__(self, chosen: Chosen, rows: int, differing: int) -> None:
        way = chosen.way(rows)
        super().__init__(
            f"{chosen.width} -> {chosen.outs}: {differing} elements of {rows} rows by {way.name} differ from the same "
            f"rows among {MOST_ROWS}; measure the table anew on this device and library"
        )
        self.chosen, self.rows, self.differing = chosen, rows, differing


def prepare(outs: int, width: int, device: int | None = None, biased: bool = False) -> Chosen:
    """Choose how a weight [outs, width] is multiplied on a device, and check that all ways agree; once for each.

    With a bias it is another check, as cuBLASLt adds one in other kernels. Takes a fraction of a second, and memory for
    one weight and two results. Not while a CUDA graph is captured. Raises LinearUnsupported, LinearBitsDiffer.
    """
    index = torch.cuda.current_device() if device is None else device
    with _lock:
        key = (index, outs, width, biased)
        if key not in _prepared:
            _refuse_device(index)
            _refuse_shape(outs, width)
            with torch.cuda.device(index):
                chosen = table().choose(outs, width, torch.cuda.get_device_name(index), _library_version())
                _check(chosen, biased)
            level = logging.INFO if chosen.origin == "table" else logging.WARNING
            _log.log(
                level, "linear %d -> %d: by %s, chunks of %d steps", width, outs, chosen.origin, chosen.chunk_steps
            )
            _prepared[key] = chosen
        return _prepared[key]


def linear(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    """out [rows, outs] = x [rows, width] times weight [outs, width] transposed, plus bias [outs]; contiguous bfloat16.

    Sums in float32, rounded once. On torch's current stream; a CUDA graph may capture it once the shape is prepared.
    Raises LinearUnsupported, LinearBitsDiffer.
    """
    _refuse_tensors(x, weight, out, bias)
    outs, width = weight.shape
    biased = bias is not None
    chosen = _prepared.get((x.device.index, outs, width, biased)) or _prepare_now(x.device.index, outs, width, biased)
    for first in range(0, x.shape[0], MOST_ROWS):
        rows = slice(first, first + MOST_ROWS)
        _multiply(chosen, x[rows], weight, out[rows], bias)


def way_of(outs: int, width: int, rows: int, device: int | None = None) -> tuple[str, Origin]:
    """What multiplies so many rows, such as chunked:64x16:split4 or cublaslt:4200..., and what chose it."""
    chosen = prepare(outs, width, device)
    return (chosen.way(min(rows, MOST_ROWS)).name if rows else "no rows"), chosen.origin


def _multiply(
    chosen: Chosen, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None
) -> None:
    way = chosen.way(x.shape[0])
    if way.tile is not None:
        linear_chunked.run(way.tile, chosen.chunk_steps, x, weight, out, bias)
    elif way.algorithm is not None:
        linear_library.run(way.algorithm, x, weight, out, bias)


def _prepare_now(device: int, outs: int, width: int, biased: bool) -> Chosen:
    if torch.cuda.is_current_stream_capturing():
        call = f"prepare({outs}, {width}{', biased=True' if biased else ''})"
        raise LinearUnsupported(f"{width} -> {outs} is not prepared and a graph is captured: call {call} before")
    return prepare(outs, width, device, biased)


def _library_version() -> int | None:
    try:
        return linear_library.version()
    except linear_library.LibraryFailed:
        return None


def _check(chosen: Chosen, biased: bool) -> None:
    """Every way, at the fewest, the most and a middling number of its rows, against the same rows of the largest."""
    generator = torch.Generator("cuda").manual_seed(SEED)
    most = MOST_ROWS if MOST_ROWS * chosen.outs * 2 <= CHECKED_BYTES else _rows_that_fit(chosen)
    x, weight = (_random(rows, chosen.width, generator) for rows in (most, chosen.outs))
    bias = _random(1, chosen.outs, generator)[0] if biased else None
    expected = x.new_empty(most, chosen.outs)
    _multiply(chosen, x, weight, expected, bias)
    result = torch.empty_like(expected)
    for rows in _checked_rows(chosen, most):
        result[:rows].fill_(float("nan"))
        _multiply(chosen, x[:rows], weight, result[:rows], bias)
        differing = int((result[:rows].view(torch.int16) != expected[:rows].view(torch.int16)).sum())
        if differing:
            raise LinearBitsDiffer(chosen, rows, differing)


def _random(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(rows, columns, generator=generator, device="cuda", dtype=torch.bfloat16)


def _rows_that_fit(chosen: Chosen) -> int:
    """As few rows as still go by the last way, and some."""
    return list(chosen.ranges())[-1][0] + 64


def _checked_rows(chosen: Chosen, most: int) -> Iterator[int]:
    for fewest, way in chosen.ranges():
        rows = (fewest, (fewest + way.upto_rows) // 2 | 1, way.upto_rows - 1, way.upto_rows)
        yield from sorted({each for each in rows if fewest <= each <= min(way.upto_rows, most)})


def _refuse_device(index: int) -> None:
    capability = torch.cuda.get_device_capability(index)
    if capability != CAPABILITY:
        raise LinearUnsupported(f"linear is compiled for compute capability {CAPABILITY}, and this is {capability}")


def _refuse_shape(outs: int, width: int) -> None:
    if outs < ALIGNMENT or width < ALIGNMENT or outs % ALIGNMENT or width % ALIGNMENT:
        raise LinearUnsupported(f"linear takes sizes that are multiples of {ALIGNMENT}, not {width} -> {outs}")


def _refuse_tensors(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None) -> None:
    given = {"x": x, "weight": weight, "out": out} | ({} if bias is None else {"bias": bias})
    for name, tensor in given.items():
        if tensor.dtype != torch.bfloat16 or not tensor.is_cuda or tensor.device != x.device:
            raise LinearUnsupported(
                f"{name} is {tensor.dtype} on {tensor.device}: bfloat16 on x's CUDA device is served"
            )
        if not tensor.is_contiguous() or tensor.data_ptr() % (2 * ALIGNMENT):
            raise LinearUnsupported(f"{name} is not contiguous from a multiple of 16 bytes: pass {name}.clone()")
    wanted = {"weight": (weight.shape[0], x.shape[-1]), "out": (x.shape[0], weight.shape[0]), "bias": weight.shape[:1]}
    for name, shape in wanted.items():
        if name in given and (x.dim() != 2 or tuple(given[name].shape) != tuple(shape)):
            raise LinearUnsupported(
                f"{name} has shape {list(given[name].shape)}, not {list(shape)} for x {list(x.shape)}"
            )
