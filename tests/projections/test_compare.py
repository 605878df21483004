"""Two campaigns side by side."""

import pytest

from kernelbraid.projections.compare import Comparison, common_ancestor, compare
from kernelbraid.projections.lineage import LINEAGE, lineage
from kernelbraid.projections.projection import STATE, rebuild
from kernelbraid.projections.summary import ForkOrigin
from tests.projections.factory import Story


def comparison(left: Story, right: Story) -> Comparison:
    """The two stories side by side."""
    views = [rebuild(story.log, STATE, LINEAGE) for story in (left, right)]
    graphs = [lineage(view[STATE], view[LINEAGE]) for view in views]
    return compare(views[0][STATE], views[1][STATE], *graphs)


def trunk() -> Story:
    """A campaign with one promotion."""
    story = Story("trunk").begin(kappa=4)
    story.offspring("simd_width", 2.0)
    return story


def test_a_fork_and_its_origin_share_what_was_before() -> None:
    origin, child = trunk(), trunk()
    shared = len(origin.log)
    origin.offspring("unroll", 2.5, "i0001")
    child.fork("child", kappa=9)
    child.offspring("kv_tile", 4.0, "i0001")

    view = comparison(origin, child)

    assert view.common == ForkOrigin(campaign="trunk", position=shared)
    assert [change.key for change in view.differences] == ["policy.kappa"]
    assert view.comparable
    assert view.best_ratio == pytest.approx(1.6)
    assert [item.mechanisms[-1] for item in view.left.own_promotions] == ["unroll"]
    assert [item.mechanisms[-1] for item in view.right.own_promotions] == ["kv_tile"]


def test_other_machines_cannot_be_compared_by_latency() -> None:
    child = trunk()
    child.fork("child", machine="another")

    view = comparison(trunk(), child)

    assert not view.same_environment
    assert not view.comparable
    assert view.best_ratio is None


def test_strangers_have_nothing_in_common() -> None:
    left, right = Story("one").begin(), Story("two").begin()

    assert comparison(left, right).common is None


@pytest.mark.parametrize(
    ("left", "right", "shared"),
    [
        ([("a", 9)], [("a", 9)], ("a", 9)),
        ([("a", 4), ("b", 9)], [("a", 6), ("c", 9)], ("a", 4)),
        ([("a", 4), ("b", 9)], [("a", 4), ("c", 9)], ("a", 4)),
        ([("a", 4), ("b", 7), ("c", 9)], [("a", 4), ("b", 8)], ("b", 7)),
        ([("a", 9)], [("a", 4), ("b", 9)], ("a", 4)),
    ],
)
def test_the_common_ancestor_is_the_last_shared_event(
    left: list[tuple[str, int]], right: list[tuple[str, int]], shared: tuple[str, int]
) -> None:
    origin = ForkOrigin(campaign=shared[0], position=shared[1])

    assert common_ancestor(tuple(left), tuple(right)) == origin
    assert common_ancestor(tuple(right), tuple(left)) == origin
