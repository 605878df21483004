"""Start a search, or go on with one: where store, operator, strategies and harness are wired together."""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from kernelbraid.agents.auditor import environment_of
from kernelbraid.agents.campaign import Campaign, Watch
from kernelbraid.agents.catalogue.brancher import CatalogueBrancher
from kernelbraid.agents.catalogue.editor import CatalogueEditor
from kernelbraid.agents.catalogue.planner import CataloguePlanner
from kernelbraid.agents.crew import Crew
from kernelbraid.agents.driver import PauseRequested, drive, never, take_up
from kernelbraid.agents.editor import declared_regions, source_blobs, source_files
from kernelbraid.agents.strategy import BrancherStrategy, Desk, EditorStrategy, PlannerStrategy
from kernelbraid.events import decider
from kernelbraid.events.blobs import digest_of
from kernelbraid.events.campaign import CampaignOpened
from kernelbraid.events.errors import CampaignExists, CampaignMissing, KernelbraidError
from kernelbraid.events.event import Decision
from kernelbraid.events.state import State, fold
from kernelbraid.events.store import Store, driver_lease
from kernelbraid.events.values import Contract, Digests, Environment, Policy, Specification, StopReason, Workload
from kernelbraid.kernels.audit.auditing import Auditing
from kernelbraid.kernels.audit.opening import open_harness
from kernelbraid.kernels.operators.catalogue import catalogue_digest, load_catalogue
from kernelbraid.kernels.operators.operator import Operator, OperatorMissing, load_operator
from kernelbraid.projections.summary import CampaignSummary, summary

TARGETS = ("cpu", "triton")
HarnessFactory = Callable[[Operator, str], AbstractContextManager[Auditing]]


class PolicyRefused(KernelbraidError):
    """A policy has no such key, or the key no such value."""


@dataclass(frozen=True, slots=True)
class Strategies:
    """The judgement of each agent; by default the catalogue's."""

    planner: PlannerStrategy
    editor: EditorStrategy
    brancher: BrancherStrategy

    def names(self) -> dict[str, str]:
        """The policy keys that say whose judgement a campaign follows."""
        return {"planner": self.planner.name, "brancher": self.brancher.name}


def catalogue_strategies() -> Strategies:
    """Planner, editor and brancher that need no model."""
    return Strategies(CataloguePlanner(), CatalogueEditor(), CatalogueBrancher())


def native_harness(operator: Operator, target: str) -> AbstractContextManager[Auditing]:
    """The harness of this machine for the target."""
    return open_harness(operator, target)


def run(
    operator: str,
    *,
    store: Store,
    target: str = "cpu",
    policy: Policy | None = None,
    name: str | None = None,
    strategies: Strategies | None = None,
    harness: HarnessFactory = native_harness,
    watch: Watch | None = None,
    pause_requested: PauseRequested = never,
    **limits: object,
) -> CampaignSummary:
    """Open a campaign and drive it until it stops or is paused.

    `operator` is a packaged operator's name or a folder with an operator.toml. `limits` set single policy keys, such
    as audits=40, kappa=30, parallel=2, seed=0 or wall_s=60.

    Raises OperatorError, MissingToolchain, StoreError, DriverPresent, NoProgress, PlanWithoutEnd.
    """
    strategies = strategies or catalogue_strategies()
    chosen = changed_policy(policy or Policy(), {**strategies.names(), **limits})
    declared = load_operator(operator, target)
    require_target(declared, target)
    with harness(declared, target) as running:
        desk = make_desk(store, declared, target, strategies)
        campaign = open_campaign(store, desk, environment_of(running.environment()), chosen, name)
        return _drive(store, campaign, desk, running, watch, pause_requested, None)


def resume(
    campaign: str,
    *,
    store: Store,
    operator: str | None = None,
    strategies: Strategies | None = None,
    harness: HarnessFactory = native_harness,
    watch: Watch | None = None,
    pause_requested: PauseRequested = never,
    reason: str = "resumed",
) -> CampaignSummary:
    """Drive a paused, interrupted or freshly forked campaign on, on the machine it was measured on.

    `operator` is where the campaign's own operator lies, if no longer where it was begun.

    Raises CampaignMissing, OperatorMissing, RuleBroken (stopped, or another environment), DriverPresent.
    """
    specified = fold(store.read(campaign)).specified()
    contract, strategies = specified.contract, strategies or catalogue_strategies()
    require_strategies(specified.policy, strategies)
    declared = operator_of(contract, operator)
    require_declaration(contract, declared)
    desk = make_desk(store, declared, contract.target, strategies)
    with harness(desk.operator, contract.target) as running:
        return _drive(store, campaign, desk, running, watch, pause_requested, reason)


def _drive(
    store: Store,
    name: str,
    desk: Desk,
    running: Auditing,
    watch: Watch | None,
    pause_requested: PauseRequested,
    resumed: str | None,
) -> CampaignSummary:
    with driver_lease(store, name):
        campaign = Campaign(store, name, watch)
        crew = Crew(campaign, desk, running)
        if resumed is not None:
            take_up(crew, environment_of(running.environment()), resumed)
        drive(crew, pause_requested)
        return campaign.read(lambda state: summary(state, driven=True))


def require_target(operator: Operator, target: str) -> None:
    """Refuse a target that cannot be searched here."""
    if target not in TARGETS or target not in operator.targets():
        raise KernelbraidError(
            f"{operator.name} has no {target} implementation to search; it has: {operator.targets()}"
        )


def operator_of(contract: Contract, folder: str | None = None) -> Operator:
    """A campaign's operator, where its contract says or in another folder. Raises OperatorMissing."""
    try:
        return load_operator(folder or contract.operator, contract.target)
    except OperatorMissing as error:
        if folder is not None:
            raise
        raise OperatorMissing(
            f"the campaign's operator is no longer at {contract.operator}, or that is another machine's folder: "
            "name its folder here with --operator"
        ) from error


def require_declaration(contract: Contract, declared: Operator) -> None:
    """Refuse to go on under another declaration than the campaign was opened with."""
    if digest_of(declared.declaration.encode()) != contract.declaration_digest:
        raise KernelbraidError(
            f"{declared.folder / 'operator.toml'} is not what the campaign was begun with: put it back, "
            "or `fork --here` to judge root, best and frontier by today's"
        )


def require_strategies(policy: Policy, strategies: Strategies) -> None:
    """Refuse to go on with other judgement than the campaign was opened with."""
    for key, name in strategies.names().items():
        if getattr(policy, key) != name:
            raise KernelbraidError(
                f"the campaign's {key} is {getattr(policy, key)!r}, not {name!r}: pass its strategies from Python, "
                "or fork it to go on with others"
            )


def changed_policy(policy: Policy, changes: Mapping[str, object]) -> Policy:
    """The policy with some keys set anew. Raises PolicyRefused for a key that is none, or a value that is off."""
    unknown = sorted(set(changes) - set(Policy.model_fields))
    if unknown:
        known = ", ".join(Policy.model_fields)
        raise PolicyRefused(f"{', '.join(unknown)} is no policy key; these are: {known}")
    try:
        return Policy.model_validate({**policy.model_dump(), **changes})
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise PolicyRefused(f"a policy key has no such value: {wrong}") from error


def make_desk(store: Store, operator: Operator, target: str, strategies: Strategies) -> Desk:
    """What the agents look at besides the state."""
    return Desk(
        operator=operator,
        target=target,
        catalogue=load_catalogue(operator, target),
        read_blob=store.blob,
        planner=strategies.planner,
        editor=strategies.editor,
        brancher=strategies.brancher,
    )


# --- opening -------------------------------------------------------------------------------------------------------


def open_campaign(store: Store, desk: Desk, environment: Environment, policy: Policy, name: str | None = None) -> str:
    """Append CampaignOpened under `name`, or under the operator's next free one; returns the name."""
    sources = desk.operator.root_sources(desk.target)
    opened = CampaignOpened(
        specification=specification(desk, environment, policy),
        environment=environment,
        digests=code_digests(desk),
        sources=source_files(sources),
        regions=declared_regions(desk.operator, sources),
    )
    decision = Decision("driver", 0, decider.open_campaign(State(), opened), source_blobs(sources))
    if name is not None:
        store.append(name, 0, decision)
        return name
    return _append_under_free_name(store, desk.operator.name, decision)


def _append_under_free_name(store: Store, operator: str, decision: Decision) -> str:
    number = 1 + sum(row.name.startswith(f"{operator}-") for row in store.campaigns())
    while True:
        name = f"{operator}-{number}"
        try:
            store.append(name, 0, decision)
        except CampaignExists:
            number += 1
        else:
            return name


def specification(desk: Desk, environment: Environment, policy: Policy) -> Specification:
    """The contract that the operator declares today, and the policy asked for."""
    contract = declared_contract(desk.operator, desk.target, environment)
    return Specification(contract=contract, policy=policy)


def declared_contract(declared: Operator, target: str, environment: Environment) -> Contract:
    """What a verdict on this operator means today."""
    return Contract(
        operator=declared.address,
        target=target,
        workloads=tuple(
            Workload(
                name=item.name,
                entry=item.entry,
                path=declared.entry(item.entry).path,
                dtype=declared.entry(item.entry).dtype,
                dims=dict(item.dims),
                weight=item.weight,
                limit_ratio=item.limit_ratio,
            )
            for item in declared.workloads
        ),
        numerical_contract=dict(declared.contract),
        declaration_digest=digest_of(declared.declaration.encode()),
        harness_digest=environment.harness_digest,
        toolchain_digest=environment.toolchain_digest,
    )


def code_digests(desk: Desk) -> Digests:
    """Digests of the code that decides today."""
    return Digests(
        catalogue=catalogue_digest(desk.operator, desk.target),
        templates=digest_of(b""),
        agents=_agents_digest(),
    )


def _agents_digest() -> str:
    folder = Path(__file__).parent
    files = sorted(folder.rglob("*.py"))
    body = b"\0".join(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() for path in files)
    return hashlib.sha256(body).hexdigest()


# --- from elsewhere ------------------------------------------------------------------------------------------------


def append_by_user(store: Store, name: str, decide: Callable[[State], Decision | None]) -> None:
    """Let somebody who does not drive the campaign append to it, beside its driver."""
    campaign_in(store, name).commit(decide)


def campaign_in(store: Store, name: str) -> Campaign:
    """A campaign of the store, to read and to append to. Raises CampaignMissing."""
    if not any(row.name == name for row in store.campaigns()):
        raise CampaignMissing(f"there is no campaign {name}: `kernelbraid list` shows what there is")
    return Campaign(store, name)


def note(store: Store, name: str, text: str) -> None:
    """Write a note into a campaign."""
    append_by_user(store, name, lambda state: Decision("user", state.fact_position, decider.note(state, text)))


def pause(store: Store, name: str, reason: str = "asked for by the user") -> None:
    """Ask for a pause: running audits finish, nothing new starts. Raises RuleBroken."""
    append_by_user(store, name, lambda state: Decision("user", state.fact_position, decider.pause(state, reason)))


def stop(store: Store, name: str, detail: str = "") -> None:
    """End a campaign for good. Raises RuleBroken."""
    append_by_user(
        store,
        name,
        lambda state: Decision("user", state.fact_position, decider.stop(state, StopReason.USER, detail)),
    )
