"""Metrics of the log: a replay reproduces them exactly."""

import re

from hypothesis import given, settings

from kernelbraid.events.event import Recorded
from kernelbraid.events.registry import BY_NAME
from kernelbraid.projections.ledger import LEDGER
from kernelbraid.projections.metrics import METRICS, Family, metrics
from kernelbraid.projections.projection import STATE, Fold, rebuild
from tests.projections.factory import Story, golden_story, stories


def read(folded: Fold) -> tuple[Family, ...]:
    """Every family."""
    return metrics(folded[STATE], folded[METRICS], folded[LEDGER])


def replayed(log: list[Recorded]) -> tuple[Family, ...]:
    """The families of a log, folded from its start."""
    return read(rebuild(log, STATE, METRICS, LEDGER))


def values(families: tuple[Family, ...]) -> dict[tuple[str, ...], float]:
    """Every sample by its name and label values."""
    samples = (sample for family in families for sample in family.samples)
    return {(sample.name, *(value for _, value in sample.labels)): sample.value for sample in samples}


def test_what_the_golden_story_measures() -> None:
    shown = values(replayed(golden_story().log))

    assert shown["kernelbraid_events_total", "AuditCompleted"] == 8
    assert shown["kernelbraid_audits_total", "verified"] == 7
    assert shown["kernelbraid_audits_total", "disagreement"] == 1
    assert shown["kernelbraid_performance_total", "promotable"] == 4
    assert shown[("kernelbraid_promotions_total",)] == 3
    assert shown[("kernelbraid_kappa",)] == 1
    assert shown[("kernelbraid_kappa_threshold",)] == 4
    assert shown[("kernelbraid_speedup_ratio",)] == 3.3
    assert shown[("kernelbraid_frontier_size",)] == 5
    assert shown[("kernelbraid_audit_seconds_count",)] == 8
    assert shown[("kernelbraid_audit_seconds_sum",)] == 20.0
    assert shown["kernelbraid_audit_seconds_bucket", "1"] == 0
    assert shown["kernelbraid_audit_seconds_bucket", "2.5"] == 8
    assert shown["kernelbraid_audit_seconds_bucket", "+Inf"] == 8
    assert shown["kernelbraid_tokens_total", "editor", "small-model", "input"] == 300
    assert shown["kernelbraid_budget_left", "audits"] == 5
    assert shown["kernelbraid_status", "stopped"] == 1


@settings(max_examples=25, deadline=None)
@given(stories)
def test_a_replay_reproduces_every_sample(story: Story) -> None:
    live = Fold(STATE, METRICS, LEDGER)
    for recorded in story.log:
        live.apply(recorded)

    assert read(live) == replayed(story.log)


@settings(max_examples=25, deadline=None)
@given(stories)
def test_the_counts_of_events_add_up_to_the_position(story: Story) -> None:
    shown = values(replayed(story.log))

    assert sum(shown["kernelbraid_events_total", name] for name in BY_NAME) == len(story.log)
    assert shown[("kernelbraid_position",)] == len(story.log)


def test_names_are_fit_for_prometheus_and_samples_are_unique() -> None:
    families = replayed(golden_story().log)

    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert re.fullmatch(r"kernelbraid_[a-z_]+", family.name)
        assert family.help.endswith(".")
        assert family.kind != "counter" or family.name.endswith("_total")
        assert all(sample.name.startswith(family.name) for sample in family.samples)
    assert len(values(families)) == sum(len(family.samples) for family in families)


def test_before_the_root_qualifies_unknown_values_are_left_out() -> None:
    shown = values(replayed(Story().open().log))

    assert ("kernelbraid_best_objective_seconds",) not in shown
    assert shown["kernelbraid_status", "opening"] == 1
