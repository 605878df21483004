"""What can be done to silu_and_mul on Triton."""

from kernelbraid.kernels.operators.catalogue import Mechanism

CATALOGUE: tuple[Mechanism, ...] = ()
