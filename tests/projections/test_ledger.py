"""What was spent, by agent and model."""

import pytest
from hypothesis import given, settings

from kernelbraid.events.audit import AuditCompleted
from kernelbraid.projections.ledger import LEDGER, Ledger, ModelUse, ledger
from kernelbraid.projections.projection import rebuild
from tests.projections.factory import Story, stories


def book(story: Story) -> Ledger:
    """The ledger of a story's log."""
    return ledger(rebuild(story.log, LEDGER)[LEDGER])


def test_calls_of_one_model_add_up() -> None:
    story = Story().begin()
    story.call_model(tokens=300, cost_usd=0.02)
    story.call_model(tokens=600, cost_usd=0.04)

    (use,) = book(story).own.models

    assert use == ModelUse("editor", "small-model", 2, 2, 900, 300, 0.02 + 0.04, 0.8 + 0.8)
    assert book(story).own.tokens == 1200


def test_audits_and_timings_cost_time() -> None:
    story = Story().begin()
    story.offspring("simd_width", 2.0)

    assert (book(story).own.audits, book(story).own.audit_s) == (2, 5.0)


def test_a_fork_keeps_its_own_book() -> None:
    story = Story().begin()
    story.call_model(tokens=300)
    story.fork("child")
    story.call_model(tokens=30)
    story.fork("grandchild")

    assert book(story).own.tokens == 0
    assert book(story).inherited.tokens == 440
    assert book(story).inherited.audits == 1


@settings(max_examples=25, deadline=None)
@given(stories)
def test_the_ledger_agrees_with_the_budgets(story: Story) -> None:
    view, spent = book(story), story.state.spent

    assert view.own.tokens == spent.tokens
    assert view.own.cost_usd == pytest.approx(spent.cost_usd)
    assert view.own.audits + view.inherited.audits == sum(
        isinstance(recorded.event, AuditCompleted) for recorded in story.log
    )
