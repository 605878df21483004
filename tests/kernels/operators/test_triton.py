"""What is shipped for Triton, without a GPU: every root and every mechanism compiles, within limits, by the rules."""

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernelbraid.kernels.audit.cuda.policy import forbidden
from kernelbraid.kernels.operators.cases import Call, load_reference
from kernelbraid.kernels.operators.catalogue import Facts, Mechanism, apply, load_catalogue
from kernelbraid.kernels.operators.operator import (
    Entry,
    Operator,
    Sources,
    load_operator,
    operator_names,
    operator_targets,
)
from kernelbraid.kernels.operators.regions import FRAME, Refused, region_digests, regions
from kernelbraid.kernels.toolchains.toolchain import MissingToolchain
from kernelbraid.kernels.toolchains.triton import TritonCompiler, find_triton

NAMES = [name for name in operator_names() if "triton" in operator_targets(name)]
MECHANISMS = [
    (name, mechanism.name) for name in NAMES for mechanism in load_catalogue(load_operator(name, "triton"), "triton")
]
ROOT_LIMITS = {
    "attention": {"registers": 255, "shared_bytes": 120_000, "spill_bytes": 1024, "launches": 2},
    "linear": {"registers": 255, "shared_bytes": 50_000, "spill_bytes": 32, "launches": 1},
    "moe_linear": {"registers": 128, "shared_bytes": 100_000, "spill_bytes": 0, "launches": 1},
    "moe_align": {"registers": 200, "shared_bytes": 5_000, "spill_bytes": 0, "launches": 2},
    "log_softmax_gather": {"registers": 80, "shared_bytes": 1_000, "spill_bytes": 0, "launches": 2},
}
"""The most that any kernel of a root may take; the spills are those of mma.sync, with its operands in registers."""
BY_ROWS_LIMITS = {"registers": 170, "shared_bytes": 10_000, "spill_bytes": 16, "launches": 1}
"""Those of the operators that read and write each row once, in one launch; a predicate or two may be spilled."""
LARGER_TILES = {"linear": {"shared_bytes": 100_000}}
"""What a best's tiles may take above the root's."""
SM_90_SPILL_BYTES = 160
PROMOTED = [name for name in NAMES if (load_operator(name, "triton").folder / "triton/best").is_dir()]
SHIPPED = [name for name in PROMOTED if name != "attention"]
"""Operators with a best; that of attention is compiled by a test of its own."""
EVERYTHING = Facts(frozenset(), {"full": 0.5, "decode": 0.5, "bfloat16": 1.0}, {}, 0, 0)

Calls = Iterable[tuple[Entry, Mapping[str, int]]]


@pytest.fixture(scope="module")
def compiler() -> TritonCompiler:
    try:
        return find_triton()
    except MissingToolchain as error:
        pytest.skip(str(error))


def built(compiler: TritonCompiler, folder: Path, sources: Sources, calls: Calls) -> tuple[str, dict[str, float]]:
    """What the compiler printed, and what the kernels take; nothing where they do not compile."""
    for name, text in sources.items():
        (folder / name).write_text(text)
    prepared = compiler.for_calls(calls)
    command = prepared.command(tuple(sources))
    done = subprocess.run(
        command.arguments, cwd=folder, env=prepared.environment(folder), capture_output=True, text=True, timeout=250
    )
    return done.stdout, prepared.resources(folder)


def declared_calls(operator: Operator) -> Calls:
    """What the operator's workloads and checks call; some stand more than once."""
    yield from ((operator.entry(workload.entry), workload.dims) for workload in operator.workloads)
    reference = load_reference(operator)
    for check in operator.checks:
        entry = operator.entry(check.full)
        full = Call(entry, check.dims, reference.make_inputs(entry, check.dims, np.random.default_rng(0), "normal"))
        yield entry, check.dims
        for agreement in reference.agreements(full, operator.entry(check.decode)):
            yield agreement.call.entry, agreement.call.dims


def two_calls(operator: Operator) -> Calls:
    """One timed shape of each path."""
    for path in ("full", "decode"):
        workload = next(w for w in operator.workloads if operator.entry(w.entry).path == path)
        yield operator.entry(workload.entry), workload.dims


def parent_of(catalogue: Mapping[str, Mechanism], name: str) -> list[str]:
    """The shortest chain of mechanisms after which this one fits, the first of alternatives taken."""
    have: list[str] = []
    for item in catalogue[name].requires:
        if not set(item.split("|")) & set(have):
            first = item.split("|")[0]
            have += [*parent_of(catalogue, first), first]
    return have


@pytest.mark.parametrize(
    ("name", "architecture"),
    [(name, each) for name in NAMES for each in load_operator(name, "triton").architectures],
)
def test_a_root_compiles_for_every_declared_shape_within_its_limits(
    name: str, architecture: str, compiler: TritonCompiler, tmp_path: Path
) -> None:
    # given
    operator = load_operator(name, "triton")

    # when
    said, facts = built(
        replace(compiler, architecture=architecture), tmp_path, operator.root_sources(), declared_calls(operator)
    )

    # then
    assert facts, said
    assert {key: facts[key] for key, most in ROOT_LIMITS.get(name, BY_ROWS_LIMITS).items() if facts[key] > most} == {}
    assert architecture != "sm_90" or facts["spill_bytes"] <= SM_90_SPILL_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_a_root_keeps_the_rules_for_candidates_and_has_its_regions(name: str) -> None:
    operator = load_operator(name, "triton")
    symbols = tuple(entry.symbol for entry in operator.entries)
    assert forbidden(dict(operator.root_sources()), operator.libraries, symbols) is None
    assert {region.name for region in operator.regions} == set(regions(operator.root_sources())) - {FRAME}


@pytest.mark.soak
@pytest.mark.parametrize(("name", "mechanism"), MECHANISMS)
def test_a_mechanism_compiles(name: str, mechanism: str, compiler: TritonCompiler, tmp_path: Path) -> None:
    # given its first legal parent
    operator = load_operator(name, "triton")
    catalogue = {each.name: each for each in load_catalogue(operator, "triton")}

    # when
    sources = apply(
        [catalogue[each] for each in [*parent_of(catalogue, mechanism), mechanism]], operator.root_sources()
    )

    # then
    said, facts = built(compiler, tmp_path, sources, two_calls(operator))
    assert facts, said


@pytest.mark.parametrize(("name", "mechanism"), MECHANISMS)
def test_a_mechanism_keeps_the_rules_and_edits_what_its_scope_says_and_only_once(name: str, mechanism: str) -> None:
    # given
    operator = load_operator(name, "triton")
    catalogue = {each.name: each for each in load_catalogue(operator, "triton")}
    chosen, parent = catalogue[mechanism], parent_of(catalogue, mechanism)
    before = apply([catalogue[each] for each in parent], operator.root_sources())

    # when
    after = apply([chosen], before)

    # then
    paths = {region.name: set(region.paths) for region in operator.regions}
    old, new = region_digests(before), region_digests(after)
    touched = set().union(*(paths.get(each, {"full", "decode"}) for each in new if new[each] != old.get(each)))
    assert forbidden(dict(after), operator.libraries, tuple(entry.symbol for entry in operator.entries)) is None
    assert touched == ({"full", "decode"} if chosen.scope == "joint" else {chosen.scope})
    assert set(chosen.contract) <= set(operator.contract)
    assert chosen.scope == "joint" or not chosen.contract
    assert not chosen.fits([*parent, mechanism])
    assert chosen.evidence(EVERYTHING)
    if not mechanism.endswith(("_more", "_fewer")):
        with pytest.raises(Refused, match=mechanism):
            apply([chosen], after)


@pytest.mark.parametrize("name", PROMOTED)
def test_a_best_keeps_the_rules_for_candidates_and_has_the_roots_regions(name: str) -> None:
    operator = load_operator(name, "triton")
    symbols = tuple(entry.symbol for entry in operator.entries)
    sources = operator.best_sources()
    assert forbidden(dict(sources), operator.libraries, symbols) is None
    assert {region.name for region in operator.regions} == set(regions(sources)) - {FRAME}


def test_a_fused_norm_adds_squares_as_the_norm_does() -> None:
    """The bits are compared on a device; here the words that make the sum, and in how many warps."""
    names = ("rms_norm", "fused_add_rms_norm")
    alone, fused = (load_operator(name, "triton").best_sources()["kernel.py"] for name in names)
    for what in (r"^WARPS = \d+$", r"^def normalised\(.*?\n\n"):
        assert re.findall(what, alone, re.M | re.S) == re.findall(what, fused, re.M | re.S) != []


@pytest.mark.parametrize("name", SHIPPED)
def test_the_best_compiles_for_what_is_timed_within_the_roots_limits(
    name: str, compiler: TritonCompiler, tmp_path: Path
) -> None:
    # given
    operator = load_operator(name, "triton")

    # when
    timed = [(operator.entry(workload.entry), workload.dims) for workload in operator.workloads]
    said, facts = built(compiler, tmp_path, operator.best_sources(), timed)

    # then
    assert facts, said
    limits = ROOT_LIMITS.get(name, BY_ROWS_LIMITS) | LARGER_TILES.get(name, {})
    assert {key: facts[key] for key, most in limits.items() if facts[key] > most} == {}


@pytest.mark.parametrize("name", NAMES)
def test_every_name_a_mechanism_cites_is_in_the_catalogue(name: str) -> None:
    catalogue = load_catalogue(load_operator(name, "triton"), "triton")
    names = {mechanism.name for mechanism in catalogue}
    for mechanism in catalogue:
        required = {each for item in mechanism.requires for each in item.split("|")}
        assert {*mechanism.excludes, *mechanism.opened_by, *required} <= names, mechanism.name


@pytest.mark.parametrize("name", NAMES)
def test_agreements_are_parts_of_the_full_call_and_reach_both_ends(name: str) -> None:
    """A wrong index here would compare a kernel with the wrong rows; float64 says they are the same numbers."""
    operator = load_operator(name, "triton")
    reference = load_reference(operator)
    checks = [check for check in operator.checks if max(check.dims.values()) <= 300]
    for check in checks:
        entry = operator.entry(check.full)
        call = Call(entry, check.dims, reference.make_inputs(entry, check.dims, np.random.default_rng(0), "normal"))
        whole = reference.reference(entry, check.dims, call.inputs)
        decode = operator.entry(check.decode)
        drawn = reference.samples(call, decode, np.random.default_rng(1))
        for agreement in (*reference.agreements(call, decode), *drawn):
            found = reference.reference(agreement.call.entry, agreement.call.dims, agreement.call.inputs)
            expected = whole[agreement.output][agreement.index]
            assert found[agreement.output].shape == expected.shape
            np.testing.assert_allclose(found[agreement.output], expected, rtol=1e-12, atol=1e-12)
