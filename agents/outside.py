"""Work from outside: a person or another program hands in a complete offspring, and it is audited like any other.

Everything enters by one append, beside the campaign's driver or while nobody drives it. What was handed in is an
external fact: a replay takes it from the log and asks the rules alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from kernelbraid.agents.audit import sources_at
from kernelbraid.agents.catalogue.evidence import common_ancestor
from kernelbraid.agents.editor import declared_regions, source_blobs, source_files
from kernelbraid.agents.search import campaign_in, operator_of, require_declaration
from kernelbraid.events import decider
from kernelbraid.events.errors import KernelbraidError
from kernelbraid.events.event import Decision
from kernelbraid.events.search import ActionProposed, ImplementationSubmitted, OpportunityRaised
from kernelbraid.events.state import State
from kernelbraid.events.store import Store
from kernelbraid.events.values import Environment, Region, Scope, SourceFile
from kernelbraid.kernels.audit.environment import SANDBOX_NONE
from kernelbraid.kernels.operators.operator import Operator, Sources
from kernelbraid.kernels.operators.regions import Refused

STRATEGY = "outside"
MOST_FILES = 32
MOST_BYTES = 1 << 20
"""Of all files together: a kernel of several times this would be generated, and no one could read it."""
RISKS = "not stated"
FALSIFICATION = "a check that fails, or no lower weighted latency"


class OffspringRefused(KernelbraidError):
    """What was handed in is no complete offspring of its parents; the message says what to mend."""


class SandboxMissing(KernelbraidError):
    """The campaign's audits run without a sandbox, and sources from outside run in one only."""


@dataclass(frozen=True, slots=True)
class Offspring:
    """A complete implementation from outside, and what its author says of it."""

    sources: Sources
    parents: tuple[str, ...]
    scope: Scope
    rationale: str
    numerical_risks: str = RISKS
    falsification: str = FALSIFICATION


@dataclass(frozen=True, slots=True)
class HandedIn:
    """The ids under which an offspring entered, and the log's last position after it."""

    campaign: str
    opportunity: str
    action: str
    implementation: str
    position: int


def propose(
    campaign: str,
    sources: Sources | str | Path,
    *,
    store: Store,
    parents: tuple[str, ...],
    scope: Scope,
    rationale: str,
    numerical_risks: str = RISKS,
    falsification: str = FALSIFICATION,
    operator: str | None = None,
    unsafe_no_sandbox: bool = False,
) -> HandedIn:
    """Hand a complete offspring in; the campaign's driver audits it in its next round, or when it is resumed.

    `sources` is a folder, one file, or texts by file name; several `parents` make it a merge. `operator` is where the
    campaign's own operator lies, if not where it was begun. Where the campaign's audits run without a sandbox,
    `unsafe_no_sandbox` must say that this is meant.

    Raises CampaignMissing, SourcesMissing, OffspringRefused, SandboxMissing, OperatorError, and RuleBroken (stopped, a
    budget or kappa spent, a parent that is not verified, a change beyond the scope).
    """
    handle = campaign_in(store, campaign)
    contract = handle.read(lambda state: state.specified().contract)
    declared = operator_of(contract, operator)
    require_declaration(contract, declared)
    texts = sources_at(sources, contract.target)
    offspring = Offspring(texts, tuple(parents), scope, rationale, numerical_risks, falsification)
    for problem in problems(offspring, declared):
        raise OffspringRefused(problem)
    recorded = handle.commit(lambda state: handed_in(state, offspring, declared, unsafe_no_sandbox))
    raised, proposed, submitted = (item.event for item in recorded)
    assert isinstance(raised, OpportunityRaised)
    assert isinstance(proposed, ActionProposed)
    assert isinstance(submitted, ImplementationSubmitted)
    return HandedIn(campaign, raised.opportunity, proposed.action, submitted.implementation, recorded[-1].position)


def problems(offspring: Offspring, operator: Operator) -> Iterator[str]:
    """What keeps sources from being a complete implementation, as far as reading tells; the audit tells the rest."""
    files, size = len(offspring.sources), sum(len(text.encode()) for text in offspring.sources.values())
    if files > MOST_FILES or size > MOST_BYTES:
        yield f"{files} files of {size} bytes are too much: at most {MOST_FILES} files and {MOST_BYTES} bytes"
    whole = "\n".join(offspring.sources.values())
    if missing := [entry.symbol for entry in operator.entries if entry.symbol not in whole]:
        yield f"an offspring is complete, and this one lacks {', '.join(missing)}: every entry of {operator.name}"
    if operator.target != "cpu" and "kernel.py" not in offspring.sources:
        yield "its entries are functions of kernel.py, and there is none"
    if not offspring.rationale.strip():
        yield "it needs a rationale: why it should be faster, or what it opens"


def handed_in(state: State, offspring: Offspring, operator: Operator, unsafe_no_sandbox: bool = False) -> Decision:
    """The append that takes an offspring in. Raises OffspringRefused, SandboxMissing and RuleBroken."""
    _require_sandbox(state, unsafe_no_sandbox)
    _require_parents(state, offspring)
    regions = _regions(operator, offspring)
    events = decider.propose_offspring(
        state,
        _raised(state, offspring),
        _proposed(state, offspring),
        _submitted(state, offspring, regions, _settled(state, offspring, regions, operator)),
    )
    return Decision("user", state.fact_position, events, source_blobs(offspring.sources))


def _require_sandbox(state: State, unsafe_no_sandbox: bool) -> None:
    assert state.environment is not None, "a campaign has an environment from its first event on"
    if state.environment.sandbox == SANDBOX_NONE and not unsafe_no_sandbox:
        raise SandboxMissing(
            f"{state.campaign} audits without a sandbox: sources from outside would run with its driver's rights"
        )


def _require_parents(state: State, offspring: Offspring) -> None:
    if unknown := [parent for parent in offspring.parents if parent not in state.implementations]:
        last = next(reversed(state.implementations))
        raise OffspringRefused(f"{state.campaign} has no implementation {', '.join(unknown)}: {last} is the last")
    files = source_files(offspring.sources)
    if same := [parent for parent in offspring.parents if state.implementations[parent].sources == files]:
        raise OffspringRefused(f"these are the very sources of {same[0]}: change them first")


def _regions(operator: Operator, offspring: Offspring) -> tuple[Region, ...]:
    try:
        return declared_regions(operator, offspring.sources)
    except Refused as error:
        raise OffspringRefused(f"its regions cannot be read: {error}") from error


def _settled(state: State, offspring: Offspring, regions: tuple[Region, ...], operator: Operator) -> tuple[str, ...]:
    """The contract items of every region that differs from a parent's."""
    changed = {
        name
        for parent in offspring.parents
        for name, _ in decider.changed_regions(state.implementations[parent].regions, regions)
    }
    return tuple(dict.fromkeys(item for each in operator.regions if each.name in changed for item in each.contract))


def mechanism_of(action: str) -> str:
    """What an action from outside did, as a name: no catalogue has it, so no other offspring repeats it."""
    return f"{STRATEGY}_{action}"


def require_sandbox_for(state: State, environment: Environment) -> None:
    """Refuse to judge again, without a sandbox, what came from outside or derives from it, where one kept it in before.

    Raises SandboxMissing.
    """
    assert state.environment is not None, "a campaign has an environment from its first event on"
    if environment.sandbox != SANDBOX_NONE or state.environment.sandbox == SANDBOX_NONE:
        return
    named = {mechanism_of(action) for action in state.actions}
    for node in state.implementations.values():
        if node.verified and named & set(node.mechanisms):
            raise SandboxMissing(
                f"{node.id} came from outside, and no sandbox works here: it would run with your rights"
            )


def _raised(state: State, offspring: Offspring) -> OpportunityRaised:
    workloads = state.specified().contract.workloads
    return OpportunityRaised(
        opportunity=state.next_opportunity,
        mechanisms=(mechanism_of(state.next_action),),
        parents=offspring.parents,
        scope=offspring.scope,
        workloads=tuple(item.name for item in workloads if offspring.scope in ("joint", item.path)),
        evidence="handed in from outside, complete",
        rationale=offspring.rationale,
        expected_gain_ratio=1.0,
    )


def _proposed(state: State, offspring: Offspring) -> ActionProposed:
    parents = offspring.parents
    merge = len(parents) > 1
    return ActionProposed(
        action=state.next_action,
        opportunity=state.next_opportunity,
        parents=parents,
        ancestor=reduce(lambda left, right: common_ancestor(state, left, right), parents) if merge else None,
        scope=offspring.scope,
        rationale=offspring.rationale,
        numerical_risks=offspring.numerical_risks,
        falsification=offspring.falsification,
        strategy=STRATEGY,
    )


def _submitted(
    state: State, offspring: Offspring, regions: tuple[Region, ...], contract_items: tuple[str, ...]
) -> ImplementationSubmitted:
    inherited = (name for parent in offspring.parents for name in state.implementations[parent].mechanisms)
    files: tuple[SourceFile, ...] = source_files(offspring.sources)
    return ImplementationSubmitted(
        action=state.next_action,
        implementation=state.next_implementation,
        sources=files,
        regions=regions,
        mechanisms=(*dict.fromkeys(inherited), mechanism_of(state.next_action)),
        contract_items=contract_items,
    )
