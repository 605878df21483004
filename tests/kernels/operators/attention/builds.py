"""Builds an implementation of attention, calls it, and says what disagrees: what the tests here are made of."""

import ctypes
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import Call, from_bfloat16, load_reference
from kernelbraid.kernels.operators.operator import Check, Sources, load_operator

OPERATOR = load_operator("attention")
REFERENCE = load_reference(OPERATOR)
POINTERS = {"float32": np.float32, "bfloat16": np.uint16, "int32": np.int32}
FLAGS = ("-march=native", "-std=c17", "-ffp-contract=off", "-Wall", "-Werror", "-Wno-psabi", "-shared", "-fPIC")


@dataclass(frozen=True, slots=True)
class Finding:
    """One check under one style: elements that disagree, and the errors against float64."""

    check: Check
    style: str
    disagreeing: int
    max_ratio: float
    rms_ratio: float

    @property
    def verified(self) -> bool:
        """Whether nothing disagrees and the errors are within the dtype's tolerance."""
        tolerance = OPERATOR.tolerances[OPERATOR.entry(self.check.full).dtype]
        accurate = self.max_ratio <= tolerance.max_ratio and self.rms_ratio <= tolerance.rms_ratio
        return self.disagreeing == 0 and accurate


def build(sources: Sources, folder: Path, level: str = "-O1") -> ctypes.CDLL:
    """The sources as a loaded library; bits do not depend on the level, building time does."""
    for name, text in sources.items():
        (folder / name).write_text(text)
    target = folder / "library.so"
    files = [str(folder / name) for name in sources if name.endswith(".c")]
    subprocess.run(["cc", level, *FLAGS, *files, "-o", str(target), "-lm"], check=True)
    return ctypes.CDLL(str(target))


def execute(library: ctypes.CDLL, call: Call) -> NDArray[Any]:
    """The call's output, from memory that held something else."""
    shape = call.entry.outputs[0].resolve(call.dims)
    output = np.full(shape, 0x7FC0 if call.entry.dtype == "bfloat16" else np.nan, POINTERS[call.entry.dtype])
    arrays = [np.ascontiguousarray(call.inputs[tensor.name]) for tensor in call.entry.inputs]
    dims = np.array([call.dims[name] for name in call.entry.dims], np.int64)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (*arrays, output, dims)]
    library[call.entry.symbol](*pointers)
    return output


def findings(library: ctypes.CDLL, checks: tuple[Check, ...]) -> Iterator[Finding]:
    """Every check under each of its styles."""
    for check in checks:
        for style in check.styles:
            yield _finding(library, check, style)


def _finding(library: ctypes.CDLL, check: Check, style: str) -> Finding:
    entry = OPERATOR.entry(check.full)
    inputs = REFERENCE.make_inputs(entry, check.dims, np.random.default_rng(len(style)), style)
    call = Call(entry, check.dims, inputs)
    output = execute(library, call)
    disagreeing = sum(
        int((_bits(output[agreement.index]) != _bits(execute(library, agreement.call))).sum())
        for agreement in REFERENCE.agreements(call, OPERATOR.entry(check.decode))
    )
    errors = _errors(output, REFERENCE.reference(entry, check.dims, inputs)["out"])
    return Finding(check, style, disagreeing, float(errors.max()), float(np.sqrt((errors**2).mean())))


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(values).view(np.uint16)


def _errors(output: NDArray[Any], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Errors over the row's largest element; absolute where that is zero. NaN counts as infinite."""
    values = from_bfloat16(output) if output.dtype == np.uint16 else output
    largest = np.abs(expected).max(-1, keepdims=True)
    errors = np.abs(values.astype(np.float64) - expected) / np.where(largest > 0, largest, 1.0)
    return np.where(np.isnan(errors), np.inf, errors)


def small_check(dtype: str, tokens: int, query_heads: int, kv_heads: int, head_dim: int, style: str) -> Check:
    """A check of two sequences that costs a few milliseconds."""
    dims = {"batch": 2, "tokens": tokens, "query_heads": query_heads, "kv_heads": kv_heads, "head_dim": head_dim}
    return Check(f"attention_full_{dtype}", f"attention_decode_{dtype}", dims, (style,))


SMALL_CHECKS = (
    small_check("f32", 2, 1, 1, 64, "normal"),
    small_check("f32", 67, 4, 2, 64, "scale_30"),
    small_check("bf16", 131, 3, 1, 80, "normal"),
)
