"""Calls of an operator's entries, and what must agree between them.

An operator's reference.py supplies three functions (`Reference`): inputs, a float64 reference, and the decode
calls that must reproduce parts of a full-path call bit for bit.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from itertools import cycle, islice
from pathlib import Path
from statistics import NormalDist
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.operator import STYLES, UNIT_ROWS, Entry, Operator, OperatorError

Arrays = Mapping[str, NDArray[Any]]
"""Tensor name to values; bfloat16 as uint16."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one entry with its inputs."""

    entry: Entry
    dims: Mapping[str, int]
    inputs: Arrays


@dataclass(frozen=True, slots=True)
class Agreement:
    """A call whose whole output must equal `full_output[index]`, bit for bit and shape for shape."""

    call: Call
    output: str
    index: tuple[Any, ...]


class Reference(Protocol):
    """What an operator's reference.py must define at module level."""

    def make_inputs(self, entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
        """Inputs in the entry's dtypes; `style` is one of STYLES."""

    def reference(self, entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
        """The outputs in float64, from inputs widened exactly."""

    def agreements(self, full: Call, decode: Entry) -> Iterator[Agreement]:
        """Decode calls (and shorter full-path calls) that must reproduce parts of `full`, whole sequence included."""

    def samples(self, full: Call, decode: Entry, rng: np.random.Generator) -> Iterator[Agreement]:
        """A few decode calls for parts of `full`, drawn at random, at little cost for a call of any size.

        `full` may be a call of the decode entry too, with its own inputs; `index` then counts its own rows.

        A reference.py may leave it out: then they are drawn from `agreements`.
        """

    def extremes(self, full: Call, decode: Entry, rng: np.random.Generator) -> Iterator[Agreement]:
        """What must agree in a call of extreme size: the decode entry's own extremes, at little cost.

        A reference.py may leave it out: then it is the whole call through the decode entry and a few of what
        `agreements` make before it, if they make it, and `samples`.
        """


MOST_SAMPLES = 4
FEW_ALONE = 5
FIRST_AGREEMENTS = 160
"""The call of all rows at once is among them, where there is one."""
REFERENCE_FUNCTIONS = ("make_inputs", "reference", "agreements")


@cache
def load_module(path: Path) -> Any:
    """A Python file of an operator's folder as a module (trusted: it ships with the operator).

    Raises OperatorError for a file that is missing or that Python cannot run, whatever it raises.
    """
    spec = spec_from_file_location(f"kernelbraid_operator_{path.parent.name}_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise OperatorError(f"{path} is missing: an operator needs it")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise OperatorError(f"{path} cannot be loaded: {described(error)}; mend it and try again") from error
    return module


def described(error: BaseException) -> str:
    """An exception out of an operator's own code in one line, with the line of a syntax error."""
    line = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
    words = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {words}{line}"


def load_reference(operator: Operator) -> Reference:
    """The operator's reference functions. Raises OperatorError, as they then do for whatever they raise."""
    path = operator.folder / "reference.py"
    module = load_module(path)
    missing = [name for name in REFERENCE_FUNCTIONS if not callable(getattr(module, name, None))]
    if missing:
        raise OperatorError(f"{path} does not define {', '.join(missing)}")
    return _Told(path, cast(Reference, module))


@dataclass(frozen=True, slots=True)
class _Told:
    """A reference whose faults are told by the file that must be mended."""

    path: Path
    functions: Reference

    def make_inputs(self, entry: Entry, dims: Mapping[str, int], rng: np.random.Generator, style: str) -> Arrays:
        with self._told("make_inputs"):
            return self.functions.make_inputs(entry, dims, rng, style)

    def reference(self, entry: Entry, dims: Mapping[str, int], inputs: Arrays) -> Mapping[str, NDArray[np.float64]]:
        with self._told("reference"):
            return self.functions.reference(entry, dims, inputs)

    def agreements(self, full: Call, decode: Entry) -> Iterator[Agreement]:
        with self._told("agreements"):
            found = iter(self.functions.agreements(full, decode))
        while True:
            with self._told("agreements"):
                item = next(found, None)
            if item is None:
                return
            yield item

    def samples(self, full: Call, decode: Entry, rng: np.random.Generator) -> Iterator[Agreement]:
        own = getattr(self.functions, "samples", None)
        if own is None:
            every = list(self.agreements(full, decode))
            yield from (every[index] for index in sorted(rng.permutation(len(every))[:MOST_SAMPLES].tolist()))
            return
        with self._told("samples"):
            drawn = list(own(full, decode, rng))
        yield from drawn

    def extremes(self, full: Call, decode: Entry, rng: np.random.Generator) -> Iterator[Agreement]:
        own = getattr(self.functions, "extremes", None)
        if own is not None:
            with self._told("extremes"):
                drawn = list(own(full, decode, rng))
            yield from drawn
            return
        if set(full.entry.dims) == set(decode.dims):
            yield from _whole_and_few(self.agreements(full, decode), full, decode, rng)
        yield from self.samples(full, decode, rng)

    @contextmanager
    def _told(self, role: str) -> Iterator[None]:
        try:
            yield
        except OperatorError:
            raise
        except Exception as error:
            what = f"{self.path}: {role} failed: {described(error)}"
            raise OperatorError(f"{what}; mend it, then resume the campaign") from error


def _whole_and_few(
    agreements: Iterator[Agreement], full: Call, decode: Entry, rng: np.random.Generator
) -> Iterator[Agreement]:
    """All rows at once, with the last one and a few others alone; nothing where all of them never come."""
    first = list(islice(agreements, FIRST_AGREEMENTS))
    whole = [place for place, each in enumerate(first) if each.call.entry == decode and each.call.dims == full.dims]
    if whole:
        per_call, alone = len(whole), first[: whole[0]]
        few = alone[-per_call:] + [alone[place] for place in rng.permutation(len(alone))[:FEW_ALONE].tolist()]
        yield from (*few, *(first[place] for place in whole))


MOST_ALONE = 72
"""Up to so many rows each one is called alone; of more, those beside a likely block's edge and a few between."""
SAMPLED_ROWS = (16, 64)
"""Batches of a size that is timed itself, for which kernels are compiled anyway."""
_SMALL = range(2, 9)
_EDGES = (0, 1, 31, 32, 63, 64, 127, 128, 255, 256, 511, 512)


def row_batches(rows: int) -> Iterator[slice]:
    """Batches in which the rows of one call are called again: alone, all at once, and unevenly divided."""
    alone = (
        range(rows) if rows <= MOST_ALONE else sorted({*_EDGES, *range(0, rows, rows // 8), rows - 1} & {*range(rows)})
    )
    yield from (slice(row, row + 1) for row in alone)
    yield slice(0, rows)
    if rows > 1:
        yield slice(0, min(3, rows))
        yield slice(min(3, rows - 1), min(8, rows))
    if rows > _SMALL[-1]:
        yield from _small_batches(rows)
    if rows > MOST_ALONE:
        yield slice(1, 17)
        yield slice(rows // 3, rows)


def _small_batches(rows: int) -> Iterator[slice]:
    """All rows in batches of 2 to 8, in turn: another order of a sum changes few elements of a result in bfloat16."""
    first = 0
    for size in cycle(_SMALL):
        yield slice(first, min(first + size, rows))
        first += size
        if first >= rows:
            return


def row_samples(rows: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Indices of rows from anywhere in a call, in batches of sizes that are known before."""
    if rows:
        yield from (rng.permutation(rows)[:size] for size in SAMPLED_ROWS)


@dataclass(frozen=True, slots=True)
class RowWise:
    """What must agree where a call's rows know nothing of one another: any rows, in any batch, alone or together.

    `dim` counts the rows; `inputs` have one item for each, and every output does too.
    """

    dim: str
    inputs: tuple[str, ...]

    def agreements(self, full: Call, decode: Entry) -> Iterator[Agreement]:
        """Every row alone, all rows at once, uneven batches, and the full path from another first row."""
        rows = full.dims[self.dim]
        for batch in row_batches(rows):
            yield from self.alone(full, decode, batch)
        yield from self.alone(full, full.entry, slice(rows // 2, rows))
        if rows > 1:
            yield from self.alone(full, full.entry, slice(1, rows))

    def samples(self, full: Call, decode: Entry, rng: np.random.Generator) -> Iterator[Agreement]:
        """A few rows from anywhere, in batches of their own."""
        for rows in row_samples(full.dims[self.dim], rng):
            yield from self.alone(full, decode, rows)

    def alone(self, full: Call, entry: Entry, batch: slice | NDArray[np.int64]) -> Iterator[Agreement]:
        """The rows of one batch, called by themselves: one agreement for each output."""
        taken = {name: full.inputs[name][batch] for name in self.inputs}
        dims = {**full.dims, self.dim: len(taken[self.inputs[0]])}
        call = Call(entry, dims, {**full.inputs, **taken})
        yield from (Agreement(call, tensor.name, (batch,)) for tensor in entry.outputs)


EPSILON = 1e-6
"""What operators that normalise rows add to the mean square unless their caller names another."""
_FITTED = 4
_MOST_OFF = 8 * 2.0**-24
_SCALES: Mapping[str, float] = {"scale_3": 3.0, "scale_30": 30.0, "zeros": 0.0}


def styled_bfloat16(rng: np.random.Generator, shape: tuple[int, ...], style: str) -> NDArray[np.uint16]:
    """Standard normal values in one of STYLES as bfloat16 bit patterns; equal rows are equal along the first axis.

    Raises ValueError for an unknown style.
    """
    if style == UNIT_ROWS:
        return unit_rows(rng, shape)
    if style not in STYLES:
        raise ValueError(f"unknown style {style}")
    drawn = normal_bfloat16(rng, shape)
    if style == "normal":
        return drawn
    values = from_bfloat16(drawn) * np.float32(_SCALES.get(style, 1.0))
    if style == "equal_rows":
        values[:] = values[:1]
    if style == "cancellation":
        values[..., ::7] *= np.float32(300)
    return to_bfloat16(values)


def unit_rows(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.uint16]:
    """Normal rows as bfloat16 bit patterns whose mean square is one less EPSILON, as near as float32 can tell.

    Of half the rows it is up to four last bits more: a running sum of squares, which when rounded leave a quarter over
    and never three, is so much too small. Nearly all elements of a row are drawn and shrunk together; the last ones,
    which end up anywhere in the row, each take what they can of what the sum of squares lacks.
    """
    fitted = min(_FITTED, shape[-1])
    more = np.maximum(0, rng.uniform(-_MOST_OFF, _MOST_OFF, (*shape[:-1], 1)))
    whole = shape[-1] * (1 - EPSILON + more)
    values = from_bfloat16(normal_bfloat16(rng, shape)).astype(np.float64)
    drawn = values[..., fitted:]
    squares = np.maximum((drawn * drawn).sum(axis=-1, keepdims=True), 1e-9)
    drawn[...] = _toward_zero(drawn * np.sqrt(np.maximum(whole - 1, 0) / squares))
    left = whole[..., 0] - (drawn * drawn).sum(axis=-1)
    for place in range(fitted):
        size = _toward_zero(np.sqrt(np.maximum(left, 0)))
        left = left - size * size
        values[..., place] = np.copysign(size, values[..., place])
    return to_bfloat16(rng.permuted(values, axis=-1))


LARGE = np.float32(1 << 18)
"""Of two terms that cancel: float32 keeps six bits after the point beside it."""


def two_places(rng: np.random.Generator, rows: int, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each row two different places out of `width`, which is at least 2."""
    first = rng.integers(0, width, rows)
    return first, (first + rng.integers(1, width, rows)) % width


def absorbed(rng: np.random.Generator, x: NDArray[np.float32], w: NDArray[np.float32]) -> None:
    """Put two large opposite terms into each row of x [rows, width]: they cancel in every other result of
    w [..., out, width], which has one weight throughout, and are by far the largest in the others.

    Rows of one term stay as they are.
    """
    rows, width = x.shape
    if width < 2:
        return
    first, second = two_places(rng, rows, width)
    x[np.arange(rows), first], x[np.arange(rows), second] = LARGE, -LARGE
    w[..., 1::2, :] = rng.uniform(0.05, 0.1, w[..., 1::2, :1].shape)


def _toward_zero(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest bfloat16 that is no larger."""
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64 rounded to the nearest bfloat16: where a definition rounds in between."""
    return from_bfloat16(to_bfloat16(values)).astype(np.float64)


def exact(bits: NDArray[Any]) -> NDArray[np.float64]:
    """bfloat16 bit patterns widened exactly to float64."""
    return from_bfloat16(bits.view(np.uint16)).astype(np.float64)


def to_bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Round to nearest even, as uint16 bit patterns; any NaN becomes the quiet one."""
    single = np.asarray(values, dtype=np.float32, order="C")
    bits = single.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(single), np.uint32(0x7FC0), rounded).astype(np.uint16)


def normal_bfloat16(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.uint16]:
    """Standard normal values as bfloat16 bit patterns: 65,536 quantiles, drawn several times faster than computed."""
    drawn: NDArray[np.uint16] = _quantiles()[rng.integers(0, 1 << 16, shape, np.uint16)]
    return drawn


@cache
def _quantiles() -> NDArray[np.uint16]:
    inverse = NormalDist().inv_cdf
    return to_bfloat16(np.array([inverse((each + 0.5) / (1 << 16)) for each in range(1 << 16)]))


def from_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 bit patterns widened exactly to float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
