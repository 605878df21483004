"""Fork a campaign by reference: one event row, and one for every action that was open."""

from collections.abc import Mapping

from kernelbraid.agents.auditor import environment_of
from kernelbraid.agents.outside import require_sandbox_for
from kernelbraid.agents.search import (
    Strategies,
    catalogue_strategies,
    changed_policy,
    code_digests,
    make_desk,
    operator_of,
    specification,
)
from kernelbraid.events import decider
from kernelbraid.events.event import Decision
from kernelbraid.events.state import State, fold
from kernelbraid.events.store import Store
from kernelbraid.events.values import Specification
from kernelbraid.kernels.audit.auditing import Auditing


def fork(
    parent: str,
    *,
    store: Store,
    at: int | None = None,
    name: str | None = None,
    changes: Mapping[str, object] | None = None,
    harness: Auditing | None = None,
    operator: str | None = None,
    strategies: Strategies | None = None,
    reaudit: bool = False,
    archive: bool = False,
) -> str:
    """Begin a child after the parent's position `at` (its end by default); returns the child's name.

    `changes` are policy keys, such as {"kappa": 50, "audits": 20}. Given a harness, the child holds for its machine
    and for the contract declared today; where that differs from the parent's, root, best and frontier are audited
    again before any action; `reaudit` does so in any case, and `archive` adds the archive. `operator` is where the
    campaign's own operator lies, if not where it was begun. Nothing of the parent is changed.

    Raises CampaignMissing, OperatorMissing, PositionMissing, RuleBroken (kappa spent), PolicyRefused (a key or value
    that is none), SandboxMissing (something came from outside, and the harness has no sandbox).
    """
    state = fold(store.read(parent, upto=at))
    return fork_state(
        state,
        store=store,
        name=name,
        changes=changes,
        harness=harness,
        operator=operator,
        strategies=strategies,
        reaudit=reaudit,
        archive=archive,
    )


def fork_state(
    state: State,
    *,
    store: Store,
    name: str | None = None,
    changes: Mapping[str, object] | None = None,
    harness: Auditing | None = None,
    operator: str | None = None,
    strategies: Strategies | None = None,
    reaudit: bool = False,
    archive: bool = False,
    unsafe_no_sandbox: bool = False,
) -> str:
    """`fork` for a caller that has folded the parent up to the position already.

    `unsafe_no_sandbox` lets a harness without a sandbox judge what came from outside.
    """
    contract = state.specified().contract
    chosen = strategies or catalogue_strategies()
    policy = changed_policy(state.specified().policy, {**chosen.names(), **(changes or {})})
    desk = make_desk(store, operator_of(contract, operator), contract.target, chosen)
    after, environment = Specification(contract=contract, policy=policy), state.environment
    if harness is not None:
        environment = environment_of(harness.environment())
        if not unsafe_no_sandbox:
            require_sandbox_for(state, environment)
        after = specification(desk, environment, policy)
    assert environment is not None
    parent_hash = store.hash_at(state.campaign, state.position)
    digests = code_digests(desk)
    events = decider.fork(state, parent_hash, after, environment, digests, reaudit=reaudit, archive=archive)
    child = name or _free_name(store, state.campaign)
    store.fork(state.campaign, state.position, child, Decision("driver", state.fact_position, events))
    return child


def _free_name(store: Store, parent: str) -> str:
    taken = {row.name for row in store.campaigns()}
    number = 1
    while f"{parent}.{number}" in taken:
        number += 1
    return f"{parent}.{number}"
