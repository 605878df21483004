"""Kill anywhere: a driver that dies at any moment loses nothing and repeats nothing."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from kernelbraid.agents import search
from kernelbraid.agents.replay import replay_strict
from kernelbraid.events.audit import AuditCompleted, ImplementationPromoted
from kernelbraid.events.campaign import CampaignPaused, CampaignResumed, CampaignStopped
from kernelbraid.events.errors import CampaignMissing, DriverPresent
from kernelbraid.events.search import ActionProposed, EditFailed, ImplementationSubmitted, OpportunityRaised
from kernelbraid.events.state import fold
from kernelbraid.events.store import Head, Store, driver_lease, driver_of, open_store
from tests.campaign import toy
from tests.campaign.driver import DRIVER_PRESENT
from tests.campaign.toy import REPOSITORY, events_of, memory, run_toy, simulated, story

KILLED = -signal.SIGKILL
GROWTH_S = 2
"""How long to wait for a log to grow: near its end it does not grow as far as planned."""
PATIENCE_S = 60
"""How long a driver may take to its first events before it counts as stuck."""


class Drivers:
    """Starts drivers in processes of their own, through one process that has imported everything.

    What they write to standard error goes to the file `errors`.
    """

    def __init__(self, errors: IO[str]) -> None:
        command = [sys.executable, "-m", "tests.campaign.driver"]
        self._errors = errors
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, cwd=REPOSITORY
        )

    def _ask(self, **order: Any) -> dict[str, int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"no process to start drivers: {self.said()}"
        answer: dict[str, int] = json.loads(line)
        return answer

    def said(self) -> str:
        """The end of what all drivers together wrote to standard error."""
        size_bytes = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), 8192, max(0, size_bytes - 8192)).decode(errors="replace")

    def start(self, **order: Any) -> int:
        """A new driver's process id."""
        return self._ask(**order)["pid"]

    def wait(self, pid: int) -> int:
        """The exit status of a driver, negative for a signal."""
        return self._ask(do="wait", pid=pid)["status"]

    def close(self) -> None:
        """End the process that starts them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    """Drivers for the whole module."""
    with tempfile.TemporaryFile("w+") as errors:
        started = Drivers(errors)
        yield started
        started.close()


@dataclass
class Killing:
    """One campaign on a file of its own whose drivers are killed, by a seeded plan; `store` is this process's view."""

    drivers: Drivers
    store: Store
    policy: dict[str, int]
    moments: random.Random = field(default_factory=random.Random)
    kills: int = 0
    acknowledged: list[Head] = field(default_factory=list)

    @property
    def position(self) -> int:
        """The campaign's last position, 0 before it was opened."""
        return max((row.position for row in self.store.campaigns()), default=0)

    @property
    def status(self) -> str:
        """The campaign's status, or "" before it was opened."""
        return fold(self.store.read("toy")).status if self.position else ""

    def order(self) -> dict[str, Any]:
        """Run first, resume ever after."""
        return {"do": "resume" if self.position else "run", "url": self.store.url, "policy": self.policy}

    def kill_once(self) -> None:
        """Start a driver and kill it: beside one of its next appends, or a while after the log has grown."""
        beside_an_append = self.moments.random() < 0.5
        if beside_an_append:
            when = {"appends": self.moments.randint(1, 5), "after": self.moments.random() < 0.5}
            status = self.drivers.wait(self.drivers.start(**self.order(), **when))
        else:
            status = self._killed_from_outside()
        self.kills += status == KILLED
        assert status in (KILLED, 0), self.drivers.said()
        self._note_head()

    def _killed_from_outside(self) -> int:
        before, growth = self.position, self.moments.randint(1, 6)
        pid = self.drivers.start(**self.order())
        deadline = time.monotonic() + GROWTH_S
        while self.position < before + growth and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(self.moments.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
        return self.drivers.wait(pid)

    def _note_head(self) -> None:
        if self.position:
            self.acknowledged.append(self.store.head("toy"))

    def at_work(self, events: int, slow_s: float) -> int:
        """The process id of a driver with slow audits that has written so many events."""
        pid = self.drivers.start(**self.order(), slow_s=slow_s)
        deadline = time.monotonic() + PATIENCE_S
        while self.position < events:
            assert alive(pid), f"the driver ended at position {self.position}: {self.drivers.said()}"
            assert time.monotonic() < deadline, f"the driver is stuck at position {self.position}"
            time.sleep(0.005)
        return pid

    def finish(self) -> None:
        """Resume until the campaign is stopped."""
        if self.status != "stopped":
            assert self.drivers.wait(self.drivers.start(**self.order())) == 0, self.drivers.said()
        assert self.status == "stopped", self.drivers.said()


def alive(pid: int) -> bool:
    """Whether a process still runs; what has ended and waits to be asked for its status does not."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


@pytest.fixture
def killing(drivers: Drivers, tmp_path: Path) -> Iterator[Killing]:
    """A campaign of 14 audits that nobody has begun."""
    store = open_store(f"sqlite:///{tmp_path}/k.db")
    yield Killing(drivers, store, {"audits": 14})
    store.close()


@contextmanager
def killed(drivers: Drivers, folder: Path, policy: dict[str, int], kills: int, seed: int) -> Iterator[list[Killing]]:
    """Campaigns whose drivers were killed so often, all of them driven to their end.

    Each of them sees a kill at least, so that there are never more campaigns than kills.
    """
    moments = random.Random(seed)
    campaigns: list[Killing] = []
    with ExitStack() as stores:
        while (left := kills - sum(item.kills for item in campaigns)) > 0:
            store = open_store(f"sqlite:///{folder}/{len(campaigns)}.db")
            stores.callback(store.close)
            campaigns.append(Killing(drivers, store, policy, moments))
            kill_often(campaigns[-1], left)
            assert campaigns[-1].kills, f"a campaign ended before any kill: {drivers.said()}"
        yield campaigns


def kill_often(campaign: Killing, most: int) -> None:
    """Kill its drivers at most so often, while it has any, and let the last one end it.

    A driver that is not killed ends the campaign: were it to end by itself otherwise, resuming would never stop.
    """
    while campaign.kills < most and campaign.status != "stopped":
        before = campaign.kills
        campaign.kill_once()
        assert campaign.kills > before or campaign.status == "stopped", campaign.drivers.said()
    campaign.finish()


# --- kill -9 -------------------------------------------------------------------------------------------------------


def uninterrupted() -> list[tuple[Any, ...]]:
    """What a campaign of 14 audits says that nobody interrupts."""
    with memory() as store:
        run_toy(store, audits=14)
        return story(store.read("toy"))


@pytest.mark.parametrize(("kills", "seed"), [(30, 1), pytest.param(300, 2, marks=pytest.mark.soak)])
def test_one_audit_at_a_time_kills_leave_no_trace_but_resumes(
    drivers: Drivers, tmp_path: Path, kills: int, seed: int
) -> None:
    # given drivers that are killed at random moments, also between an append and its return
    with killed(drivers, tmp_path, {"audits": 14}, kills, seed) as campaigns:
        # then what was found and decided equals the uninterrupted run's
        expected = uninterrupted()
        for campaign in campaigns:
            assert story(campaign.store.read("toy")) == expected
            nothing_lost(campaign)
        resumes = sum(len(events_of(campaign.store, "toy", CampaignResumed)) for campaign in campaigns)
        assert resumes > kills / 2


@pytest.mark.parametrize(("kills", "seed"), [(30, 3), pytest.param(300, 4, marks=pytest.mark.soak)])
def test_with_four_audits_at_a_time_kills_lose_and_repeat_nothing(
    drivers: Drivers, tmp_path: Path, kills: int, seed: int
) -> None:
    with killed(drivers, tmp_path, {"audits": 20, "parallel": 4}, kills, seed) as campaigns:
        for campaign in campaigns:
            nothing_lost(campaign)
            nothing_repeated(campaign.store)


def nothing_lost(campaign: Killing) -> None:
    """Every head that was seen is still there, the chain holds, and today's agents decide the log again."""
    store = campaign.store
    for head in campaign.acknowledged:
        assert store.hash_at("toy", head.position) == head.hash
    assert store.verify("toy").problems == ()
    report = replay_strict(store, "toy")
    assert report.divergence is None, report.divergence
    assert report.events == store.position("toy")


def nothing_repeated(store: Store) -> None:
    """One audit for an implementation, one ending for an action, one stop, and ids without gaps."""
    audits = Counter(event.implementation for event in events_of(store, "toy", AuditCompleted))
    submissions = Counter(event.action for event in events_of(store, "toy", ImplementationSubmitted))
    failures = Counter(event.action for event in events_of(store, "toy", EditFailed))
    promotions = Counter(event.implementation for event in events_of(store, "toy", ImplementationPromoted))
    assert set((audits | submissions | failures | promotions).values()) == {1}
    assert not set(submissions) & set(failures)
    assert len(events_of(store, "toy", CampaignStopped)) == 1
    numbered(audits, "i", 0)
    numbered([event.implementation for event in events_of(store, "toy", ImplementationSubmitted)], "i", 1)
    numbered([event.action for event in events_of(store, "toy", ActionProposed)], "a", 1)
    numbered([event.opportunity for event in events_of(store, "toy", OpportunityRaised)], "o", 1)
    state = fold(store.read("toy"))
    assert not state.open_actions
    assert not state.retimings
    assert not state.undecided_branches


def numbered(ids: Any, letter: str, first: int) -> None:
    """The ids count from `first` without a gap."""
    assert sorted(ids) == [f"{letter}{number:04d}" for number in range(first, first + len(ids))]


@pytest.mark.soak
@pytest.mark.timing
def test_with_real_audits_kills_lose_and_repeat_nothing_and_leave_no_process(killing: Killing) -> None:
    # given a search on this machine whose driver is killed five times, wherever it then is
    killing.policy = {"audits": 8}
    moments = random.Random(5)
    for _ in range(5):
        pid = killing.drivers.start(**killing.order(), real=True)
        time.sleep(moments.uniform(0.7, 2.5))
        under_way = descendants(pid)
        os.kill(pid, signal.SIGKILL)
        assert killing.drivers.wait(pid) == KILLED
        gone(under_way)
        killing._note_head()
    assert killing.drivers.wait(killing.drivers.start(**killing.order(), real=True)) == 0
    # then the log is whole and nothing was recorded twice
    nothing_lost(killing)
    nothing_repeated(killing.store)
    assert len(events_of(killing.store, "toy", AuditCompleted)) == 1 + 8


def descendants(pid: int) -> list[int]:
    """The processes below one, at this moment."""
    try:
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [process for child in map(int, below) for process in (child, *descendants(child))]


def gone(processes: list[int]) -> None:
    """All of them end within five seconds."""
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{process}").exists() for process in processes):
        assert time.monotonic() < deadline, processes
        time.sleep(0.02)


# --- SIGTERM and Ctrl-C --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_pauses_after_the_running_audit_and_a_resume_tells_the_same_story(
    killing: Killing, number: signal.Signals
) -> None:
    # given a driver that is asked to end in the middle of an audit
    pid = killing.at_work(events=20, slow_s=0.06)
    os.kill(pid, number)
    # then it pauses by itself, with nothing left open, and says why
    assert killing.drivers.wait(pid) == 0
    assert killing.status == "paused"
    assert events_of(killing.store, "toy", CampaignPaused)[0].reason == number.name
    assert not fold(killing.store.read("toy")).open_actions
    # and the resumed campaign equals the uninterrupted one
    killing.finish()
    assert story(killing.store.read("toy")) == uninterrupted()


def test_a_request_to_pause_lets_every_running_audit_finish() -> None:
    with memory() as store:
        asked = iter([None, None, "asked"])
        summary = run_toy(store, parallel=4, pause_requested=lambda: next(asked))
        state = fold(store.read("toy"))
        assert (summary.status, summary.pause_reason) == ("paused", "asked")
        assert not state.open_actions
        assert len(state.actions) == len(events_of(store, "toy", (ImplementationSubmitted, EditFailed)))


# --- one driver ----------------------------------------------------------------------------------------------------


def test_a_second_driver_is_refused_while_notes_and_stops_get_through(killing: Killing) -> None:
    # given a driver at work
    first, store = killing.at_work(events=8, slow_s=0.15), killing.store
    assert driver_of(store, "toy") == first
    # when another process wants to drive, it is refused, and so is this one
    second = killing.drivers.start(**killing.order())
    assert killing.drivers.wait(second) == DRIVER_PRESENT
    with pytest.raises(DriverPresent, match=f"process {first}"):
        search.resume("toy", store=store, harness=simulated())
    # but a note and a stop from here get in
    search.note(store, "toy", "from elsewhere")
    search.stop(store, "toy", "enough")
    assert killing.drivers.wait(first) == 0
    assert killing.status == "stopped"
    assert driver_of(store, "toy") is None
    assert replay_strict(store, "toy").divergence is None


def test_the_lease_is_free_the_moment_its_driver_is_killed(killing: Killing) -> None:
    pid = killing.at_work(events=8, slow_s=0.1)
    os.kill(pid, signal.SIGKILL)
    assert killing.drivers.wait(pid) == KILLED
    assert driver_of(killing.store, "toy") is None
    with driver_lease(killing.store, "toy"):
        pass


def test_no_machine_is_asked_when_the_campaign_cannot_be_resumed() -> None:
    with memory() as store, pytest.raises(CampaignMissing):
        search.resume("toy", store=store, harness=toy.no_harness)
