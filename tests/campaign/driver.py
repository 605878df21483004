"""A driver in a process of its own, for tests that kill it: imports once, then forks a process for every order.

Run as a module; reads one JSON object a line from standard input and answers with one a line:
{"do": "run" | "resume", ...} -> {"pid": n}, the process then drives;
{"do": "wait", "pid": n} -> {"status": n}, that process's exit status, negative for a signal.
"""

import hashlib
import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any

from kernelbraid.agents import search
from kernelbraid.events.errors import DriverPresent
from kernelbraid.events.event import Decision, Recorded
from kernelbraid.events.store import Store, open_store
from kernelbraid.kernels.audit.outcome import Candidate
from kernelbraid.kernels.operators.catalogue import load_catalogue
from kernelbraid.kernels.operators.operator import load_operator
from tests.campaign import toy

DRIVER_PRESENT = 5


class Deadly:
    """A store that kills its own process just before or just after its n-th append is on disk."""

    def __init__(self, store: Store, appends: int, after: bool) -> None:
        self._store = store
        self._left = appends
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, campaign: str, expected_position: int, decision: Decision, **more: Any) -> tuple[Recorded, ...]:
        """The append, on one side of which the process dies when its turn has come."""
        self._left -= 1
        if self._left == 0 and not self._after:
            os.kill(os.getpid(), signal.SIGKILL)
        recorded = self._store.append(campaign, expected_position, decision, **more)
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return recorded


def delay_s(candidate: Candidate) -> float:
    """Up to 12 ms, by the candidate alone."""
    return 0.012 * int(hashlib.sha256(candidate.digest.encode()).hexdigest()[:4], 16) / 0xFFFF


def drive(order: dict[str, Any]) -> int:
    """Run or resume the toy campaign as ordered; returns an exit status."""
    asked: list[str] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, frame: asked.append(signal.Signals(caught).name))

    def pause_requested() -> str | None:
        return asked[0] if asked else None

    store: Any = open_store(order["url"])
    if order.get("real"):
        return drive_really(store, order)
    if "appends" in order:
        store = Deadly(store, order["appends"], order["after"])
    slow_s = order.get("slow_s", 0.0)
    harness = toy.simulated(delay_s=lambda candidate: slow_s or delay_s(candidate))
    try:
        if order["do"] == "run":
            toy.run_toy(store, harness=harness, pause_requested=pause_requested, **order["policy"])
        else:
            search.resume("toy", store=store, harness=harness, pause_requested=pause_requested)
    except DriverPresent:
        return DRIVER_PRESENT
    return 0


def drive_really(store: Store, order: dict[str, Any]) -> int:
    """Run or resume a campaign of the packaged rms_norm, audited on this machine."""
    if order["do"] == "run":
        search.run("rms_norm", store=store, name="toy", **order["policy"])
    else:
        search.resume("toy", store=store)
    return 0


def begin(order: dict[str, Any]) -> int:
    """Fork a process that drives; returns its id."""
    child = os.fork()
    if child:
        return child
    try:
        os._exit(drive(order))
    except Exception:  # noqa: BLE001 the edge of a process
        traceback.print_exc()
        os._exit(1)


def main() -> None:
    """Obey, line by line; what drivers would import or load is there before the first is forked."""
    importlib.import_module("kernelbraid.agents.graph")
    open_store(":memory:").close()
    load_catalogue(load_operator(toy.TOY), "cpu")
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "wait":
            _, status = os.waitpid(order["pid"], 0)
            answer = {"status": os.waitstatus_to_exitcode(status)}
        else:
            answer = {"pid": begin(order)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
