"""Triton candidates for a device: what their source may say, and all their kernels compiled before anything runs.

A candidate is compiled for every shape that its audit will call, several kernels side by side, so that hardly anything
is left to compile while it is checked.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from kernelbraid.kernels.audit.artifact import Artifact
from kernelbraid.kernels.audit.build import Builder
from kernelbraid.kernels.audit.checks import Case, case_agreements, cases_of
from kernelbraid.kernels.audit.cuda.build import CompilerFacts, DeviceBuilder, MakeBuilder
from kernelbraid.kernels.audit.cuda.policy import forbidden
from kernelbraid.kernels.audit.cuda.samples import shapes_of_samples
from kernelbraid.kernels.audit.cuda.sources import write_stubs
from kernelbraid.kernels.audit.failure import AuditFailure, CandidateFailed
from kernelbraid.kernels.audit.layout import DTYPES
from kernelbraid.kernels.audit.limits import Limits
from kernelbraid.kernels.audit.native import Native
from kernelbraid.kernels.audit.outcome import Candidate
from kernelbraid.kernels.audit.sandbox import Sandbox
from kernelbraid.kernels.operators.cases import Arrays, Call, Reference, load_reference
from kernelbraid.kernels.operators.operator import Entry, Operator
from kernelbraid.kernels.toolchains.triton import TritonCompiler

MOST_WORKERS = 14
BUILD_ADDRESS_BYTES = 32 << 30
"""LLVM and Triton reserve far more than they use."""

Calls = list[tuple[Entry, Mapping[str, int]]]


class _PythonBuilder(Builder):
    """The builder of C, for sources whose names were looked at before."""

    def _refuse_names(self, candidate: Candidate) -> None:
        return


@dataclass(frozen=True)
class TritonBuild:
    """Compiles candidates of one operator; safe to use from several threads."""

    operator: Operator
    compiler: TritonCompiler
    native: Native
    sandbox: Sandbox
    limits: Limits
    scratch: Path
    known_calls: Calls | None = None
    """What every audit calls, where that was worked out before."""

    def compile(self, candidate: Candidate, due: Sequence[Case]) -> Artifact:
        """Each kernel once. Raises CandidateFailed (build_failed, build_timeout)."""
        known = declared(self.operator)
        new = [case for case in due if case.dims not in known]
        calls = [*self._calls, *_calls_of_cases(self.operator, new)]
        # Kernels of the full path take longest to compile, so nobody should wait for one that was begun last.
        calls.sort(key=lambda call: call[0].path != "full")
        limits = replace(self.limits, build_address_bytes=BUILD_ADDRESS_BYTES)
        workers = max(1, min(MOST_WORKERS, (os.cpu_count() or 1) - 2))
        compiler = replace(self.compiler.for_calls(calls), workers=workers)
        return _PythonBuilder(compiler, self.native, self.sandbox, limits, self.scratch).build(candidate)

    @cached_property
    def _calls(self) -> Calls:
        """What every audit calls: all workloads with the calls that parts of them are compared with, and cases."""
        return every_call(self.operator) if self.known_calls is None else self.known_calls


def every_call(operator: Operator) -> Calls:
    """All workloads with the calls that parts of them are compared with, and every declared case."""
    workloads: Calls = [(operator.entry(workload.entry), workload.dims) for workload in operator.workloads]
    workloads += shapes_of_samples(operator, load_reference(operator))
    known = declared(operator)
    return workloads + _calls_of_cases(operator, [case for case in cases_of(operator) if case.dims in known])


def declared(operator: Operator) -> list[Mapping[str, int]]:
    """Shapes that every audit checks."""
    return [check.dims for check in operator.checks]


def _calls_of_cases(operator: Operator, cases: Sequence[Case]) -> Calls:
    """The cases' full calls and all that must agree with them."""
    reference, calls = load_reference(operator), Calls()
    for case in cases:
        calls.append((case.full, case.dims))
        call = Call(case.full, case.dims, _placeholders(reference, case))
        agreements = case_agreements(reference, call, replace(case, most_agreements=None))
        calls += [(agreement.call.entry, agreement.call.dims) for agreement in agreements]
    return calls


def _placeholders(reference: Reference, case: Case) -> Arrays:
    """Inputs as good as any where only shapes count; large ones are drawn only if shapes may follow from them."""
    if case.sized and all(tensor.dtype in ("bfloat16", "float32") for tensor in case.full.inputs):
        shapes = ((tensor, tensor.resolve(case.dims)) for tensor in case.full.inputs)
        return {tensor.name: np.zeros(shape, DTYPES[tensor.dtype]) for tensor, shape in shapes}
    seed = case.seed if case.sized else 0
    return reference.make_inputs(case.full, case.dims, np.random.default_rng(seed), case.style)


def triton_facts(compiler: TritonCompiler) -> CompilerFacts:
    """The compiler as an environment names it."""
    return CompilerFacts(compiler.name, compiler.version, compiler.flags, compiler.digest)


def triton_builder(operator: Operator, compiler: TritonCompiler) -> MakeBuilder:
    """The source policy, then the compiler. What to compile for is worked out while a harness settles."""
    entries = [entry.symbol for entry in operator.entries]
    aside = ThreadPoolExecutor(1)
    calls = aside.submit(every_call, operator)
    aside.shutdown(wait=False)

    def make(native: Native, sandbox: Sandbox, limits: Limits, scratch: Path) -> DeviceBuilder:
        parts = (native, sandbox, limits, scratch, calls.result())
        build = with_launchers(TritonBuild(operator, compiler, *parts))
        return DeviceBuilder(lambda sources: _refuse(sources, operator.libraries, entries), build.compile)

    return make


def with_launchers(build: TritonBuild) -> TritonBuild:
    """The same, beginning every compilation with the launch stubs that the operator's own root needed.

    Nothing of a candidate's is among them. Where the root does not build, or has no stubs, there are none.
    """
    try:
        built = build.compile(Candidate("root", build.operator.root_sources(build.operator.target)), ())
    except AuditFailure:
        return build
    folder = build.scratch / "launchers"
    write_stubs(built, folder)
    return replace(build, compiler=replace(build.compiler, launchers=folder), known_calls=build._calls)


def _refuse(sources: Mapping[str, str], libraries: Iterable[str], entries: Iterable[str]) -> None:
    if found := forbidden(sources, tuple(libraries), tuple(entries)):
        raise CandidateFailed(found.verdict, str(found))
