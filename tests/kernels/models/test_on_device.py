"""Whole models on a GPU: no bit differs between a full forward and decode.

python -m pytest tests/kernels/models/test_on_device.py -m gpu -s

The library composition is compared where the process started with its variables.
"""

import argparse
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kernelbraid.kernels.audit.cuda.driver import device_count

NEEDED = ("torch", "triton", "transformers")
MISSING = (
    "no NVIDIA GPU here"
    if not device_count()
    else next((f"{name} is not installed" for name in NEEDED if not importlib.util.find_spec(name)), "")
)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
MODELS = ("qwen2", "qwen2_small", "qwen3", "llama", "qwen3_moe")
STARVED = os.environ.get("CUBLASLT_WORKSPACE_SIZE") == "1"


@pytest.fixture(scope="module")
def device() -> Any:
    """on_device.py, which imports torch and transformers."""
    spec = importlib.util.spec_from_file_location("models_on_device", Path(__file__).parent / "on_device.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def agreement(device: Any, name: str, **more: Any) -> Mapping[str, Any]:
    usual = {"attention": None, "experts": None, "graph": True, "trace": True, "compile": False, "gradients": False}
    found: Mapping[str, Any] = device.agreement(name, argparse.Namespace(**usual | {"vocabulary": 32000} | more))
    print(f"\n{found}")
    return found


@pytest.mark.parametrize("name", MODELS)
def test_no_bit_of_a_unified_model_differs(name: str, device: Any) -> None:
    # when
    found = agreement(device, name, kernels="unified")

    # then
    assert found["rows"] == 687
    assert found["differing_rows"] == 0
    assert found["rows differing at 37 a time"] == 0
    assert found["sampled"] == "0 of 320 differ"


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama"])
@pytest.mark.skipif(not STARVED, reason="the library composition's variables were not exported")
def test_no_bit_of_the_library_composition_differs(name: str, device: Any) -> None:
    # when
    found = agreement(device, name, kernels="library", attention="triton")

    # then
    assert found["differing_rows"] == 0


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
def test_gradients_are_those_of_the_stock_model_to_their_roundings(name: str, device: Any) -> None:
    # when
    found = agreement(device, name, kernels="unified", gradients=True)

    # then
    assert float(found["least alike gradient"].split()[1]) > 0.99


def test_a_compiled_model_has_the_same_bits(device: Any) -> None:
    # when
    found = agreement(device, "qwen2_small", kernels="unified", compile=True)

    # then
    assert found["compiled"].startswith("0 of")
