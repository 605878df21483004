"""One digest for one log: whatever the process, and sensitive to every field."""

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from kernelbraid.events.codec import Codec
from kernelbraid.events.state import Action, Implementation, Opportunity, Spent, State, fold
from kernelbraid.projections.digest import state_digest
from tests.projections.factory import Story, golden_story, stories

REPOSITORY = Path(__file__).resolve().parents[2]
PRINT_DIGEST = (
    "from tests.projections.factory import golden_story; from kernelbraid.projections.digest import state_digest; "
    "print(state_digest(golden_story().state))"
)


def digest_elsewhere(hash_seed: str) -> str:
    """The golden story's digest in a fresh process with this hash seed."""
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path, "LC_ALL": "C", "TZ": "Asia/Tokyo"}
    command = [sys.executable, "-c", PRINT_DIGEST]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=60)
    return done.stdout.strip()


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_another_process_with_another_hash_seed_agrees(hash_seed: str) -> None:
    assert digest_elsewhere(hash_seed) == state_digest(golden_story().state)


@settings(max_examples=25, deadline=None)
@given(stories)
def test_folding_a_log_again_gives_its_digest(story: Story) -> None:
    assert state_digest(fold(story.log)) == state_digest(story.state)


@settings(max_examples=15, deadline=None)
@given(stories)
def test_a_log_read_back_from_its_stored_bytes_has_the_digest_of_the_live_state(story: Story) -> None:
    codec = Codec()
    stored = [codec.decode(codec.encode(recorded, "")) for recorded in story.log]

    assert state_digest(fold(stored)) == state_digest(story.state)


def test_every_event_that_is_no_repetition_changes_the_digest() -> None:
    state, seen = State(), set()
    for recorded in golden_story().log:
        seen.add(state_digest(fold([recorded], state)))

    assert len(seen) == len(golden_story().log)


def a_record(state: State, kind: type) -> Any:
    """Some record of that kind inside the state."""
    if kind is State:
        return state
    if kind is Spent:
        return state.spent
    tables: dict[type, dict[str, Any]] = {
        Implementation: dict(state.implementations),
        Opportunity: dict(state.opportunities),
        Action: dict(state.actions),
    }
    return list(tables[kind].values())[-1]


KINDS = (State, Implementation, Opportunity, Action, Spent)


@pytest.mark.parametrize(("kind", "name"), [(kind, field.name) for kind in KINDS for field in fields(kind)])
def test_no_field_escapes_the_digest(kind: type, name: str) -> None:
    state = golden_story().state
    before, record = state_digest(state), a_record(state, kind)

    value = getattr(record, name)
    changed = {**value, "another": None} if isinstance(value, dict) else f"not {value}"
    if name in ("implementations", "opportunities", "actions"):
        changed = dict(list(value.items())[:-1])
    setattr(record, name, changed)

    assert state_digest(state) != before


def test_the_order_of_the_frontier_counts_and_the_order_of_a_mapping_of_plain_keys_does_not() -> None:
    one, other = golden_story().state, golden_story().state
    dims = other.specified().contract.workloads[1].dims
    for key in sorted(dims, reverse=True):
        dims[key] = dims.pop(key)
    assert state_digest(one) == state_digest(other)

    other.frontier = dict(reversed(other.frontier.items()))
    assert state_digest(one) != state_digest(other)
