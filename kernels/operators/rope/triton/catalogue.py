"""What can be done to rope on Triton."""

from kernelbraid.kernels.operators.catalogue import Mechanism

CATALOGUE: tuple[Mechanism, ...] = ()
