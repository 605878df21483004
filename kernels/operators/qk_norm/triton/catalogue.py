"""What can be done to qk_norm on Triton."""

from kernelbraid.kernels.operators.catalogue import Mechanism

CATALOGUE: tuple[Mechanism, ...] = ()
