"""The editor: writes the complete offspring of an open action."""

from kernelbraid.agents.strategy import Desk, Draft
from kernelbraid.events import decider
from kernelbraid.events.blobs import digest_of
from kernelbraid.events.errors import RuleBroken
from kernelbraid.events.event import Decision
from kernelbraid.events.search import ImplementationSubmitted
from kernelbraid.events.state import State
from kernelbraid.events.values import EntryPath, Region, SourceFile
from kernelbraid.kernels.operators.operator import Operator, Sources
from kernelbraid.kernels.operators.regions import FRAME, Refused, region_digests


def edit(state: State, action_id: str, desk: Desk) -> Decision | None:
    """Submit the action's offspring, or say why there is none; None when the action needs no edit any more."""
    action = state.actions[action_id]
    if not edit_due(state, action_id):
        return None
    try:
        draft = desk.editor.edit(state, action, desk)
        events = decider.submit_implementation(state, _submission(state, action_id, draft, desk))
    except (Refused, RuleBroken) as error:
        return Decision("editor", action.proposed_at, decider.fail_edit(state, action_id, str(error)))
    return Decision("editor", action.proposed_at, events, source_blobs(draft.sources))


def edit_due(state: State, action_id: str) -> bool:
    """Whether the action is open and has no offspring yet."""
    action = state.actions[action_id]
    return action_id in state.open_actions and action.implementation is None and state.status == "running"


def _submission(state: State, action_id: str, draft: Draft, desk: Desk) -> ImplementationSubmitted:
    return ImplementationSubmitted(
        action=action_id,
        implementation=state.next_implementation,
        sources=source_files(draft.sources),
        regions=declared_regions(desk.operator, draft.sources),
        mechanisms=draft.mechanisms,
        contract_items=draft.contract_items,
    )


def source_files(sources: Sources) -> tuple[SourceFile, ...]:
    """The files by name, with the digests of their texts."""
    return tuple(SourceFile(name=name, digest=digest_of(text.encode())) for name, text in sorted(sources.items()))


def source_blobs(sources: Sources) -> tuple[bytes, ...]:
    """The texts as blobs, in the order of `source_files`."""
    return tuple(text.encode() for _, text in sorted(sources.items()))


def declared_regions(operator: Operator, sources: Sources) -> tuple[Region, ...]:
    """Each region with the paths that operator.toml declares for it.

    The source does not get to say which path a region serves. What is not declared belongs to both.
    """
    paths: dict[str, tuple[EntryPath, ...]] = {region.name: region.paths for region in operator.regions}
    both: tuple[EntryPath, ...] = ("full", "decode")
    return tuple(
        Region(name=name, paths=both if name == FRAME else paths.get(name, both), digest=digest)
        for name, digest in sorted(region_digests(sources).items())
    )
