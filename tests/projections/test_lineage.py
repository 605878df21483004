"""The graph of derivations: complete, never moving, and readable in a terminal."""

from hypothesis import given, settings

from kernelbraid.events import decider
from kernelbraid.events.event import Recorded
from kernelbraid.projections.lineage import ASCII, LINEAGE, Lineage, lineage, tree_lines
from kernelbraid.projections.projection import STATE, Fold, rebuild
from tests.projections.factory import Story, golden_story, stories


def graph(log: list[Recorded]) -> Lineage:
    """The lineage of a whole log."""
    folded = rebuild(log, STATE, LINEAGE)
    return lineage(folded[STATE], folded[LINEAGE])


def test_the_tree_shows_verdicts_speed_merges_and_what_became_of_each() -> None:
    assert tree_lines(graph(golden_story().log)) == (
        "i0000  root  verified",
        "└─ i0001  ▲  simd_width  joint  promotable  2.00x",
        "   ├─ i0002  query_tile  full  no_gain  1.90x  archived, abandoned",
        "   │  └─ i0004  ▲  ⋈ i0002 + i0003  kv_tile  joint  promotable  3.00x",
        "   │     ├─ i0005  prefetch  joint  disagreement",
        "   │     ├─ i0006  ★  unroll  joint  promotable  3.30x",
        "   │     └─ i0007  prefetch  joint  no_gain  3.20x  archived",
        "   └─ i0003  kv_tile  decode  no_gain  1.95x",
    )


def test_a_plain_terminal_gets_a_plain_tree() -> None:
    assert all(line.isascii() for line in tree_lines(graph(golden_story().log), ASCII))


def test_a_deep_lineage_is_drawn() -> None:
    story = Story().begin(kappa=5000)
    parent = "i0000"
    for _ in range(1200):
        parent = story.offspring("unroll", 0.9, parent)

    assert len(tree_lines(graph(story.log))) == 1201


def test_a_member_of_the_merge_list_says_so() -> None:
    story = golden_story_up_to_the_merge()

    assert [node.id for node in graph(story.log).nodes if node.awaits_merge] == ["i0002"]
    assert tree_lines(graph(story.log))[-1].endswith("awaits a merge")


def golden_story_up_to_the_merge() -> Story:
    """Two steps, the second of them deferred."""
    story = Story().begin()
    full = story.offspring("query_tile", 0.99, story.offspring("simd_width", 2.0), "full")
    story.record("brancher", decider.defer_branch(story.state, full, "waits"))
    return story


@settings(max_examples=25, deadline=None)
@given(stories)
def test_nodes_never_move(story: Story) -> None:
    folded = Fold(STATE, LINEAGE)
    places: dict[str, tuple[int, int]] = {}
    for recorded in story.log:
        folded.apply(recorded)
        for node in lineage(folded[STATE], folded[LINEAGE]).nodes:
            assert places.setdefault(node.id, (node.column, node.lane)) == (node.column, node.lane)


@settings(max_examples=25, deadline=None)
@given(stories)
def test_no_edge_of_a_first_parent_runs_through_a_node_of_its_own_lane(story: Story) -> None:
    view = graph(story.log)
    by_id = {node.id: node for node in view.nodes}
    for node in view.nodes:
        for parent in node.parents[:1]:
            if by_id[parent].lane == node.lane:
                between = range(by_id[parent].column + 1, node.column)
                assert not [other for other in view.nodes if other.lane == node.lane and other.column in between]


@settings(max_examples=25, deadline=None)
@given(stories)
def test_the_graph_holds_every_implementation_and_promotion(story: Story) -> None:
    view = graph(story.log)

    assert [node.id for node in view.nodes] == list(story.state.implementations)
    assert len(view.promotions) == story.state.promoted_count
    assert {node.lane for node in view.nodes} == set(range(view.lanes))
    assert len(tree_lines(view)) == len(view.nodes)
