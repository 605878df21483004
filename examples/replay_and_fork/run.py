"""Run a search, decide it again from its log, then fork it in the middle and let both go on."""

import sys
import tempfile
from pathlib import Path

from kernelbraid import fold, fork, open_store, replay_strict, resume, run, state_digest


def main(audits: int = 4) -> None:
    """One campaign, one strict replay, one fork with a larger budget."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{Path(folder) / 'fork.db'}")
        origin = run("rms_norm", store=store, audits=audits, seed=0)
        before = state_digest(fold(store.read(origin.campaign)))

        replayed = replay_strict(store, origin.campaign)
        print(f"replayed    {replayed.events} events, divergence: {replayed.divergence}")

        child = fork(origin.campaign, store=store, changes={"audits": 2})
        forked = resume(child, store=store)
        print(f"forked      {child} after position {origin.position}, {forked.budgets['audits'].spent} more audits")

        after = state_digest(fold(store.read(origin.campaign)))
        print(f"the origin  {'is as it was' if before == after else 'HAS CHANGED'}")
        store.close()


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
