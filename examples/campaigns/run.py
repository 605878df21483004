"""Take in the campaigns that ran on a GPU, check them, and let today's agents decide them again; no GPU is asked."""

import tempfile
from pathlib import Path

from kernelbraid import fold, open_store, replay_strict, summary
from kernelbraid.agents.evidence_check import recheck

HERE = Path(__file__).parent


def main() -> None:
    """One paragraph for each exported campaign beside this file."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{Path(folder) / 'campaigns.db'}")
        for file in sorted(HERE.glob("*.jsonl.gz")):
            (name,) = store.import_(file)
            problems, state = recheck(store, name), fold(store.read(name))
            found, replayed = summary(state, driven=False), replay_strict(store, name)
            device = state.environment.device if state.environment else ""
            print(f"{file.name}: {name} on {device.split(' GPU-')[0]}")
            print(f"  audited {found.counts.audited}, promoted {found.counts.promoted}, stopped: {found.stop_reason}")
            print(f"  best {found.best.implementation}: {found.best.speedup_ratio:.2f}x the root")
            print(f"  measurements recomputed: {problems or 'sound'}")
            print(f"  decided again: {replayed.events} events, divergence: {replayed.divergence}")
        store.close()


if __name__ == "__main__":
    main()
