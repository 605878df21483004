"""What of others' libraries keeps a row's bits whatever the batch: cuBLASLt without workspace, and fused norms.

With workspace cuBLAS splits k at small M, and rows differ between decode and a full forward. Two variables take it
away and a third makes torch use cuBLASLt for every shape; torch reads them when it starts. With the eager norms of
transformers' models one row of some hundreds still differed: their mean is a reduction whose blocks torch shapes by the
number of rows, which is the likely cause. torch's fused norm has a block for each row.
"""

import os
from collections.abc import Mapping
from typing import Any

import torch

from kernelbraid.kernels.models.refusal import Refusal
from kernelbraid.kernels.models.subclasses import become

STARVED = {
    "TORCH_BLAS_PREFER_CUBLASLT": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    "CUBLASLT_WORKSPACE_SIZE": "1",
}


def require_starved(environment: Mapping[str, str] = os.environ) -> None:
    """Raise Refusal, with the line to export, unless the process started with `STARVED` set and sums stay float32."""
    missing = {name: value for name, value in STARVED.items() if environment.get(name) != value}
    if missing:
        line = " ".join(f"{name}={value}" for name, value in STARVED.items())
        raise Refusal(f"the library composition needs {', '.join(missing)} set before torch starts. Run: export {line}")
    if torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction:
        raise Refusal(
            "bfloat16 sums may be reduced in bfloat16: set "
            "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False"
        )


def change_norms(model: torch.nn.Module) -> None:
    """Make every RMSNorm of the model torch's fused one."""
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            become(module, _norm)


def _norm(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)
