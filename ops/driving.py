"""Driving a campaign from the command line: progress while it runs, the outcome when it ends."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from kernelbraid.agents.campaign import Watch
from kernelbraid.agents.driver import PauseRequested
from kernelbraid.events.campaign import RootQualified
from kernelbraid.events.event import Recorded
from kernelbraid.events.state import State
from kernelbraid.events.store import Store
from kernelbraid.kernels.audit.sandbox import SandboxKind
from kernelbraid.ops.exits import ExitCode, OpsError
from kernelbraid.ops.logging import logger
from kernelbraid.ops.metrics.server import serving
from kernelbraid.ops.progress.live import LiveProgress
from kernelbraid.ops.progress.plain import PlainProgress, Progress
from kernelbraid.ops.report.best import write_best
from kernelbraid.ops.report.outcome import outcome
from kernelbraid.ops.signals import Interruption
from kernelbraid.ops.terminal import console, emit, is_terminal, tell
from kernelbraid.ops.wiring import from_here, store_folder, store_words
from kernelbraid.projections.performance import PERFORMANCE, performance_table
from kernelbraid.projections.projection import STATE, rebuild
from kernelbraid.projections.summary import CampaignSummary

Start = Callable[[Store, Watch, PauseRequested], CampaignSummary]
"""Drives a campaign in a store, telling of every event and asking whether to pause."""


def drive(store: Store, start: Start, *, json: bool, metrics_port: int | None = None) -> ExitCode:
    """Drive until the campaign stops or is paused, then say what it came to."""
    with ExitStack() as stack:
        watchers: list[Watch] = [logged, warned_of_sandbox]
        driven = store
        if metrics_port is not None:
            driven, watcher = stack.enter_context(serving(store, metrics_port))
            watchers.append(watcher)
        interruption = stack.enter_context(Interruption())
        progress = stack.enter_context(progress_view())
        summary = start(driven, watch_all(progress.take, *watchers), interruption.reason)
    _conclude(store, summary, json)
    if interruption.reason() is not None and summary.status != "stopped":
        return ExitCode.INTERRUPTED
    return ExitCode.FAILURE if summary.stop_reason == "root_unqualified" else ExitCode.OK


def progress_view() -> Progress:
    """The live view where a person looks, else lines."""
    return LiveProgress() if is_terminal(sys.stderr) else PlainProgress()


def watch_all(*watchers: Watch) -> Watch:
    """One watch that tells all of them, in this order."""

    def watch(recorded: Recorded, state: State) -> None:
        for watcher in watchers:
            watcher(recorded, state)

    return watch


def logged(recorded: Recorded, state: State) -> None:
    """Every event as a diagnostic entry, with campaign, position and action bound."""
    bound = {"campaign": state.campaign, "position": recorded.position, "actor": recorded.actor}
    action = getattr(recorded.event, "action", None)
    logger().info(type(recorded.event).__name__, **bound, **({} if action is None else {"action": action}))


def warned_of_sandbox(recorded: Recorded, state: State) -> None:
    """Say once a qualification that nothing keeps the candidates in."""
    unboxed = state.environment is not None and state.environment.sandbox == SandboxKind.NONE
    if unboxed and isinstance(recorded.event, RootQualified):
        tell("WARNING: no sandbox here: candidates run with your rights. Only the package's own catalogue may run so.")


def _conclude(store: Store, summary: CampaignSummary, json: bool) -> None:
    sources = _keep_best(store, summary)
    if json:
        emit(summary.model_dump(mode="json"))
        return
    folded = rebuild(store.read(summary.campaign), STATE, PERFORMANCE)
    terminal = console(sys.stdout)
    for part in outcome(summary, performance_table(folded[STATE], folded[PERFORMANCE]), sources, store_words(store)):
        terminal.print(part)


def _keep_best(store: Store, summary: CampaignSummary) -> Path | None:
    """Where the best's sources and evidence were written: beside the store, a folder for each best."""
    folder = store_folder(store)
    if folder is None or summary.best is None or summary.counts.promoted == 0:
        return None
    into = folder / "best" / summary.campaign / summary.best.implementation
    try:
        write_best(store, summary.campaign, into)
    except OpsError as error:
        # The search itself succeeded, so its outcome is still told.
        tell(f"the best's sources were not kept: {error}")
        tell(f"next:  kernelbraid best {summary.campaign} --out DIR{store_words(store)}")
        return None
    return from_here(into)
