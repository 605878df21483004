"""Search an operator of your own: a folder outside the package, named by its path."""

import sys
import tempfile
from pathlib import Path

from kernelbraid import open_store, run

FOLDER = Path(__file__).parent / "swiglu"


def main(audits: int = 6) -> None:
    """Run a small campaign over the folder's operator and print what it found."""
    with tempfile.TemporaryDirectory() as scratch:
        store = open_store(f"sqlite:///{Path(scratch) / 'own.db'}")
        found = run(str(FOLDER), store=store, audits=audits, seed=0)
        print(f"campaign    {found.campaign}, {found.status}: {found.stop_reason}")
        print(f"audited     {found.counts.audited}, verified {found.counts.verified}, promoted {found.counts.promoted}")
        assert found.best is not None
        print(f"best        {found.best.implementation}: {', '.join(found.best.mechanisms) or 'the root'}")
        print(f"speed-up    {found.best.speedup_ratio:.2f}x the root, in its last confirmation's own blocks")
        store.close()


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
