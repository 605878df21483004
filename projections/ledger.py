"""What a search was paid with: tokens, money and model seconds by agent and model, and the seconds of its audits.

A fork starts a new ledger; what its origins had spent is kept apart.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kernelbraid.events.audit import AuditCompleted, TimingCompleted
from kernelbraid.events.campaign import CampaignForked
from kernelbraid.events.effects import ModelCalled
from kernelbraid.events.event import Actor, Event, Recorded
from kernelbraid.projections.projection import Handler, Projection


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What one agent's calls of one model came to."""

    agent: Actor
    model: str
    calls: int = 0
    answered: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    elapsed_s: float = 0.0


@dataclass(slots=True)
class Account:
    """Running sums, mutable: one agent's calls of one model."""

    calls: int = 0
    answered: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    elapsed_s: float = 0.0


@dataclass(slots=True)
class Bench:
    """Running sums, mutable: time spent on measuring."""

    audits: int = 0
    audit_s: float = 0.0
    timings: int = 0
    timing_s: float = 0.0


@dataclass(slots=True)
class Book:
    """Everything one campaign, or its origins together, spent."""

    accounts: dict[tuple[Actor, str], Account] = field(default_factory=dict)
    bench: Bench = field(default_factory=Bench)


@dataclass(slots=True)
class LedgerFold:
    """The accumulator."""

    own: Book = field(default_factory=Book)
    inherited: Book = field(default_factory=Book)


@dataclass(frozen=True, slots=True)
class Spending:
    """Frozen view of a book, models in the order they were first called."""

    models: tuple[ModelUse, ...]
    audits: int
    audit_s: float
    timings: int
    timing_s: float

    @property
    def tokens(self) -> int:
        """Tokens in and out, over all models."""
        return sum(use.input_tokens + use.output_tokens for use in self.models)

    @property
    def cost_usd(self) -> float:
        """Money, over all models."""
        return sum(use.cost_usd for use in self.models)

    @property
    def model_s(self) -> float:
        """Seconds spent waiting for models."""
        return sum(use.elapsed_s for use in self.models)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Frozen view: this campaign's spending, and its origins' up to the fork."""

    own: Spending
    inherited: Spending


def ledger(folded: LedgerFold) -> Ledger:
    """What was spent so far."""
    return Ledger(own=_spending(folded.own), inherited=_spending(folded.inherited))


def _spending(book: Book) -> Spending:
    uses = (_use(agent, model, account) for (agent, model), account in book.accounts.items())
    bench = book.bench
    return Spending(tuple(uses), bench.audits, bench.audit_s, bench.timings, bench.timing_s)


def _use(agent: Actor, model: str, account: Account) -> ModelUse:
    return ModelUse(
        agent,
        model,
        account.calls,
        account.answered,
        account.input_tokens,
        account.output_tokens,
        account.cost_usd,
        account.elapsed_s,
    )


def _called(folded: LedgerFold, recorded: Recorded) -> None:
    event = recorded.event
    assert isinstance(event, ModelCalled)
    account = folded.own.accounts.setdefault((event.agent, event.model), Account())
    account.calls += 1
    account.answered += event.outcome == "answered"
    account.input_tokens += event.input_tokens
    account.output_tokens += event.output_tokens
    account.cost_usd += event.cost_usd
    account.elapsed_s += event.elapsed_s


def _audited(folded: LedgerFold, recorded: Recorded) -> None:
    assert isinstance(recorded.event, AuditCompleted)
    folded.own.bench.audits += 1
    folded.own.bench.audit_s += recorded.event.elapsed_s


def _timed(folded: LedgerFold, recorded: Recorded) -> None:
    assert isinstance(recorded.event, TimingCompleted)
    folded.own.bench.timings += 1
    folded.own.bench.timing_s += recorded.event.elapsed_s


def _forked(folded: LedgerFold, recorded: Recorded) -> None:
    folded.inherited, folded.own = _together([folded.inherited, folded.own]), Book()


def _together(books: Iterable[Book]) -> Book:
    whole = Book()
    for book in books:
        _add_bench(whole.bench, book.bench)
        for key, account in book.accounts.items():
            _add(whole.accounts.setdefault(key, Account()), account)
    return whole


def _add(whole: Account, part: Account) -> None:
    whole.calls += part.calls
    whole.answered += part.answered
    whole.input_tokens += part.input_tokens
    whole.output_tokens += part.output_tokens
    whole.cost_usd += part.cost_usd
    whole.elapsed_s += part.elapsed_s


def _add_bench(whole: Bench, part: Bench) -> None:
    whole.audits += part.audits
    whole.audit_s += part.audit_s
    whole.timings += part.timings
    whole.timing_s += part.timing_s


_HANDLERS: dict[type[Event], Handler[LedgerFold]] = {
    ModelCalled: _called,
    AuditCompleted: _audited,
    TimingCompleted: _timed,
    CampaignForked: _forked,
}

LEDGER: Projection[LedgerFold] = Projection("ledger", LedgerFold, _HANDLERS)
