"""The catalogue: every rewrite, alone and in any legal order, keeps bits equal and stays within its scope."""

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from kernelbraid.kernels.operators.cases import load_module
from kernelbraid.kernels.operators.catalogue import Facts, Mechanism, apply, load_catalogue
from kernelbraid.kernels.operators.operator import Sources
from kernelbraid.kernels.operators.regions import Refused, region_digests

BUILDS = load_module(Path(__file__).parent / "builds.py")
OPERATOR = BUILDS.OPERATOR
CATALOGUE = {mechanism.name: mechanism for mechanism in load_catalogue(OPERATOR, "cpu")}
FACTS = Facts(
    applied=frozenset({"batched_lane_sum"}),
    share_ratio={"full": 0.5, "decode": 0.5, "float32": 0.5, "bfloat16": 0.5},
    resources={},
    simd_bits=512,
    l1_bytes=49152,
)


def legal_parent(name: str) -> list[str]:
    """The shortest list of mechanisms that lets this one follow, in an order that fits."""
    found: list[str] = []
    for needed in (item.split("|")[0] for item in CATALOGUE[name].requires):
        found += [each for each in (*legal_parent(needed), needed) if each not in found]
    return found


def legal_walk(seed: int) -> list[str]:
    """Mechanisms in a random order, each fitting when its turn comes, until none fits."""
    rng, applied = random.Random(seed), list[str]()
    while fitting := [name for name in CATALOGUE if CATALOGUE[name].fits(applied)]:
        applied.append(rng.choice(fitting))
    return applied


def applied(names: Iterable[str]) -> Sources:
    return apply([CATALOGUE[name] for name in names], OPERATOR.root_sources())


def changed_regions(before: Sources, after: Sources) -> set[str]:
    old, new = region_digests(before), region_digests(after)
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def unverified(sources: Sources, folder: Path) -> list[object]:
    found = BUILDS.findings(BUILDS.build(sources, folder), BUILDS.SMALL_CHECKS)
    return [finding for finding in found if not finding.verified]


def test_there_are_at_least_fifteen_mechanisms_and_some_need_others() -> None:
    assert len(CATALOGUE) >= 15
    assert sum(bool(mechanism.requires) for mechanism in CATALOGUE.values()) >= 5
    named = {
        name for each in CATALOGUE.values() for item in (*each.requires, *each.excludes) for name in item.split("|")
    }
    assert named | {name for each in CATALOGUE.values() for name in each.opened_by} <= CATALOGUE.keys()


@pytest.mark.parametrize("mechanism", CATALOGUE.values(), ids=lambda mechanism: mechanism.name)
def test_a_mechanism_stays_within_its_scope_and_names_its_contract(mechanism: Mechanism) -> None:
    before = applied(legal_parent(mechanism.name))
    changed = changed_regions(before, apply([mechanism], before))
    declared = {region.name: region for region in OPERATOR.regions}
    allowed = ("full", "decode") if mechanism.scope == "joint" else (mechanism.scope,)
    assert changed
    assert changed <= declared.keys()
    assert {declared[name].paths for name in changed} == {allowed}
    assert set(mechanism.contract) <= {item for name in changed for item in declared[name].contract}


@pytest.mark.parametrize("mechanism", CATALOGUE.values(), ids=lambda mechanism: mechanism.name)
def test_a_mechanism_on_its_first_legal_parent_is_verified(mechanism: Mechanism, tmp_path: Path) -> None:
    assert unverified(applied([*legal_parent(mechanism.name), mechanism.name]), tmp_path) == []


@pytest.mark.parametrize("seed", range(2))
def test_a_random_legal_composition_is_verified(seed: int, tmp_path: Path) -> None:
    names = legal_walk(seed)
    narrower = {"batched_lane_sum_8", "batched_lane_sum_4", "lanes_8", "lanes_16", "batched_lane_sum"}
    assert set(names) >= CATALOGUE.keys() - narrower - {"key_group", "fused_multiply_add"}
    assert unverified(applied(names), tmp_path) == []


@pytest.mark.parametrize("seed", range(60))
def test_every_legal_order_has_a_place_for_each_edit(seed: int) -> None:
    applied(legal_walk(seed))


def test_siblings_of_two_paths_merge_to_the_same_source_in_either_order() -> None:
    base = ["lanes_4", "unpacked_tile"]
    assert applied([*base, "query_tile", "heads_together"]) == applied([*base, "heads_together", "query_tile"])


@pytest.mark.parametrize("mechanism", CATALOGUE.values(), ids=lambda mechanism: mechanism.name)
def test_a_mechanism_is_refused_where_it_stands_already(mechanism: Mechanism) -> None:
    after = applied([*legal_parent(mechanism.name), mechanism.name])
    with pytest.raises(Refused, match=mechanism.name):
        apply([mechanism], after)


def test_a_mechanism_is_refused_where_its_precondition_is_missing() -> None:
    with pytest.raises(Refused, match="batched_lane_sum"):
        applied(["batched_lane_sum"])


def test_every_mechanism_has_evidence_on_a_wide_machine_and_some_need_one() -> None:
    silent = {name for name, mechanism in CATALOGUE.items() if not mechanism.evidence(FACTS)}
    assert silent == {"batched_lane_sum_8", "batched_lane_sum_4"}
    unknown = Facts(frozenset(), {"full": 0.01, "decode": 0.99, "bfloat16": 0.3}, {}, 64, 16384)
    silent = {name for name, mechanism in CATALOGUE.items() if mechanism.evidence(unknown) is None}
    assert silent >= {"lanes_4", "fused_multiply_add", "query_tile", "unpacked_tile", "kv_tile_128"}


@pytest.mark.parametrize(
    ("bits", "lanes", "batched"),
    [
        (512, ["lanes_4", "lanes_8", "lanes_16"], {"batched_lane_sum"}),
        (256, ["lanes_4", "lanes_8"], {"batched_lane_sum_8"}),
        (128, ["lanes_4"], {"batched_lane_sum_4"}),
    ],
)
def test_lanes_grow_to_what_a_register_holds_and_are_then_summed_as_a_square(
    bits: int, lanes: list[str], batched: set[str]
) -> None:
    grounded = [name for name, each in CATALOGUE.items() if each.evidence(replace(FACTS, simd_bits=bits))]

    assert [name for name in grounded if name.startswith("lanes_")] == lanes
    assert {name for name in grounded if name.startswith("batched") and CATALOGUE[name].fits(lanes)} == batched
