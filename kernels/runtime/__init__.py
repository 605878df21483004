"""The shipped implementations as PyTorch operators.

Each operator is registered as `torch.ops.kernelbraid.NAME`, with shapes for tracing and a backward for training. What
runs is the best implementation that a search promoted, else the root; `ran()` says which. There is no other path: a
dtype, shape or device that an operator does not take raises. The modules here need torch; this one does not.
"""

from kernelbraid.kernels.runtime.loading import Implementation, Ran, implementation, ran, reset_ran

__all__ = ["Implementation", "Ran", "implementation", "ran", "reset_ran"]
