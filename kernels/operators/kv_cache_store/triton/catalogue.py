"""What can be done to kv_cache_store on Triton."""

from kernelbraid.kernels.operators.catalogue import Mechanism

CATALOGUE: tuple[Mechanism, ...] = ()
