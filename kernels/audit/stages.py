"""How long a candidate is timed: a screen that rules most of them out, then a confirmation with fresh blocks.

Both grow by whole groups until what they have to tell is told; the rules are in `statistics`, and anyone can repeat
them from the blocks.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from kernelbraid.kernels.audit import plan, statistics
from kernelbraid.kernels.audit.clock import Copy
from kernelbraid.kernels.audit.outcome import Blocks

GROUPS_ADDED = 1
COPIES_ADDED = 1
"""Copies in a group that a screen adds: which group it is in is nothing that a fresh process could know."""


class Timed(Protocol):
    """A timing session, of whatever device."""

    def run(self, plan: plan.Plan) -> Blocks:
        """Time a plan's groups, at the pace of the session's first ones."""
        ...

    def more(self, plan: plan.Plan, blocks: Blocks, groups: int) -> Blocks:
        """The blocks with further groups of the same plan, or of one without arms beside the pair."""
        ...


class Repeatable(Timed, Protocol):
    """One that has kept some of its timed calls."""

    copies: list[Copy]

    def verify_copies(self, most_references: int) -> int:
        """Make every copied call again where nothing is timed; how many there were. Raises CandidateFailed."""
        ...


def screen(session: Timed, weights: Mapping[str, float], wanted: plan.Plan = plan.SCREEN) -> Blocks:
    """A few groups, and one more at a time while it is open whether a gain is likely."""
    blocks = session.run(wanted)
    later = replace(wanted, copies=COPIES_ADDED)
    while blocks.groups < wanted.most_groups and statistics.needs_more_screening(blocks, weights):
        blocks = session.more(later, blocks, 1)
    return blocks


def confirm(
    session: Timed,
    weights: Mapping[str, float],
    limits: Mapping[str, float],
    wanted: plan.Plan = plan.CONFIRMATION,
    *,
    beside_root: bool = True,
) -> Blocks:
    """Groups of three arms, and more of them while there seems to be a gain and their error is too large to decide.

    There are two arms when the incumbent is the root itself, and in the groups that come late.
    """
    first = wanted if beside_root else wanted.alone()
    blocks = session.run(first)
    while blocks.groups < first.most_groups and statistics.needs_more_groups(blocks, weights, limits):
        blocks = session.more(first if blocks.groups < plan.BESIDE_GROUPS else first.alone(), blocks, GROUPS_ADDED)
    return blocks
