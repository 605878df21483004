"""cuBLASLt without workspace: what a linear layer has to be so that a row's bits do not depend on the batch.

With workspace cuBLAS splits k at small M, and rows differ between decode and a full forward. Two variables take it
away and a third makes torch use cuBLASLt for every shape; torch reads them when it starts.
"""

import os
from collections.abc import Mapping

import torch

from kernelbraid.kernels.models.refusal import Refusal

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
