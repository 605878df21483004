"""What a timing session saw beside its samples: what cannot be, by the auditor's clock, is evidence.

A child's own clock is advice. How long preparing a message took tells whether something ran on.
"""

from dataclasses import dataclass, field
from statistics import median

import numpy as np

from kernelbraid.kernels.audit.cuda.device import Conditions
from kernelbraid.kernels.audit.outcome import CANDIDATE

DISPUTED_RATIO, DISPUTED_NS = 0.25, 200_000
LATE_RATIO, LATE_NS = 1.05, 20_000
"""Medians over a session: a child's time may fall so far below the auditor's above its floor, or pass the auditor's."""
_LEAST_PAIRS = 4
BUSY_RATIO, BUSY_NS = 1.5, 100_000


@dataclass
class Record:
    """What a session saw beside its samples."""

    conditions: list[Conditions] = field(default_factory=list)
    dropped_blocks: int = 0
    advisory_ns: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)
    """By arm and workload: the auditor's time and the child's."""
    sweeps_ns: dict[str, list[int]] = field(default_factory=dict)
    """By the arm that ran before: how long preparing the next message took."""

    def disputed(self, arm: str, floor_ns: float) -> str | None:
        """Evidence when an arm's own clock cannot be right beside the auditor's around it.

        More than the auditor's: it answered before its kernels had ended. Less than the auditor's above its floor: it
        is no clock. What lies between is what a launch costs, which partly passes while kernels run.
        """
        for (timed, workload), pairs in self.advisory_ns.items():
            wall_ns, own_ns = (median(pair[side] for pair in pairs) for side in (0, 1))
            least_ns = (1 - DISPUTED_RATIO) * (wall_ns - floor_ns) - DISPUTED_NS
            if timed == arm and not least_ns <= own_ns <= LATE_RATIO * wall_ns + LATE_NS:
                own, wall, floor = (f"{time_ns / 1000:.1f} us" for time_ns in (own_ns, wall_ns, floor_ns))
                return f"workload {workload}: its events span {own}, the auditor's clock {wall} with a floor of {floor}"
        return None

    def disturbed(self, floor_ns: float) -> str | None:
        """The same of an arm that is known to be sound: then something else was on the device, or on the cores.

        Of one that was timed a few times only, the median tells nothing.
        """
        arms = {arm for (arm, _), pairs in self.advisory_ns.items() if len(pairs) >= _LEAST_PAIRS} - {CANDIDATE}
        found = ((arm, self.disputed(arm, floor_ns)) for arm in sorted(arms))
        return next((f"{arm}, {evidence}: something else is using them" for arm, evidence in found if evidence), None)

    def kept_busy(self) -> str | None:
        """Evidence when the device was slower to prepare after the candidate than after the other arms.

        By the lower quartiles: a kernel that runs on is always in the way, this machine's scheduler now and then.
        """
        own = self.sweeps_ns.get(CANDIDATE, [])
        others = [taken for arm, times in self.sweeps_ns.items() if arm != CANDIDATE for taken in times]
        if len(own) < 8 or len(others) < 8:
            return None
        after_own, after_others = (float(np.quantile(times, 0.25)) for times in (own, others))
        if after_own <= BUSY_RATIO * after_others + BUSY_NS:
            return None
        return (
            f"preparing the next message took {after_own / 1000:.0f} us after it, {after_others / 1000:.0f} otherwise"
        )

    def summary(self) -> dict[str, float]:
        """Clocks and temperature over the session, as facts of the audit."""
        if not self.conditions:
            return {}
        clocks = [now.sm_mhz for now in self.conditions]
        return {
            "sm_mhz_least": min(clocks),
            "sm_mhz_most": max(clocks),
            "memory_mhz": self.conditions[-1].memory_mhz,
            "temperature_c_most": max(now.temperature_c for now in self.conditions),
            "dropped_blocks": self.dropped_blocks,
        }
