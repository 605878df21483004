"""kernelbraid: search for fast kernels whose full-sequence and decode paths agree bit for bit.

The same as the command line, from Python:

    from kernelbraid import open_store, run
    summary = run("attention", store=open_store(), audits=40)
"""

from kernelbraid.agents.audit import AuditReport, audit
from kernelbraid.agents.forking import fork
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
    "replay_strict",
    "requalify",
    "resume",
    "run",
    "state_digest",
    "stop",
    "summary",
]
