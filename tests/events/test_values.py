"""What identifies a machine: a digest that verdicts cite, and that a resume must find again."""

import pytest

from kernelbraid.events import decider
from kernelbraid.events.campaign import CampaignResumed
from kernelbraid.events.values import Environment, environment_digest
from tests.events.given import DIGESTS, ENVIRONMENT, search, specification

MEASURED_AGAIN = ENVIRONMENT.model_copy(update={"physics": {"bandwidth_bytes_per_s": 2e10}})


def test_measured_ceilings_do_not_make_it_another_machine() -> None:
    # given: a campaign opened here
    story = search()
    # when / then: the ceilings were measured anew, and neither a resume nor a fork finds another machine
    assert environment_digest(MEASURED_AGAIN) == environment_digest(ENVIRONMENT)
    story.when(decider.resume, MEASURED_AGAIN).then(CampaignResumed())
    (forked,) = decider.fork(story.state, "hash", specification(seed=2), MEASURED_AGAIN, DIGESTS)
    assert not forked.model_dump()["stale"]


@pytest.mark.parametrize("change", [{"device": "an accelerator"}, {"packages": {"driver": "1"}}, {"simd_bits": 128}])
def test_whatever_a_verdict_depends_on_does(change: dict[str, object]) -> None:
    elsewhere = Environment.model_validate(ENVIRONMENT.model_dump() | change)
    assert environment_digest(elsewhere) != environment_digest(ENVIRONMENT)
    search().when(decider.resume, elsewhere).then_refused("fork it")
