"""`python -m kernelbraid.ops.cli`: the same program where no console script was installed."""

import sys

from kernelbraid.ops.cli import main

if __name__ == "__main__":
    sys.exit(main())
