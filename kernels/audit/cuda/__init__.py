"""The audit of candidates whose host code is Python: Triton, later CUDA.

`CHILD_SIDE` names the only files that may import torch or Triton; they run in sandboxed processes, never in the
auditor's.
"""

CHILD_SIDE = ("zygote.py", "child.py", "child_cuda.py", "child_host.py", "frames.py", "sanitized.py")
