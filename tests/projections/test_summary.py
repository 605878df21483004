"""What `show C --json` says, to the letter."""

import os
from pathlib import Path

import orjson
import pytest

from kernelbraid.events.state import State
from kernelbraid.projections.summary import summary
from tests.projections.factory import Story, golden_story

GOLDEN = Path(__file__).parent / "golden"
DESIGNED_KEYS = {
    "campaign",
    "operator",
    "target",
    "status",
    "stop_reason",
    "position",
    "digest",
    "kappa",
    "kappa_threshold",
    "root",
    "best",
    "counts",
    "frontier",
    "archive",
    "opportunities",
    "budgets",
    "forked_from",
}


def shown(state: State, *, driven: bool = False) -> bytes:
    """The JSON as it is printed."""
    return orjson.dumps(summary(state, driven=driven).model_dump(mode="json"), option=orjson.OPT_INDENT_2) + b"\n"


def expected(name: str, now: bytes) -> bytes:
    """The golden file; `UPDATE_GOLDEN=1` writes it anew, for a change that was meant."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_bytes(now)
    return path.read_bytes()


def test_a_finished_campaign_reads_as_the_golden_file() -> None:
    now = shown(golden_story().state)

    assert now == expected("show.json", now)


def test_a_fork_reads_as_the_golden_file() -> None:
    story = Story().begin(kappa=4, parallel=2, audits=5)
    story.offspring("simd_width", 2.0)
    story.propose(story.opportunity("kv_tile"))

    story.fork("child", machine="another", kappa=9)

    now = shown(story.state, driven=True)
    assert now == expected("show_fork.json", now)


def test_the_keys_that_readers_rely_on_are_there() -> None:
    fields = summary(golden_story().state, driven=False).model_dump(mode="json")

    assert fields.keys() >= DESIGNED_KEYS
    assert fields["best"].keys() >= {"implementation", "objective_s", "speedup_ratio"}
    assert fields["counts"].keys() == {"audited", "verified", "promoted", "failed"}
    assert fields["opportunities"].keys() == {"pending", "consumed", "withdrawn"}


def test_before_the_root_qualifies_there_is_no_best() -> None:
    view = summary(Story().open().state, driven=True)

    assert view.best is None
    assert view.root.objective_s is None
    assert view.status == "running"


@pytest.mark.parametrize(("driven", "status"), [(True, "running"), (False, "interrupted")])
def test_a_search_that_nobody_drives_was_interrupted(driven: bool, status: str) -> None:
    assert summary(Story().begin().state, driven=driven).status == status


def test_a_stop_stays_a_stop_whoever_holds_the_lease() -> None:
    assert summary(golden_story().state, driven=True).status == "stopped"


def test_promotions_say_whether_their_parents_ever_were_the_best() -> None:
    promotions = summary(golden_story().state, driven=False).promotions

    assert [item.implementation for item in promotions] == ["i0001", "i0004", "i0006"]
    assert promotions[1].parents == ("i0002", "i0003")
    assert promotions[1].parents_promoted == (False, False)
