"""Re-qualification: a champion is true for the environment it was measured in, so judge it again in today's.

The campaign is forked at its end for this machine, compiler and contract; root, best and frontier (with `archive` the
archive too) are audited again by the rules of every fork, which promote what wins. No action is started: the child is
left paused, and a resume searches on from it. Then each recorded claim is held against what was measured now.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np

from kernelbraid.agents.campaign import Campaign, Watch
from kernelbraid.agents.crew import Crew
from kernelbraid.agents.driver import PauseRequested, never
from kernelbraid.agents.forking import fork_state
from kernelbraid.agents.search import (
    HarnessFactory,
    Strategies,
    catalogue_strategies,
    make_desk,
    native_harness,
    operator_of,
)
from kernelbraid.events import decider
from kernelbraid.events.errors import EventInvalid, KernelbraidError
from kernelbraid.events.event import Decision
from kernelbraid.events.state import Implementation, State, fold
from kernelbraid.events.store import Store, driver_lease
from kernelbraid.events.values import ROOT, Contract, Correctness, Environment, Performance
from kernelbraid.kernels.audit import outcome as found
from kernelbraid.kernels.audit.outcome import Blocks
from kernelbraid.kernels.audit.statistics import (
    LEAST_DELTA_RATIO,
    USUAL_BLOCK_ERROR,
    group_log_ratios,
    student_t_quantile,
)

DONE = "requalified: a resume searches on from here"
CONFIDENCE = 0.95
LEAST_LOSS_RATIO = 0.03
"""A smaller loss is no news: whole sessions of the same artifacts differ by as much."""

Role = Literal["root", "best", "frontier", "archive"]


class Holding(StrEnum):
    """What became of a claim."""

    HOLDS = "holds"
    WEAKER = "weaker"
    FAILS = "fails"
    NOT_JUDGED = "not_judged"


@dataclass(frozen=True, slots=True)
class Interval:
    """Root over an implementation by weighted latency: the estimate, and its 95 % interval over groups of blocks."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Standing:
    """What was measured of an implementation in one environment; `speedup` is None unless it was verified."""

    verdict: Correctness | None
    performance: Performance | None
    speedup: Interval | None


@dataclass(frozen=True, slots=True)
class Claim:
    """One implementation, then and now."""

    implementation: str
    role: Role
    then: Standing
    now: Standing
    holding: Holding
    why: str


@dataclass(frozen=True, slots=True)
class Requalification:
    """What still holds. `campaign` is the child that holds for today's environment; `at` is the parent's end.

    `differences` names what is another than then; it may be empty, as a requalification needs no reason.
    """

    campaign: str
    parent: str
    at: int
    differences: tuple[str, ...]
    claims: tuple[Claim, ...]
    best_then: str
    best_now: str | None
    complete: bool
    """Whether everything due was judged; else `pause_reason` or `stop_reason` says why not."""
    pause_reason: str | None
    stop_reason: str | None

    @property
    def best(self) -> Claim:
        """The claim of the implementation that was the best."""
        return next(claim for claim in self.claims if claim.implementation == self.best_then)

    @property
    def holds(self) -> bool:
        """Whether the best is still the best, and as much faster than the root as was recorded."""
        return self.best.holding is Holding.HOLDS


def requalify(
    campaign: str,
    *,
    store: Store,
    archive: bool = False,
    name: str | None = None,
    operator: str | None = None,
    strategies: Strategies | None = None,
    harness: HarnessFactory = native_harness,
    watch: Watch | None = None,
    pause_requested: PauseRequested = never,
    unsafe_no_sandbox: bool = False,
) -> Requalification:
    """Fork a campaign at its end for this environment, and audit root, best and frontier again.

    `operator` is where the campaign's own operator lies, if not where it was begun. A spent kappa is raised by one, as
    nothing is tried. Asked to pause, it stops between two audits. Without a sandbox, what came from outside is judged
    only if `unsafe_no_sandbox` says so.

    Raises CampaignMissing, OperatorMissing, MissingToolchain, DriverPresent, SandboxMissing, KernelbraidError (there is
    no best).
    """
    before = fold(store.read(campaign))
    if before.best is None:
        raise KernelbraidError(
            f"nothing in {campaign} holds for any environment yet: resume it until its root qualified"
        )
    contract, strategies = before.specified().contract, strategies or catalogue_strategies()
    declared = operator_of(contract, operator)
    with harness(declared, contract.target) as running:
        child = fork_state(
            before,
            store=store,
            name=name,
            changes=_room(before),
            harness=running,
            operator=operator,
            strategies=strategies,
            reaudit=True,
            archive=archive,
            unsafe_no_sandbox=unsafe_no_sandbox,
        )
        with driver_lease(store, child):
            crew = Crew(Campaign(store, child, watch), make_desk(store, declared, contract.target, strategies), running)
            judge_all_again(crew, pause_requested)
    return compared(before, fold(store.read(child)), store.blob)


def _room(state: State) -> Mapping[str, object]:
    """The one policy key that a fork may have to change: nothing starts at a spent kappa."""
    kappa = state.specified().policy.kappa
    return {"kappa": state.kappa + 1} if state.kappa >= kappa else {}


def judge_all_again(crew: Crew, pause_requested: PauseRequested = never) -> None:
    """Audit all that is stale, then pause: nothing new is tried."""
    # LangGraph takes a second to load, and only a driver needs it.
    from kernelbraid.agents.graph import judge_again

    reason = pause_requested()
    while reason is None and judge_again(crew):
        reason = pause_requested()
    crew.campaign.commit(lambda state: _paused(state, reason or DONE))


def _paused(state: State, reason: str) -> Decision | None:
    if state.status not in ("opening", "running"):
        return None
    return Decision("driver", state.fact_position, decider.pause(state, reason))


# --- then and now --------------------------------------------------------------------------------------------------


def compared(before: State, after: State, read_blob: Callable[[str], bytes]) -> Requalification:
    """Every claim of `before` against what `after`, its requalified child, has measured."""
    assert before.best is not None, "claims are made of what qualified"
    judged = [name for name in _due(before, after) if name in before.implementations]
    claims = tuple(_claim(before, after, name, read_blob) for name in judged)
    return Requalification(
        campaign=after.campaign,
        parent=before.campaign,
        at=before.position,
        differences=differences(before, after),
        claims=claims,
        best_then=before.best,
        best_now=after.best,
        complete=not after.stale,
        pause_reason=after.pause_reason or None,
        stop_reason=after.stop_reason,
    )


def _due(before: State, after: State) -> Iterator[str]:
    """What the child was to judge again, in that order."""
    assert before.best is not None
    archived = (name for name in before.archive if name in after.stale or not after.implementations[name].stale)
    yield from dict.fromkeys([ROOT, before.best, *before.frontier, *archived])


def _claim(before: State, after: State, name: str, read_blob: Callable[[str], bytes]) -> Claim:
    then, now = _standing(before, name, read_blob), _standing(after, name, read_blob)
    holding, why = held(then, now)
    if holding is Holding.HOLDS and name == before.best != after.best:
        holding, why = Holding.WEAKER, f"{after.best} is the best here"
    return Claim(name, _role(before, name), then, now, holding, why)


def _role(state: State, name: str) -> Role:
    if name == state.best:
        return "best"
    if name == ROOT:
        return "root"
    return "frontier" if name in state.frontier else "archive"


def held(then: Standing, now: Standing) -> tuple[Holding, str]:
    """Whether what was recorded then still holds, and why not."""
    if now.verdict is None:
        return Holding.NOT_JUDGED, "it was not audited here"
    if now.verdict is not Correctness.VERIFIED:
        return Holding.FAILS, f"{now.verdict} here"
    if then.speedup is None or now.speedup is None:
        return Holding.HOLDS, ""
    less = now.speedup.high < then.speedup.low and now.speedup.ratio < then.speedup.ratio * (1 - LEAST_LOSS_RATIO)
    if then.speedup.low > 1 and (now.speedup.ratio < 1 + LEAST_DELTA_RATIO or (less and now.speedup.low <= 1)):
        return Holding.FAILS, "it is not shown to be faster than the root here"
    if less:
        return Holding.WEAKER, f"{100 * (1 - now.speedup.ratio / then.speedup.ratio):.0f} % less against the root"
    return Holding.HOLDS, ""


def _standing(state: State, name: str, read_blob: Callable[[str], bytes]) -> Standing:
    node = state.implementations[name]
    if node.stale or name in state.stale:
        return Standing(None, None, None)
    speedup = None
    if node.verdict is Correctness.VERIFIED:
        logs = speedup_logs(state, node, read_blob)
        recorded = None if node.measurement is None else node.measurement.speedup_ratio
        speedup = _interval(logs, recorded)
    return Standing(node.verdict, node.performance, speedup)


@dataclass(frozen=True, slots=True)
class SpeedupLogs:
    """Log of root over an implementation: mean, its squared standard error and the degrees of freedom."""

    mean: float
    variance: float
    degrees: int


def speedup_logs(state: State, node: Implementation, read_blob: Callable[[str], bytes]) -> SpeedupLogs:
    """From the blocks alone; an implementation that was timed beside its incumbent only goes by way of that.

    Raises EventInvalid where they are of no rule that is known here.
    """
    if node.measurement is None:
        return SpeedupLogs(0.0, 0.0, 0)
    weights = _weights(state.specified().contract)
    blocks, incumbent = _blocks(node, read_blob(node.measurement.blocks[-1])), node.measurement.incumbent
    if found.ROOT in blocks.arms:
        return _logs(blocks, weights, found.ROOT)
    own = _logs(blocks, weights, found.INCUMBENT)
    beside = speedup_logs(state, state.implementations[incumbent], read_blob)
    degrees = min(own.degrees, beside.degrees or own.degrees)
    return SpeedupLogs(own.mean + beside.mean, own.variance + beside.variance, degrees)


def _blocks(node: Implementation, stored: bytes) -> Blocks:
    """Raises EventInvalid, with what to do."""
    try:
        return Blocks.from_bytes(stored)
    except ValueError as error:
        next_step = "audit its sources alone with `kernelbraid audit`"
        raise EventInvalid(f"{node.id}: {error}; what was measured by it cannot be compared: {next_step}") from error


def _weights(contract: Contract) -> Mapping[str, float]:
    return {workload.name: workload.weight for workload in contract.workloads}


def _logs(blocks: Blocks, weights: Mapping[str, float], arm: str) -> SpeedupLogs:
    logs = -group_log_ratios(blocks, weights, found.CANDIDATE, arm)
    if len(logs) < 2:  # A screen that short tells of no scatter; one block's seldom is less than the usual one.
        return SpeedupLogs(float(logs[0]), USUAL_BLOCK_ERROR**2, 1)
    return SpeedupLogs(float(np.mean(logs)), float(np.var(logs, ddof=1)) / len(logs), len(logs) - 1)


def _interval(logs: SpeedupLogs, recorded: float | None) -> Interval:
    """The estimate is the recorded one where there is one: a median over the groups, so the interval includes it."""
    width = student_t_quantile((1 + CONFIDENCE) / 2, logs.degrees) * math.sqrt(logs.variance) if logs.degrees else 0.0
    low, high = math.exp(logs.mean - width), math.exp(logs.mean + width)
    ratio = math.exp(logs.mean) if recorded is None else recorded
    return Interval(ratio, min(low, ratio), max(high, ratio))


# --- what is another than then -------------------------------------------------------------------------------------


def differences(before: State, after: State) -> tuple[str, ...]:
    """What the child's environment and contract have otherwise than its parent's, in words."""
    assert before.environment is not None
    assert after.environment is not None
    old, new = before.specified().contract, after.specified().contract
    changed = [key for key in _DECLARED if getattr(old, key) != getattr(new, key)]
    return (*environment_changes(before.environment, after.environment), *(_DECLARED[key] for key in changed))


_DECLARED: Mapping[str, str] = {
    "workloads": "other workloads",
    "numerical_contract": "another numerical contract",
    "declaration_digest": "another operator.toml",
}


def environment_changes(before: Environment, after: Environment) -> tuple[str, ...]:
    """Every field that differs and that a verdict depends on, such as `compiler_version 12.2.0 -> 13.1.0`."""
    return tuple(
        _DIGESTED.get(name) or f"{name} {_change(getattr(before, name), getattr(after, name))}"
        for name in Environment.model_fields
        if name != "physics" and getattr(before, name) != getattr(after, name)
    )


_DIGESTED: Mapping[str, str] = {
    "harness_digest": "another audit harness",
    "toolchain_digest": "another toolchain, by its files or settings",
}


def _change(before: object, after: object) -> str:
    """What became what; of flags and packages only those that differ."""
    if isinstance(before, tuple) and isinstance(after, tuple):
        gone, come = [part for part in before if part not in after], [part for part in after if part not in before]
        parts = (f"without {' '.join(gone)}" if gone else "", f"with {' '.join(come)}" if come else "")
        return " and ".join(filter(None, parts)) or "in another order"
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = (key for key in {**before, **after} if before.get(key) != after.get(key))
        return ", ".join(f"{key} {before.get(key, 'none')} -> {after.get(key, 'none')}" for key in keys)
    return f"{before or 'none'} -> {after or 'none'}"
