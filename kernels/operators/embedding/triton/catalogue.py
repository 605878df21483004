"""What can be done to embedding on Triton."""

from kernelbraid.kernels.operators.catalogue import Mechanism

CATALOGUE: tuple[Mechanism, ...] = ()
