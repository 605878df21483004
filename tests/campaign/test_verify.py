"""Every promotion can be recomputed from its blocks, by whoever holds the log; an edited sample is named."""

import json
import shutil
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelbraid.agents import evidence_check
from kernelbraid.agents.evidence_check import recheck
from kernelbraid.events.audit import AuditCompleted, ImplementationPromoted, TimingCompleted
from kernelbraid.events.blobs import digest_of
from kernelbraid.events.campaign import CampaignOpened, RootQualified
from kernelbraid.events.chain import Problem, hash_of
from kernelbraid.events.store import Store, open_store
from kernelbraid.events.values import ROOT as ROOT_ID
from kernelbraid.events.values import Performance
from kernelbraid.kernels.audit.outcome import CANDIDATE, INCUMBENT, ROOT, Blocks
from tests.campaign.tampering import Edit, Held, edited
from tests.campaign.toy import memory, run_toy, simulated

CAMPAIGN = "toy"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a finished campaign, not to be written to."""
    path = tmp_path_factory.mktemp("searched") / "toy.db"
    store = open_store(f"sqlite:///{path}")
    run_toy(store, CAMPAIGN)
    store.close()
    return path


@pytest.fixture
def log(searched: Path, tmp_path: Path) -> "Log":
    """A copy to tamper with."""
    copy = tmp_path / "toy.db"
    shutil.copy(searched, copy)
    return Log(copy)


class Log:
    """A campaign's file in the hands of somebody with an SQLite shell, triggers out of the way."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = sqlite3.connect(path)
        for (name,) in self.database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            self.database.execute(f"DROP TRIGGER {name}")

    def rows(self) -> list[bytes]:
        """Every row's bytes, oldest first."""
        found = self.database.execute("SELECT state FROM stored_events ORDER BY originator_version")
        return [bytes(state) for (state,) in found]

    def promotable(self) -> tuple[int, str, str]:
        """Position, implementation and last block blob of the first audit that won against another than the root."""
        for position, state in enumerate(self.rows(), start=1):
            payload = json.loads(state)["payload"]
            won = payload.get("performance") == Performance.PROMOTABLE
            if won and payload["measurement"]["incumbent"] != ROOT_ID:
                return position, payload["implementation"], payload["measurement"]["blocks"][-1]
        raise AssertionError("nothing was ever promotable")

    def blob(self, digest: str) -> bytes:
        """A blob's bytes."""
        (data,) = self.database.execute("SELECT data FROM blobs WHERE digest = ?", (bytes.fromhex(digest),)).fetchone()
        return zlib.decompress(data)

    def overwrite(self, digest: str, data: bytes) -> None:
        """Other bytes under the same digest."""
        values = (zlib.compress(data), bytes.fromhex(digest))
        self.database.execute("UPDATE blobs SET data = ? WHERE digest = ?", values)
        self.database.commit()

    def add(self, data: bytes) -> str:
        """One more blob; returns its digest."""
        digest = digest_of(data)
        self.database.execute("INSERT INTO blobs VALUES (?, ?)", (bytes.fromhex(digest), zlib.compress(data)))
        return digest

    def put(self, position: int, state: bytes) -> None:
        """Other bytes in a row."""
        self.database.execute("UPDATE stored_events SET state = ? WHERE originator_version = ?", (state, position))

    def rewrite(self, position: int, change: Callable[[dict[str, Any]], None]) -> None:
        """Another payload at a position, and every later hash computed anew, the head's included."""
        previous = ""
        for number, state in enumerate(self.rows(), start=1):
            record = json.loads(state)
            if number == position:
                change(record["payload"])
            if number > position:
                record["previous"] = previous
            if number >= position:
                state = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
                self.put(number, state)
            previous = hash_of(state)
        self.database.execute("UPDATE heads SET hash = ?", (previous,))
        self.database.commit()

    def rewrite_blocks(self, position: int, digest: str, edit: Edit) -> None:
        """Edited blocks under their own right digest, cited where the old ones were, everything hashed anew."""
        edited = self.add(edit(Blocks.from_bytes(self.blob(digest))).to_bytes())

        def change(payload: dict[str, Any]) -> None:
            cited = payload["measurement"]["blocks"] if "measurement" in payload else payload["blocks"]
            cited[cited.index(digest)] = edited

        self.rewrite(position, change)

    def opened(self) -> Store:
        """The store, as anybody opens it."""
        self.database.close()
        return open_store(f"sqlite:///{self.path}", read_only=True)


def problems(store: Store) -> tuple[Problem, ...]:
    """What `verify` finds: the chain first, figures from a log that can be believed."""
    try:
        return store.verify(CAMPAIGN).problems or recheck(store, CAMPAIGN)
    finally:
        store.close()


def test_an_untouched_log_recomputes_to_the_last_digit(log: Log) -> None:
    assert problems(log.opened()) == ()


@pytest.mark.parametrize("arm", [CANDIDATE, INCUMBENT, ROOT])
def test_one_sample_edited_and_everything_rehashed_is_named_by_the_recomputation(log: Log, arm: str) -> None:
    # given a winner's blocks in which one sample is a third of what it was, and a chain that holds
    position, implementation, digest = log.promotable()
    sample = int(Blocks.from_bytes(log.blob(digest)).samples_ns[arm][0, 0, 0, 0])
    log.rewrite_blocks(position, digest, edited(arm, sample // 3))
    store = log.opened()
    assert store.verify(CAMPAIGN).problems == ()
    # when the figures are recomputed
    found = problems(store)
    # then that audit is named, and nothing else
    assert {problem.position for problem in found} == {position}
    assert all(problem.what.startswith(f"{implementation}: ") for problem in found)


def test_one_sample_of_the_root_s_own_timing_is_named_too(log: Log) -> None:
    at = next(number for number, row in enumerate(log.rows(), start=1) if json.loads(row)["type"] == "RootQualified")
    (digest,) = json.loads(log.rows()[at - 1])["payload"]["blocks"]
    log.rewrite_blocks(at, digest, edited(ROOT, 1))
    found = problems(log.opened())
    assert {problem.position for problem in found} == {at}
    assert any(problem.what.startswith("i0000: the root's latencies") for problem in found)


@pytest.fixture(scope="module")
def noisy() -> Held:
    """A finished campaign with every kind of result in it, on a machine whose noise leaves some undecided."""
    with memory() as store:
        run_toy(store, CAMPAIGN, harness=simulated(seed=3, noise_ratio=0.02))
        return Held.of(store, CAMPAIGN)


def test_there_are_logs_with_every_result(noisy: Held) -> None:
    found = Counter(item.event.performance for item in noisy.events if isinstance(item.event, AuditCompleted))
    assert found[Performance.PROMOTABLE] > 1
    assert found[Performance.NO_GAIN] > 1
    assert found[Performance.UNDECIDED] > 0
    assert noisy.problems() == ()


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_edited_sample_of_any_session_is_named_though_all_is_hashed_anew(noisy: Held, data: st.DataObject) -> None:
    # given any sample of any screen or confirmation, one nanosecond off
    position, implementation, digest = data.draw(st.sampled_from(noisy.timed()))
    blocks = Blocks.from_bytes(noisy.blob(digest))
    arm = data.draw(st.sampled_from(blocks.arms))
    at = cast(Any, tuple(data.draw(st.integers(0, size - 1)) for size in blocks.samples_ns[arm].shape))
    sample = int(blocks.samples_ns[arm][at])
    # when everything is recomputed
    found = noisy.with_blocks(position, digest, edited(arm, sample + 1, at)).problems()
    # then that audit is named, and nothing else
    assert {problem.position for problem in found} == {position}
    assert any(problem.what.startswith(f"{implementation}: its ") for problem in found)


def test_a_screen_that_says_otherwise_than_what_was_done_is_named(noisy: Held) -> None:
    # given a screen in which a confirmed candidate is twice as slow, and one in which a loser is twice as fast
    both = [item for item in noisy.events if isinstance(item.event, AuditCompleted) and item.event.measurement]
    confirmed = next(item for item in both if item.event.measurement.confirmation)  # type: ignore[union-attr]
    ruled_out = next(item for item in both if not item.event.measurement.confirmation)  # type: ignore[union-attr]
    for recorded, factor, said in ((confirmed, 2.0, "rule out what was"), (ruled_out, 0.5, "leave a gain open")):
        digest = recorded.event.measurement.blocks[0]  # type: ignore[union-attr]

        def scaled(blocks: Blocks, factor: float = factor) -> Blocks:
            samples = dict(blocks.samples_ns)
            samples[CANDIDATE] = (samples[CANDIDATE] * factor).astype(np.uint32)
            return replace(blocks, samples_ns=MappingProxyType(samples))

        # when / then
        found = noisy.with_blocks(recorded.position, digest, scaled).problems()
        assert any(f"the blocks of its screen {said}" in problem.what for problem in found)


def test_a_log_does_not_become_older_from_one_event_to_the_next(noisy: Held) -> None:
    # given an edited screen, and no figures of its session that would say so
    position, implementation, digest = noisy.timed()[-2]
    older = noisy.with_blocks(position, digest, edited(CANDIDATE, 1)).without_sessions(position)
    # then it is named for what it lacks, and so is the root, whose audit came before and timed nothing
    assert any(
        problem.position == position and problem.what.startswith(f"{implementation}: the figures of its timing")
        for problem in older.problems()
    )
    position, root, _ = noisy.timed()[0]
    assert any(
        problem.position == position and problem.what.startswith(f"{root}: the figures of its timing")
        for problem in noisy.without_sessions(position).problems()
    )


def test_a_confirmed_measurement_without_its_screen_is_named(noisy: Held) -> None:
    # given the events of every confirmed candidate
    for recorded in noisy.events:
        event = recorded.event
        if isinstance(event, AuditCompleted) and event.measurement and event.measurement.confirmation:
            # when the screen and its figures are left out
            screenless = noisy.without_screen(recorded.position)
            # then
            assert any(
                problem.position == recorded.position and "blocks of 1 timing sessions, not of screen" in problem.what
                for problem in screenless.problems()
            )


def test_a_log_without_figures_of_sessions_is_sound_unless_this_very_version_wrote_it(
    noisy: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a log of before they were recorded
    old = noisy
    for recorded in noisy.events:
        if isinstance(recorded.event, AuditCompleted | TimingCompleted | RootQualified):
            old = old.without_sessions(recorded.position)
    positions = {position for position, _, _ in noisy.timed()}
    assert old.problems() == ()
    # when it says that it was written by the version that reads it
    opened = noisy.events[0].event
    assert isinstance(opened, CampaignOpened)
    monkeypatch.setattr(evidence_check, "harness_digest", lambda *_: opened.specification.contract.harness_digest)
    # then it lacks what that version records
    assert {problem.position for problem in old.problems()} >= positions


@pytest.mark.parametrize(
    "edit",
    [
        lambda blocks: replace(blocks, samples_ns={INCUMBENT: blocks.samples_ns[INCUMBENT]}, paired=(INCUMBENT,)),
        lambda blocks: replace(blocks, workloads=tuple(f"{name} of another" for name in blocks.workloads)),
        lambda blocks: replace(blocks, calls=(0,) * len(blocks.calls)),
    ],
)
def test_blocks_of_something_else_are_named_and_end_nothing(log: Log, edit: Edit) -> None:
    position, implementation, digest = log.promotable()
    log.rewrite_blocks(position, digest, edit)
    (problem,) = problems(log.opened())
    assert problem.position == position
    assert problem.what.startswith(f"{implementation}: its blocks ")


def test_any_sample_edited_without_rehashing_is_named_with_its_implementation(log: Log) -> None:
    # given one of the slowest samples, which no estimate rests on, longer by a nanosecond
    position, implementation, digest = log.promotable()
    blocks = Blocks.from_bytes(log.blob(digest))
    samples = blocks.samples_ns[CANDIDATE]
    slowest = np.unravel_index(int(samples.argmax()), samples.shape)
    at = (int(slowest[0]), int(slowest[1]), int(slowest[2]), int(slowest[3]))
    log.overwrite(digest, edited(CANDIDATE, int(samples[at]) + 1, at)(blocks).to_bytes())
    # then the bytes no longer have the digest that the audit cites
    (problem,) = problems(log.opened())
    assert problem.position == position
    assert problem.what.startswith(f"{implementation}: the blob {digest} was changed")


@pytest.mark.parametrize(
    ("field", "value"), [("speedup_ratio", 99.0), ("gain_ratio", 2.0), ("objective_s", 1e-9), ("replaces", "i0003")]
)
def test_a_promotion_with_other_figures_than_its_measurement_is_named(log: Log, field: str, value: object) -> None:
    found_at = next(
        number for number, row in enumerate(log.rows(), start=1) if json.loads(row)["type"] == "ImplementationPromoted"
    )
    implementation = json.loads(log.rows()[found_at - 1])["payload"]["implementation"]
    log.rewrite(found_at, lambda payload: payload.update({field: value}))
    first = problems(log.opened())[0]
    assert first.position == found_at
    assert first.what.startswith(f"{implementation}: promoted ")


@pytest.mark.parametrize(
    ("field", "value"), [("ratio", 0.5), ("alpha", 0.5), ("delta_ratio", 0.004), ("confirmation", 9)]
)
def test_a_figure_of_a_measurement_that_its_blocks_do_not_give_is_named(log: Log, field: str, value: object) -> None:
    position, implementation, _ = log.promotable()
    log.rewrite(position, lambda payload: payload["measurement"].update({field: value}))
    first = problems(log.opened())[0]
    assert first.position == position
    assert first.what.startswith(f"{implementation}: recorded ")


def test_the_log_says_all_that_a_promotion_rests_on(log: Log) -> None:
    # every promotion has its audit, that audit its blocks, and they have all arms: the incumbent may be the root
    store = log.opened()
    events = [recorded.event for recorded in store.read(CAMPAIGN)]
    audits = {event.implementation: event for event in events if isinstance(event, AuditCompleted)}
    promoted = [event for event in events if isinstance(event, ImplementationPromoted)]
    assert promoted
    for event in promoted:
        measurement = audits[event.implementation].measurement
        assert measurement is not None
        beside = {ROOT} if measurement.incumbent != ROOT_ID else set()
        assert set(Blocks.from_bytes(store.blob(measurement.blocks[-1])).arms) == {INCUMBENT, CANDIDATE} | beside
    assert next(event for event in events if isinstance(event, RootQualified)).blocks
    store.close()
