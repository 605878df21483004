"""What a driver and its rounds work with."""

from dataclasses import dataclass

from kernelbraid.agents.campaign import Campaign
from kernelbraid.agents.strategy import Desk
from kernelbraid.kernels.audit.auditing import Auditing


@dataclass(frozen=True, slots=True)
class Crew:
    """The campaign, what agents see, and the harness."""

    campaign: Campaign
    desk: Desk
    harness: Auditing
