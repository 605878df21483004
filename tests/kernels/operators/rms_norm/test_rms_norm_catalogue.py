"""rms_norm's mechanisms: each on its first legal parent, all of them in random legal orders, and where they refuse."""

from collections.abc import Callable
from typing import Any

import pytest

from kernelbraid.kernels.operators.catalogue import Facts, apply, load_catalogue
from kernelbraid.kernels.operators.operator import load_operator
from kernelbraid.kernels.operators.regions import Refused

OPERATOR = load_operator("rms_norm")
CATALOGUE = {mechanism.name: mechanism for mechanism in load_catalogue(OPERATOR, "cpu")}
WIDE = Facts(frozenset(), {"full": 0.5, "decode": 0.5, "float32": 0.5, "bfloat16": 0.5}, {}, 512, 32768)
NARROW = Facts(frozenset(), {"full": 0.5, "decode": 0.5, "float32": 1.0, "bfloat16": 0.0}, {}, 128, 32768)


@pytest.fixture
def bench(bench_of: Callable[[str], Any]) -> Any:
    return bench_of("rms_norm")


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_mechanism_keeps_agreement_accuracy_and_its_word_about_the_bits(name: str, bench: Any) -> None:
    # given its first legal parent
    mechanism, parent = CATALOGUE[name], bench.first_parent(name)
    assert mechanism.fits(parent)

    # when it is applied
    before = bench.sources(parent)
    after = apply([mechanism], before)
    library = bench.library(after)

    # then both paths agree, and what touches no contract item leaves every bit as it was
    assert bench.disagreements(library) == []
    assert bench.inaccuracies(lambda call: bench.call(library, call)) == []
    if not mechanism.contract:
        assert bench.outputs(library) == bench.outputs(bench.library(before))


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_mechanism_edits_only_what_its_scope_and_contract_say(name: str, bench: Any) -> None:
    # given
    mechanism = CATALOGUE[name]
    before = bench.sources(bench.first_parent(name))

    # when
    touched = bench.touched(before, apply([mechanism], before))

    # then
    paths = {path for region in touched for path in bench.paths(region)}
    assert paths == ({"full", "decode"} if mechanism.scope == "joint" else {mechanism.scope})
    assert set(mechanism.contract) <= set(OPERATOR.contract)
    if mechanism.contract:
        assert mechanism.scope == "joint"


@pytest.mark.parametrize("seed", range(2))
def test_any_legal_composition_agrees_and_is_accurate(seed: int, bench: Any) -> None:
    # given mechanisms in a random legal order, until none fits
    names = bench.composition(seed)
    assert len(names) >= 8

    # when
    library = bench.library(bench.sources(names))

    # then
    assert bench.disagreements(library) == [], names
    assert bench.inaccuracies(lambda call: bench.call(library, call)) == [], names


def test_siblings_of_different_paths_merge_in_either_order(bench: Any) -> None:
    # given two siblings, one full only and one decode only
    first, second = "full_row_tile", "decode_row_tile"

    # when both are applied, either one first
    one, other = bench.sources([first, second]), bench.sources([second, first])

    # then
    assert one == other


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_mechanism_refuses_to_be_applied_twice(name: str, bench: Any) -> None:
    # given
    once = bench.sources((*bench.first_parent(name), name))

    # when / then
    assert not CATALOGUE[name].fits({name})
    with pytest.raises(Refused, match=name):
        apply([CATALOGUE[name]], once)


@pytest.mark.parametrize("name", [name for name, mechanism in CATALOGUE.items() if mechanism.requires])
def test_a_mechanism_refuses_a_parent_without_what_it_requires(name: str) -> None:
    # given the root, which has none of it
    assert not CATALOGUE[name].fits(())

    # when / then
    with pytest.raises(Refused, match=name):
        apply([CATALOGUE[name]], OPERATOR.root_sources())


def test_every_name_a_mechanism_cites_is_in_the_catalogue() -> None:
    for mechanism in CATALOGUE.values():
        cited = [
            *mechanism.excludes,
            *mechanism.opened_by,
            *(n for item in mechanism.requires for n in item.split("|")),
        ]
        assert set(cited) <= set(CATALOGUE), mechanism.name


def test_evidence_depends_on_the_machine_and_on_where_the_time_goes() -> None:
    # given / when
    wide = {name for name, mechanism in CATALOGUE.items() if mechanism.evidence(WIDE)}
    narrow = {name for name, mechanism in CATALOGUE.items() if mechanism.evidence(NARROW)}

    # then
    assert wide == set(CATALOGUE)
    assert {"lanes_8", "lanes_16", "explicit_fma", "widening_load"} & narrow == set()
    assert "lanes_4" in narrow
