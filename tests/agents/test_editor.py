"""The editor: complete offspring, merges from the common ancestor, and honest refusals."""

from functools import partial

from kernelbraid.events.search import EditFailed, ImplementationSubmitted
from kernelbraid.events.store import Store, digest_of
from kernelbraid.events.values import ROOT
from kernelbraid.kernels.operators.catalogue import apply
from kernelbraid.kernels.operators.operator import Sources
from kernelbraid.kernels.operators.regions import edit_region
from tests.agents.stage import Stage, mark, mechanism


def submitted(events: list[object]) -> ImplementationSubmitted:
    """The only event, which hands in an offspring."""
    (event,) = events
    assert isinstance(event, ImplementationSubmitted)
    return event


def begun(stage: Stage) -> str:
    """The action that the planner begins next."""
    while not stage.state.open_actions:
        assert stage.plan()
    (action,) = stage.state.open_actions
    return action


def test_an_offspring_is_the_parent_s_whole_source_with_one_rewrite(store: Store) -> None:
    stage = Stage(store, mechanism("lanes", contract=("order",)))
    root = stage.desk.sources(stage.state.implementations[ROOT])
    event = submitted(list(stage.edit(begun(stage))))
    expected = mark("lanes", "element", root)
    assert [(file.name, file.digest) for file in event.sources] == [("toy.c", digest_of(expected["toy.c"].encode()))]
    assert stage.desk.sources(stage.state.implementations["i0001"]) == expected
    assert (event.mechanisms, event.contract_items) == (("lanes",), ("order",))
    regions = {region.name: region.paths for region in event.regions}
    assert regions == {
        "element": ("full", "decode"),
        "full": ("full",),
        "decode": ("decode",),
        "frame": ("full", "decode"),
    }


def test_a_merge_applies_the_recorded_mechanisms_to_the_common_ancestor_again(store: Store) -> None:
    catalogue = (
        mechanism("lanes", 3.0),
        mechanism("full_step", 1.5, "full", requires=("lanes",)),
        mechanism("decode_step", 1.4, "decode", requires=("lanes",)),
    )
    stage = Stage(store, *catalogue, gains={"lanes": 2.0, "full_step": 1.5, "decode_step": 1.4})
    stage.steps(3)
    action = begun(stage)
    assert stage.state.actions[action].parents == ("i0002", "i0003")
    event = submitted(list(stage.edit(action)))
    ancestor = stage.desk.sources(stage.state.implementations["i0001"])
    assert event.mechanisms == ("lanes", "full_step", "decode_step")
    merged = stage.desk.sources(stage.state.implementations[event.implementation])
    assert merged == apply(catalogue[1:], ancestor)


def failure(events: list[object]) -> str:
    """Why the only event says that an edit failed."""
    (event,) = events
    assert isinstance(event, EditFailed)
    return event.reason


def test_an_edit_beyond_its_declared_scope_is_refused(store: Store) -> None:
    stage = Stage(store, mechanism("careless", scope="full", edits=partial(mark, "careless", "element")))
    assert "declared full only" in failure(list(stage.edit(begun(stage))))
    assert list(stage.state.implementations) == [ROOT]


def test_an_edit_outside_every_region_belongs_to_both_paths(store: Store) -> None:
    def include(sources: Sources) -> Sources:
        return {name: "#include <math.h>\n" + text for name, text in sources.items()}

    stage = Stage(store, mechanism("header", scope="decode", edits=include))
    assert "frame" in failure(list(stage.edit(begun(stage))))


def test_a_mechanism_that_does_not_find_its_place_fails_with_its_name(store: Store) -> None:
    lost = mechanism("lost", edits=lambda sources: edit_region(sources, "element", "no such text", "other"))
    stage = Stage(store, lost)
    assert failure(list(stage.edit(begun(stage)))).startswith("lost: region element: expected one 'no such text'")


def test_a_mechanism_that_changes_nothing_fails(store: Store) -> None:
    stage = Stage(store, mechanism("idle", edits=lambda sources: sources))
    assert failure(list(stage.edit(begun(stage)))) == "idle: it changed nothing"


def test_a_failed_edit_is_tried_three_times_in_all(store: Store) -> None:
    stage = Stage(store, mechanism("idle", edits=lambda sources: sources))
    for _ in range(3):
        assert failure(list(stage.edit(begun(stage))))
    assert stage.plan() == []
    assert stage.state.opportunities["o0001"].status == "consumed"


def test_an_action_is_edited_once(store: Store) -> None:
    stage = Stage(store, mechanism("lanes"))
    action = begun(stage)
    assert stage.edit(action)
    assert stage.edit(action) == []
