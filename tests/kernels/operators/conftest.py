"""Compile an operator's sources, call their entries in this process, and say where a check fails."""

import ctypes
import hashlib
import random
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernelbraid.kernels.operators.cases import Agreement, Call, from_bfloat16, load_reference
from kernelbraid.kernels.operators.catalogue import Mechanism, apply, load_catalogue
from kernelbraid.kernels.operators.operator import Check, Entry, Operator, Sources, load_operator
from kernelbraid.kernels.operators.regions import FRAME, region_digests
from kernelbraid.kernels.toolchains.cc import find_compiler

DTYPES = {"float32": np.float32, "bfloat16": np.uint16, "int32": np.int32}
POISON = 0x5A


@dataclass
class Bench:
    """One operator with its catalogue; builds are kept for the session, by the sources' digest."""

    operator: Operator
    folder: Path

    @property
    def catalogue(self) -> Mapping[str, Mechanism]:
        return {mechanism.name: mechanism for mechanism in load_catalogue(self.operator, "cpu")}

    def sources(self, names: Sequence[str]) -> Sources:
        """The root after the named mechanisms."""
        return apply([self.catalogue[name] for name in names], self.operator.root_sources())

    def first_parent(self, name: str) -> tuple[str, ...]:
        """The shortest chain of mechanisms after which this one fits, the first of alternatives taken."""
        have: list[str] = []
        self._require(name, have)
        return tuple(have)

    def _require(self, name: str, have: list[str]) -> None:
        for item in self.catalogue[name].requires:
            if not set(item.split("|")) & set(have):
                first = item.split("|")[0]
                self._require(first, have)
                have.append(first)

    def composition(self, seed: int) -> tuple[str, ...]:
        """A random legal order of mechanisms, as long as it goes."""
        draw, names = random.Random(seed), list[str]()
        while fitting := [name for name, mechanism in self.catalogue.items() if mechanism.fits(names)]:
            names.append(draw.choice(fitting))
        return tuple(names)

    def artifact(self, sources: Sources, flags: tuple[str, ...] = ()) -> Path:
        """The shared object built from the sources; a warning is an error."""
        folder = self.folder / hashlib.sha256(repr((sorted(sources.items()), flags)).encode()).hexdigest()[:16]
        command = find_compiler().command(tuple(sources), ("-Wextra", "-Werror", *flags))
        if not folder.exists():
            folder.mkdir()
            for name, text in sources.items():
                (folder / name).write_text(text)
            subprocess.run(command.arguments, cwd=folder, check=True, capture_output=True, text=True)
        return folder / command.artifact

    def library(self, sources: Sources) -> ctypes.CDLL:
        """The compiled sources, loaded. Never with -ffast-math, which changes how this process rounds."""
        return ctypes.CDLL(str(self.artifact(sources)))

    def call(self, library: ctypes.CDLL, call: Call) -> Mapping[str, NDArray[Any]]:
        """The outputs of one call, on memory poisoned beforehand."""
        inputs = [np.ascontiguousarray(call.inputs[tensor.name]) for tensor in call.entry.inputs]
        outputs = {
            tensor.name: np.full(tensor.resolve(call.dims), POISON, DTYPES[tensor.dtype])
            for tensor in call.entry.outputs
        }
        dims = np.array([call.dims[name] for name in call.entry.dims], np.int64)
        arrays = [*inputs, *outputs.values(), dims]
        getattr(library, call.entry.symbol)(*(ctypes.c_void_p(array.ctypes.data) for array in arrays))
        return outputs

    def full_calls(self) -> Iterator[tuple[Check, str, Call]]:
        """Every declared check's full-path call, the same inputs each time."""
        reference, rng = load_reference(self.operator), np.random.default_rng(7)
        for check in self.operator.checks:
            entry = self.operator.entry(check.full)
            for style in check.styles:
                inputs = reference.make_inputs(entry, check.dims, rng, style)
                yield check, style, Call(entry, check.dims, inputs)

    def outputs(self, library: ctypes.CDLL) -> list[bytes]:
        """The bits of every check's full-path output."""
        return [self.call(library, call)[tensor.name].tobytes() for call, tensor in self._full_outputs()]

    def _full_outputs(self) -> Iterator[tuple[Call, Any]]:
        for _, _, call in self.full_calls():
            for tensor in call.entry.outputs:
                yield call, tensor

    def disagreements(self, library: ctypes.CDLL) -> list[str]:
        """The checks in which a decode or a shorter call does not reproduce the full call's bits."""
        reference, found = load_reference(self.operator), list[str]()
        for check, style, call in self.full_calls():
            full = self.call(library, call)
            for agreement in reference.agreements(call, self.operator.entry(check.decode)):
                if not self._agrees(library, full, agreement):
                    found.append(f"{check.full} {dict(check.dims)} {style}: {dict(agreement.call.dims)}")
        return found

    def _agrees(self, library: ctypes.CDLL, full: Mapping[str, NDArray[Any]], agreement: Agreement) -> bool:
        got = self.call(library, agreement.call)[agreement.output]
        expected = full[agreement.output][agreement.index]
        return got.shape == expected.shape and got.tobytes() == expected.tobytes()

    def inaccuracies(self, outputs: Callable[[Call], Mapping[str, NDArray[Any]]]) -> list[str]:
        """The checks whose outputs miss float64 by more than the tolerance."""
        reference, found = load_reference(self.operator), list[str]()
        for check, style, call in self.full_calls():
            got = outputs(call)
            for name, exact in reference.reference(call.entry, call.dims, call.inputs).items():
                if not self._accurate(call.entry, got[name], exact):
                    found.append(f"{check.full} {dict(check.dims)} {style}")
        return found

    def _accurate(self, entry: Entry, got: NDArray[Any], exact: NDArray[np.float64]) -> bool:
        values = (from_bfloat16(got) if entry.dtype == "bfloat16" else got).astype(np.float64)
        largest = np.abs(exact).max(axis=-1, keepdims=True)
        error = np.abs(values - exact) / np.where(largest == 0, 1e-30, largest)
        tolerance = self.operator.tolerances[entry.dtype]
        return bool(error.max() <= tolerance.max_ratio and np.sqrt((error**2).mean()) <= tolerance.rms_ratio)

    def touched(self, before: Sources, after: Sources) -> set[str]:
        """The regions that differ."""
        old, new = region_digests(before), region_digests(after)
        return {name for name in {*old, *new} if old.get(name) != new.get(name)}

    def paths(self, name: str) -> set[str]:
        """The paths that a region serves; what stands outside every region serves both."""
        declared = {region.name: set[str](region.paths) for region in self.operator.regions}
        return {"full", "decode"} if name == FRAME else declared[name]


@pytest.fixture(scope="session")
def bench_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bench]:
    """A bench by operator name or folder, one for the session."""
    kept: dict[str, Bench] = {}

    def bench(name: str) -> Bench:
        if name not in kept:
            operator = load_operator(name)
            kept[name] = Bench(operator, tmp_path_factory.mktemp(operator.name))
        return kept[name]

    return bench
