"""An empty store for every test of the agents."""

from collections.abc import Iterator

import pytest

from kernelbraid.events.store import Store
from tests.campaign.toy import memory


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store in memory."""
    with memory() as opened:
        yield opened
