"""kernelbraid: search for fast kernels whose full-sequence and decode paths agree bit for bit.

The same as the command line, from Python:

    from kernelbraid import open_store, run
    summary = run("attention", store=open_store(), audits=40)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelbraid.agents.audit import AuditReport, audit
    from kernelbraid.agents.forking import fork
    from kernelbraid.agents.outside import HandedIn, propose
    from kernelbraid.agents.replay import ReplayReport, replay_strict
    from kernelbraid.agents.requalify import Requalification, requalify
    from kernelbraid.agents.search import Strategies, catalogue_strategies, note, pause, resume, run, stop
    from kernelbraid.events.errors import KernelbraidError
    from kernelbraid.events.state import State, fold
    from kernelbraid.events.store import Store, open_store
    from kernelbraid.projections.digest import state_digest
    from kernelbraid.projections.summary import CampaignSummary, summary

__version__ = "0.1.0"

__all__ = [
    "AuditReport",
    "CampaignSummary",
    "HandedIn",
    "KernelbraidError",
    "ReplayReport",
    "Requalification",
    "State",
    "Store",
    "Strategies",
    "audit",
    "catalogue_strategies",
    "fold",
    "fork",
    "note",
    "open_store",
    "pause",
    "propose",
    "replay_strict",
    "requalify",
    "resume",
    "run",
    "state_digest",
    "stop",
    "summary",
]

_HOMES = {
    "agents.audit": ("AuditReport", "audit"),
    "agents.forking": ("fork",),
    "agents.outside": ("HandedIn", "propose"),
    "agents.replay": ("ReplayReport", "replay_strict"),
    "agents.requalify": ("Requalification", "requalify"),
    "agents.search": ("Strategies", "catalogue_strategies", "note", "pause", "resume", "run", "stop"),
    "events.errors": ("KernelbraidError",),
    "events.state": ("State", "fold"),
    "events.store": ("Store", "open_store"),
    "projections.digest": ("state_digest",),
    "projections.summary": ("CampaignSummary", "summary"),
}

if not TYPE_CHECKING:  # or a type checker would believe in every name

    def __getattr__(name: str) -> object:
        """A name of the door, imported when it is first asked for: a process that only folds a log needs no agents."""
        for home, names in _HOMES.items():
            if name in names:
                offered: object = getattr(import_module(f"{__name__}.{home}"), name)
                globals()[name] = offered
                return offered
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
