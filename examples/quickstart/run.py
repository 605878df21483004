"""Search for a faster rms_norm, and look at what the log says about it."""

import sys
import tempfile
from pathlib import Path

from kernelbraid import open_store, run


def main(audits: int = 6) -> None:
    """Run a small campaign on a store of its own and print what it found."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{Path(folder) / 'quickstart.db'}")
        found = run("rms_norm", store=store, audits=audits, seed=0)
        print(f"campaign    {found.campaign}, {found.status}: {found.stop_reason}")
        print(f"audited     {found.counts.audited}, verified {found.counts.verified}, promoted {found.counts.promoted}")
        assert found.best is not None
        print(f"best        {found.best.implementation}: {', '.join(found.best.mechanisms) or 'the root'}")
        print(f"speed-up    {found.best.speedup_ratio:.2f}x the root, in its last confirmation's own blocks")
        print(f"log         {found.position} events, digest {found.digest[:16]}")
        store.close()


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
