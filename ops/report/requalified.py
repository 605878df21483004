"""What a requalification came to, in words and as JSON."""

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kernelbraid.agents.requalify import Claim, Holding, Interval, Requalification, Standing
from kernelbraid.ops.report.figures import plain, times


def requalification_parts(found: Requalification, store_words: str) -> Iterator[RenderableType]:
    """Everything `requalify` prints, part by part."""
    yield Text("\n".join(_beginning(found)))
    yield claim_table(found)
    yield Text("\n".join(_ending(found, store_words)))


def _beginning(found: Requalification) -> Iterator[str]:
    yield f"{found.parent} at {found.at}, judged again as {found.campaign}"
    if not found.differences:
        yield "  nothing differs: the same machine, compiler and contract as then"
    yield from (f"  {plain(change)}" for change in found.differences)


def claim_table(found: Requalification) -> Table:
    """Every claim: root over it with its 95 % interval, then and now, and what that means."""
    table = Table(title="root over it, weighted (95 % interval)", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("implementation", "as", "then", "now", "claim"):
        table.add_column(heading, no_wrap=True)
    for claim in found.claims:
        table.add_row(claim.implementation, claim.role, _standing(claim.then), _standing(claim.now), _claim(claim))
    return table


def _standing(standing: Standing) -> str:
    if standing.verdict is None:
        return "-"
    return str(standing.verdict) if standing.speedup is None else _interval(standing.speedup)


def _interval(interval: Interval) -> str:
    bounds = f"  ({interval.low:.2f} to {interval.high:.2f})" if interval.low < interval.high else ""
    return times(interval.ratio) + bounds


def _claim(claim: Claim) -> str:
    holding = claim.holding.value.replace("_", " ")
    return f"{holding}: {plain(claim.why)}" if claim.why else holding


def _ending(found: Requalification, store_words: str) -> Iterator[str]:
    counts = {holding: sum(claim.holding is holding for claim in found.claims) for holding in Holding}
    yield ", ".join(f"{holding.value.replace('_', ' ')} {count}" for holding, count in counts.items() if count)
    verb = "still holds" if found.holds else "does not hold here"
    yield f"best: {found.best_then} {verb}; the best here is {found.best_now or 'not known'}"
    if not found.complete:
        yield f"not complete: {found.stop_reason or found.pause_reason}"
    yield "next:"
    if found.stop_reason is None:
        yield f"  kernelbraid resume {found.campaign}{store_words}"
    yield f"  kernelbraid show {found.campaign} {found.best_then}{store_words}"
    yield f"  kernelbraid compare {found.parent} {found.campaign}{store_words}"


def requalification_json(found: Requalification) -> dict[str, Any]:
    """All of it; a speedup is root over the implementation by weighted latency."""
    return {
        "campaign": found.campaign,
        "parent": found.parent,
        "at": found.at,
        "differences": list(found.differences),
        "holds": found.holds,
        "best_then": found.best_then,
        "best_now": found.best_now,
        "complete": found.complete,
        "pause_reason": found.pause_reason,
        "stop_reason": found.stop_reason,
        "claims": [
            {
                "implementation": claim.implementation,
                "role": claim.role,
                "then": _standing_json(claim.then),
                "now": _standing_json(claim.now),
                "claim": claim.holding.value,
                "why": claim.why,
            }
            for claim in found.claims
        ],
    }


def _standing_json(standing: Standing) -> dict[str, Any]:
    speedup = standing.speedup
    return {
        "verdict": standing.verdict,
        "performance": standing.performance,
        "speedup_ratio": None if speedup is None else speedup.ratio,
        "speedup_low_ratio": None if speedup is None else speedup.low,
        "speedup_high_ratio": None if speedup is None else speedup.high,
    }
