"""Which kernel multiplies how many rows: tables, rules, and what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelbraid.kernels.runtime.linear_choice import (
    MOST_ROWS,
    Chosen,
    Table,
    TableError,
    Way,
    by_rule,
    parsed,
    table,
    written,
)
from kernelbraid.kernels.runtime.linear_tiles import Tile, layout

DEVICE, LIBRARY = "a device", 130100
FEW, MANY = Tile(1, 8, 10, swapped=True, split=4), Tile(2, 192, 5, swapped=False, shared=2, sums=True)
CHUNKED = Chosen(1536, 8960, 35, (Way(8, tile=FEW), Way(MOST_ROWS, tile=MANY)), "table")
CHAIN = Chosen(2048, 1536, 0, (Way(16, algorithm="ab" * 64), Way(MOST_ROWS, algorithm="cd" * 64)), "table")
TABLE = Table(DEVICE, LIBRARY, {(1536, 8960): CHUNKED, (2048, 1536): CHAIN})
MODELS = [
    *[(2048, 1536), (1536, 1536), (17920, 1536), (1536, 8960), (151936, 1536)],
    *[(6144, 2560), (2560, 4096), (19456, 2560), (2560, 9728), (151936, 2560)],
    *[(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (151936, 4096)],
    *[(28672, 4096), (4096, 14336), (128256, 4096)],
    *[(5120, 2048), (2048, 4096), (128, 2048), (151936, 2048)],
]
"""(outs, width) of q/k/v, o, gate with up, down and head of the five models, and of a router."""


@pytest.mark.parametrize(
    ("rows", "name"), [(1, "chunked:8x64:split4"), (8, "chunked:8x64:split4"), (9, "chunked:128x192:sums")]
)
def test_rows_decide_the_way(rows: int, name: str) -> None:
    assert CHUNKED.way(rows).name == name


def test_every_number_of_rows_has_exactly_one_way() -> None:
    assert [(fewest, way.upto_rows) for fewest, way in CHUNKED.ranges()] == [(1, 8), (9, MOST_ROWS)]


def test_a_table_read_back_is_the_table() -> None:
    assert parsed(written(TABLE)) == TABLE


def test_the_table_is_used_on_its_device_with_its_library() -> None:
    assert TABLE.choose(2048, 1536, DEVICE, LIBRARY) is CHAIN


@pytest.mark.parametrize(("device", "library"), [("another device", LIBRARY), (DEVICE, 130200), (DEVICE, None)])
def test_elsewhere_rules_take_the_place_of_its_ways(device: str, library: int | None) -> None:
    # when
    chosen = TABLE.choose(2048, 1536, device, library)

    # then no algorithm of a library that was not measured runs
    assert chosen.origin == "rule"
    assert all(way.tile for way in chosen.ways)


def test_another_library_leaves_ways_alone_that_do_not_use_it() -> None:
    assert TABLE.choose(1536, 8960, DEVICE, 130200) is CHUNKED


def test_another_device_keeps_the_order_of_sums() -> None:
    assert TABLE.choose(1536, 8960, "another device", LIBRARY).chunk_steps == CHUNKED.chunk_steps


def test_a_shape_that_nobody_measured_goes_by_rule_in_one_chain() -> None:
    assert TABLE.choose(72, 40, DEVICE, LIBRARY) == by_rule(72, 40, 0)


@given(
    outs=st.integers(1, 20_000).map(lambda n: 8 * n),
    width=st.integers(1, 3_000).map(lambda n: 8 * n),
    chunk_steps=st.integers(0, 120),
    rows=st.integers(1, MOST_ROWS),
)
def test_a_rule_has_a_way_that_can_be_launched_for_any_shape(
    outs: int, width: int, chunk_steps: int, rows: int
) -> None:
    tile = by_rule(outs, width, chunk_steps).way(rows).tile
    assert tile is not None
    assert layout(tile, rows, outs, width, chunk_steps, multiprocessors=132).blocks > 0


@pytest.mark.parametrize(
    "broken",
    [
        "not JSON",
        "{}",
        json.dumps({"device": "d", "library": 1, "shapes": [{"outs": 8, "width": 8, "chunk_steps": 0, "ways": 3}]}),
        written(TABLE).replace('"columns": 8', '"columns": 9'),
        written(TABLE).replace('"stages": 10, ', ""),
        written(TABLE).replace(f'"rows": {MOST_ROWS}', '"rows": 4'),
        written(TABLE).replace('"algorithm"', '"something"'),
    ],
)
def test_a_broken_table_is_refused(broken: str) -> None:
    with pytest.raises(TableError):
        parsed(broken)


def test_a_way_is_by_a_tile_or_by_an_algorithm() -> None:
    for both in ({}, {"tile": FEW, "algorithm": "ab"}):
        with pytest.raises(TableError):
            Way(8, **both)


@pytest.mark.parametrize(("outs", "width"), MODELS)
def test_the_packaged_table_holds_the_models_layers(outs: int, width: int) -> None:
    chosen = table().shapes[outs, width]
    for _, way in chosen.ranges():
        if way.tile is not None:
            layout(way.tile, way.upto_rows, outs, width, chosen.chunk_steps, multiprocessors=132)
        else:
            assert len(bytes.fromhex(way.algorithm or "")) == 64
