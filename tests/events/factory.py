"""Small valid events, decisions and stores for tests; every argument that a test does not care about has a default."""

from datetime import UTC, datetime

from kernelbraid.events.audit import AuditCompleted
from kernelbraid.events.campaign import CampaignForked, CampaignOpened, NoteAdded
from kernelbraid.events.effects import ModelCalled, ModelRequested
from kernelbraid.events.event import Actor, Decision, Event, Recorded
from kernelbraid.events.search import ActionProposed, ImplementationSubmitted, OpportunityRaised
from kernelbraid.events.store import Store, digest_of
from kernelbraid.events.values import (
    Contract,
    Correctness,
    Digests,
    Environment,
    Measurement,
    Performance,
    Policy,
    SourceFile,
    Specification,
    Workload,
)

NOON = datetime(2026, 1, 1, 12, 0, 0, 250, tzinfo=UTC)
ROOT_SOURCE = b"void attention(void) {}\n"


def specification(seed: int = 0) -> Specification:
    """A small specification with one workload per path."""
    workloads = tuple(
        Workload(name=f"w_{path}", entry=path, path=path, dtype="float32", dims={"tokens": 8}, weight=1, limit_ratio=2)
        for path in ("full", "decode")
    )
    contract = Contract(
        operator="attention",
        target="cpu",
        workloads=workloads,
        numerical_contract={"sum": "one running sum"},
        declaration_digest=digest_of(b"declaration"),
        harness_digest=digest_of(b"harness"),
        toolchain_digest=digest_of(b"toolchain"),
    )
    return Specification(contract=contract, policy=Policy(seed=seed))


def environment() -> Environment:
    """A machine."""
    return Environment(
        machine="m",
        cpu_model="c",
        simd_bits=256,
        l1_bytes=32768,
        compiler="gcc",
        compiler_version="13",
        flags=("-O3",),
        kernel_release="6",
        sandbox="none",
        harness_digest=digest_of(b"harness"),
        toolchain_digest=digest_of(b"toolchain"),
    )


def digests() -> Digests:
    """Digests of the code that decides."""
    return Digests(catalogue="c", templates="t", agents="a")


def opened(seed: int = 0) -> CampaignOpened:
    """A campaign's first event; it names `ROOT_SOURCE`."""
    return CampaignOpened(
        specification=specification(seed),
        environment=environment(),
        digests=digests(),
        sources=(SourceFile(name="attention.c", digest=digest_of(ROOT_SOURCE)),),
        regions=(),
    )


def opening(seed: int = 0) -> Decision:
    """The decision that opens a campaign, with its blob."""
    return Decision(actor="user", cause=0, events=(opened(seed),), blobs=(ROOT_SOURCE,))


def notes(*texts: str, actor: Actor = "user", cause: int = 0, blobs: tuple[bytes, ...] = ()) -> Decision:
    """A decision of notes."""
    return decision(*(NoteAdded(text=text) for text in texts), actor=actor, cause=cause, blobs=blobs)


def decision(*events: Event, actor: Actor = "driver", cause: int = 0, blobs: tuple[bytes, ...] = ()) -> Decision:
    """A decision of any events."""
    return Decision(actor=actor, cause=cause, events=events, blobs=blobs)


def forked(store: Store, parent: str, at: int, seed: int = 1) -> Decision:
    """The decision that forks `parent` at `at`."""
    event = CampaignForked(
        parent=parent,
        at=at,
        parent_hash=store.hash_at(parent, at),
        specification=specification(seed),
        environment=environment(),
        digests=digests(),
        changes=(),
        stale=False,
    )
    return decision(event, actor="user", cause=at)


def raised(number: int = 1) -> OpportunityRaised:
    """An opportunity on the root."""
    return OpportunityRaised(
        opportunity=f"o{number:04}",
        mechanisms=("simd_width",),
        parents=("i0000",),
        scope="joint",
        workloads=("w_full",),
        evidence="one lane",
        rationale="eight lanes",
        expected_gain_ratio=1.5,
    )


def proposed(number: int = 1) -> ActionProposed:
    """An action on that opportunity."""
    return ActionProposed(
        action=f"a{number:04}",
        opportunity=f"o{number:04}",
        parents=("i0000",),
        scope="joint",
        rationale="eight lanes",
        numerical_risks="order of the sum",
        falsification="no gain",
        strategy="catalogue",
    )


def submitted(number: int, source: bytes) -> ImplementationSubmitted:
    """An offspring whose only file is `source`."""
    return ImplementationSubmitted(
        action=f"a{number:04}",
        implementation=f"i{number:04}",
        sources=(SourceFile(name="attention.c", digest=digest_of(source)),),
        regions=(),
        mechanisms=("simd_width",),
        contract_items=(),
    )


def audited(number: int, blocks: tuple[bytes, ...] = (), log: bytes | None = None) -> AuditCompleted:
    """A verified audit without gain, naming its blocks and log."""
    measurement = Measurement(
        incumbent="i0000",
        ratio=1.01,
        upper_bound_ratio=1.03,
        delta_ratio=0.01,
        standard_error_ratio=0.01,
        objective_s=0.002,
        blocks=tuple(digest_of(block) for block in blocks),
    )
    return AuditCompleted(
        action=f"a{number:04}",
        implementation=f"i{number:04}",
        verdict=Correctness.VERIFIED,
        evidence="",
        cases={"agreement": 12},
        latencies_s={"w_full": 0.001, "w_decode": 0.003},
        performance=Performance.NO_GAIN,
        measurement=measurement,
        log=None if log is None else digest_of(log),
        environment=digest_of(b"environment"),
        build_s=0.25,
        check_s=0.5,
        timing_s=0.5,
    )


def iteration(number: int) -> Decision:
    """Five events and three blobs, as much as a round of the search appends."""
    source = b"// %d\n" % number + b"float sum = 0;\n" * 130
    blocks = number.to_bytes(4, "little") * 500
    log = b"%d compiled\n" % number * 80
    events = (
        raised(number),
        proposed(number),
        submitted(number, source),
        audited(number, (blocks,), log),
        raised(number),
    )
    return decision(*events, blobs=(source, blocks, log))


def model_call(prompt: bytes, reply: bytes) -> Decision:
    """A model's request and answer."""
    request = ModelRequested(
        request="r1",
        agent="planner",
        action=None,
        model="m",
        prompt=digest_of(prompt),
        attempt=1,
        reserved_tokens=10,
        reserved_usd=0.1,
    )
    call = ModelCalled(
        request="r1",
        agent="planner",
        model="m",
        reply=digest_of(reply),
        input_tokens=3,
        output_tokens=4,
        cost_usd=0.01,
        elapsed_s=0.5,
        attempt=1,
        outcome="answered",
    )
    return decision(request, call, actor="planner", blobs=(prompt, reply))


def campaign_of(store: Store, name: str, *, notes_after: int = 0) -> None:
    """A campaign in the store: its opening, then notes, each an append of its own."""
    store.append(name, 0, opening(), recorded_at=NOON)
    for number in range(notes_after):
        store.append(name, number + 1, notes(f"note {number}"), recorded_at=NOON)


def log_of(store: Store, name: str) -> tuple[Recorded, ...]:
    """The whole log."""
    return tuple(store.read(name))
