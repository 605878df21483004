"""What a driver and its rounds work with."""

from dataclasses import dataclass

from kernelbraid.agents.auditor import Harness
from kernelbraid.agents.campaign import Campaign
from kernelbraid.agents.strategy import Desk


@dataclass(frozen=True, slots=True)
class Crew:
    """The campaign, what agents see, and the harness."""

    campaign: Campaign
    desk: Desk
    harness: Harness
