"""Progress as a view that redraws itself, for a terminal."""

import sys
import time
from collections.abc import Iterator
from typing import Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kernelbraid.events.event import Recorded
from kernelbraid.events.state import State
from kernelbraid.ops.progress.plain import TOLD
from kernelbraid.ops.progress.snapshot import Snapshot, after
from kernelbraid.ops.report.figures import bar, seconds, times
from kernelbraid.ops.terminal import console, draws_unicode

REDRAWS_PER_S = 4
BAR_CELLS = 24


class LiveProgress:
    """Told of every event by the driver; redraws on stderr until it is left."""

    def __init__(self) -> None:
        self._snapshot = Snapshot()
        # Asked before rich puts itself in stderr's place.
        self._unicode = draws_unicode(sys.stderr)
        self._started = self._last = time.monotonic()
        self._live = Live(
            console=console(sys.stderr), get_renderable=self.view, refresh_per_second=REDRAWS_PER_S, transient=True
        )

    def take(self, recorded: Recorded, state: State) -> None:
        """Keep what the event changed; drawing is the view's own thread's work."""
        self._snapshot = after(self._snapshot, recorded, state, type(recorded.event) in TOLD)
        self._last = time.monotonic()

    def view(self) -> RenderableType:
        """The current snapshot, drawn."""
        now = time.monotonic()
        return drawn(self._snapshot, now - self._started, now - self._last, self._unicode)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the view, so that the outcome stands alone."""
        self._live.stop()


def drawn(shown: Snapshot, elapsed_s: float, idle_s: float, unicode: bool) -> RenderableType:
    """A snapshot as a rich renderable; `idle_s` is the time since its event."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="ellipsis", no_wrap=True)
    for label, text in _rows(shown, elapsed_s, idle_s, unicode):
        table.add_row(label, escape(text))
    return Group(*(Text(line, overflow="ellipsis", no_wrap=True) for line in shown.lines), table)


def _rows(shown: Snapshot, elapsed_s: float, idle_s: float, unicode: bool) -> Iterator[tuple[str, str]]:
    if not shown.campaign:
        yield "starting", f"trying compiler and sandbox, then the root is audited ({seconds(elapsed_s)})"
        return
    yield "campaign", f"{shown.campaign} ({shown.operator}), {shown.status}, position {shown.position}"
    for doing in shown.doing:
        yield doing.action, f"{doing.stage}: {doing.what}"
    counts = f"{shown.verified} verified, {shown.failed} failed, {shown.promoted} promotions"
    yield "best", f"{shown.best or '-'}  {times(shown.speedup_ratio)} of the root  ({counts})"
    yield "kappa", _gauge(shown.kappa, shown.kappa_threshold, unicode)
    if shown.audits_limit is not None:
        yield "audits", _gauge(shown.audits, shown.audits_limit, unicode)
    if shown.wall_limit_s is not None:
        yield "wall", _gauge(round(shown.active_s + idle_s), round(shown.wall_limit_s), unicode) + " s"
    if shown.tokens_limit is not None:
        yield "tokens", _gauge(shown.tokens, shown.tokens_limit, unicode)
    if shown.cost_limit_usd is not None:
        yield "cost", f"{shown.cost_usd:.2f} of {shown.cost_limit_usd:.2f} USD"
    rate = 60 * shown.audited_here / elapsed_s if elapsed_s > 0 else 0.0
    yield "pace", f"{rate:.1f} audits per minute, {seconds(elapsed_s)} so far"


def _gauge(value: int, limit: int, unicode: bool) -> str:
    share = value / limit if limit else 1.0
    return f"{bar(share, BAR_CELLS, unicode)} {value} of {limit}"
