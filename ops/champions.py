"""Champions and where they were measured: who is told that a best may not hold on this machine, and what to do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from kernelbraid.agents.auditor import environment_of
from kernelbraid.agents.requalify import environment_changes
from kernelbraid.agents.search import HarnessFactory
from kernelbraid.events.state import State, fold
from kernelbraid.events.store import CampaignRow, Store
from kernelbraid.events.values import ROOT, Environment
from kernelbraid.kernels.audit.auditing import Auditing
from kernelbraid.kernels.operators.operator import Operator
from kernelbraid.ops.collector import uncollected
from kernelbraid.ops.report.best import REPORT_JSON
from kernelbraid.ops.report.figures import plain
from kernelbraid.ops.terminal import tell
from kernelbraid.ops.wiring import store_words

SHIPPED = "best"
"""Below an operator's target: the folder of a shipped best, as `best --out` writes it."""
CAMPAIGNS_LOOKED_AT = 3


@dataclass(frozen=True, slots=True)
class Champion:
    """A best, the environment that its figures hold for, and the command that judges it in another one."""

    what: str
    environment: Environment
    next_step: str


Find = Callable[[Operator, str], Champion | None]


def warning_of(factory: HarnessFactory, find: Find) -> HarnessFactory:
    """The factory, whose harness tells on stderr if the champion was measured in another environment."""

    @contextmanager
    def made(operator: Operator, target: str) -> Iterator[Auditing]:
        with factory(operator, target) as running:
            warn(find(operator, target), environment_of(running.environment()))
            yield running

    return made


def warn(champion: Champion | None, here: Environment) -> None:
    """Name what differs, and the next step; nothing where nothing does."""
    changes = () if champion is None else environment_changes(champion.environment, here)
    if champion is None or not changes:
        return
    tell(f"warning: {champion.what} was measured in another environment, so its figures may not hold here:")
    for change in changes:
        tell(f"  {plain(change)}")
    tell(f"next:  {champion.next_step}")


def of_campaign(store: Store, name: str) -> Champion | None:
    """The campaign's best; None before its root qualified."""
    with uncollected():
        state = fold(store.read(name))
    return None if state.best is None else _of_state(store, state)


def known(store: Store) -> Find:
    """For an operator and target: the shipped best, else the best of the campaigns in this store that ended last."""
    return lambda operator, target: shipped(operator, target) or _last_found(store, operator, target)


def shipped(operator: Operator, target: str) -> Champion | None:
    """The best that comes with the operator, if one does. A report that cannot be read counts as none."""
    folder = operator.folder / target / SHIPPED
    report = _report(folder / REPORT_JSON)
    if report is None:
        return None
    try:
        environment = Environment.model_validate(report["environment"])
    except (KeyError, ValidationError):
        return None
    next_step = f"kernelbraid audit {operator.address} {folder} --target {target}"
    return Champion(f"the shipped best of {operator.name}", environment, next_step)


def _report(path: Path) -> dict[str, Any] | None:
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return found if isinstance(found, dict) else None


def _last_found(store: Store, operator: Operator, target: str) -> Champion | None:
    rows = sorted(store.campaigns(), key=lambda row: _ended(store, row), reverse=True)
    same = (row for row in rows if _searched(store, row) == (operator.address, target))
    for _, row in zip(range(CAMPAIGNS_LOOKED_AT), same, strict=False):
        with uncollected():
            state = fold(store.read(row.name))
        if state.best not in (None, ROOT):
            return _of_state(store, state)
        if state.best == ROOT and state.forked_from is not None:
            return None  # what its origin had found was judged again, and did not hold
    return None


def _ended(store: Store, row: CampaignRow) -> float:
    """When its last event was recorded, in seconds since the epoch."""
    return store.tail(row.name, row.position - 1)[-1].recorded_at.timestamp()


def _searched(store: Store, row: CampaignRow) -> tuple[str, str]:
    """Operator and target; a fork searches what its origin does."""
    contract = fold(store.read(row.name, upto=1)).specified().contract
    return contract.operator, contract.target


def _of_state(store: Store, state: State) -> Champion:
    assert state.environment is not None, "a campaign opens with its environment"
    what = f"the best of {state.campaign} ({state.best}, {state.speedup_ratio:.2f}x of the root)"
    return Champion(what, state.environment, f"kernelbraid requalify {state.campaign}{store_words(store)}")
