"""Packed bytes read back as what was packed, and equal values have equal bytes."""

from hypothesis import given
from hypothesis import strategies as st

from kernelbraid.events.packed import NOTHING_FOUND, findings, incumbent, pack_findings, pack_submission, submission
from kernelbraid.events.values import Measurement, Region, SourceFile

positive = st.floats(min_value=1e-9, max_value=1e9)
names = st.text(max_size=8).filter(lambda text: text.isprintable())
by_name = st.dictionaries(names, positive, max_size=4)
measurements = st.builds(
    Measurement,
    incumbent=names,
    ratio=positive,
    upper_bound_ratio=positive,
    delta_ratio=positive,
    standard_error_ratio=positive,
    alpha=st.none() | positive,
    confirmation=st.none() | st.integers(1, 99),
    speedup_ratio=st.none() | positive,
    objective_s=positive,
    incumbent_ratios=by_name,
    root_ratios=by_name,
    root_upper_bound_ratios=by_name,
    blocks=st.lists(names, max_size=2).map(tuple),
)


@given(by_name, st.none() | measurements, by_name)
def test_findings_read_back(
    measured: dict[str, float], measurement: Measurement | None, facts: dict[str, float]
) -> None:
    found = findings(pack_findings(measured, measurement, facts))

    assert (found.latencies_s, found.measurement, found.resources) == (measured, measurement, facts)


@given(st.none() | measurements)
def test_the_incumbent_is_read_alone(measurement: Measurement | None) -> None:
    assert incumbent(pack_findings({}, measurement, {})) == (measurement and measurement.incumbent)


def test_a_submission_reads_back() -> None:
    sources = (SourceFile(name="attention.c", digest="ab" * 32),)
    regions = (Region(name="loop", paths=("full", "decode"), digest="cd" * 32), Region(name="x", paths=(), digest=""))

    read = submission(pack_submission(sources, regions))

    assert (read.sources, read.regions) == (sources, regions)


@given(measurements)
def test_equal_measurements_have_equal_bytes(measurement: Measurement) -> None:
    stored = Measurement.model_validate_json(measurement.model_dump_json())

    assert pack_findings({}, stored, {}) == pack_findings({}, measurement, {})


def test_nothing_found_is_empty() -> None:
    nothing = findings(NOTHING_FOUND)

    assert (nothing.latencies_s, nothing.measurement, nothing.resources) == ({}, None, {})
