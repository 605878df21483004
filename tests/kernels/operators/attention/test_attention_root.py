"""The root: declared soundly, bitwise the same on both paths, close to float64; and what that would notice."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from kernelbraid.kernels.operators.cases import load_module
from kernelbraid.kernels.operators.operator import STYLES, Baseline, OperatorError
from kernelbraid.kernels.operators.regions import FRAME, edit_region, regions

BUILDS = load_module(Path(__file__).parent / "builds.py")
OPERATOR, REFERENCE = BUILDS.OPERATOR, BUILDS.REFERENCE
SMALL = BUILDS.SMALL_CHECKS


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library: ctypes.CDLL = BUILDS.build(OPERATOR.root_sources(), tmp_path_factory.mktemp("root"), "-O3")
    return library


def test_every_declared_region_stands_in_the_root() -> None:
    assert {region.name for region in OPERATOR.regions} == set(regions(OPERATOR.root_sources())) - {FRAME}


def test_every_style_is_checked_in_both_dtypes() -> None:
    checked = {(check.full, style) for check in OPERATOR.checks for style in check.styles}
    assert checked >= {(f"attention_full_{dtype}", style) for dtype in ("f32", "bf16") for style in STYLES}


def test_the_root_is_verified_by_every_declared_check(root: ctypes.CDLL) -> None:
    found = list(BUILDS.findings(root, OPERATOR.checks))
    assert [finding for finding in found if not finding.verified] == []


@pytest.mark.parametrize("baseline", OPERATOR.baselines, ids=lambda baseline: baseline.name)
def test_baselines_are_accurate(baseline: Baseline, tmp_path: Path) -> None:
    sources = OPERATOR.baseline_sources(baseline)
    found = list(BUILDS.findings(BUILDS.build(sources, tmp_path), SMALL))
    assert max(finding.max_ratio for finding in found) < 0.005


def test_agreements_cover_every_row_of_a_short_sequence() -> None:
    entry, dims = OPERATOR.entry("attention_full_f32"), {**SMALL[0].dims, "batch": 2, "tokens": 130}
    inputs = REFERENCE.make_inputs(entry, dims, np.random.default_rng(0), "normal")
    covered = np.zeros((2, 130), dtype=bool)
    decode = OPERATOR.entry("attention_decode_f32")
    for agreement in REFERENCE.agreements(BUILDS.Call(entry, dims, inputs), decode):
        if agreement.call.entry == decode:
            covered[agreement.index] = True
    assert covered.all()


def test_a_tile_size_of_decode_alone_is_seen_as_disagreement(tmp_path: Path) -> None:
    sources = OPERATOR.root_sources()
    for old in ("start += KV_TILE", "smaller(KV_TILE, length - start)"):
        sources = edit_region(sources, "decode", old, old.replace("KV_TILE", "48"))
    found = list(BUILDS.findings(BUILDS.build(sources, tmp_path), SMALL))
    assert any(finding.disagreeing for finding in found if finding.check.dims["tokens"] > 64)


def test_a_look_beyond_the_context_is_seen(tmp_path: Path) -> None:
    sources = edit_region(OPERATOR.root_sources(), "decode", "start < length;", "start <= length;")
    sources = edit_region(sources, "decode", "length - start)", "length + 1 - start)")
    found = list(BUILDS.findings(BUILDS.build(sources, tmp_path), SMALL))
    assert all(finding.disagreeing for finding in found)


def test_an_agreed_error_is_seen_as_inaccurate(tmp_path: Path) -> None:
    sources = edit_region(OPERATOR.root_sources(), "finish", "/ row->weight_sum", "/ (row->weight_sum + 0.1f)")
    found = list(BUILDS.findings(BUILDS.build(sources, tmp_path), SMALL))
    assert all(finding.disagreeing == 0 and not finding.verified for finding in found)


def test_unknown_style_is_refused() -> None:
    entry = OPERATOR.entry("attention_full_f32")
    with pytest.raises(OperatorError, match="unknown style"):
        REFERENCE.make_inputs(entry, SMALL[0].dims, np.random.default_rng(0), "loud")
