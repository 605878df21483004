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
MODELS = ("Qwen3-4B", "Qwen2.5-1.5B", "Qwen2.5-0.5B", "Llama-3.1-8B", "Qwen3-30B-A3B")
DENSE = MODELS[:-1]
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
    found: Mapping[str, Any] = device.agreement(
        name, argparse.Namespace(**usual | {"vocabulary": 32000, "layers": 3} | more)
    )
    print(f"\n{found}")
    return found


@pytest.mark.parametrize("name", MODELS)
def test_no_bit_of_a_unified_model_differs(name: str, device: Any) -> None:
    # when
    found = agreement(device, name, kernels="unified")

    # then
    assert found["rows"] == 687
    assert found["differing_rows"] == 0
    assert found["rows_differing_several_at_a_time"] == 0
    assert found["sampled"] == "0 of 320 differ"


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.skipif(not STARVED, reason="the library composition's variables were not exported")
def test_no_bit_of_the_library_composition_differs(name: str, device: Any) -> None:
    # when
    found = agreement(device, name, kernels="library", attention="triton")

    # then
    assert found["differing_rows"] == 0


@pytest.mark.parametrize(("name", "alike"), [("Qwen3-4B", 0.99), ("Qwen3-30B-A3B", 0.97)])
def test_gradients_are_those_of_the_stock_model_to_their_roundings(name: str, alike: float, device: Any) -> None:
    # when
    found = agreement(device, name, kernels="unified", gradients=True)

    # then a token whose experts nearly tie may go elsewhere, so a router's gradient is less alike
    assert float(found["least alike gradient"].split()[1]) > alike


def test_a_compiled_model_has_the_same_bits(device: Any) -> None:
    # when
    found = agreement(device, "Qwen2.5-0.5B", kernels="unified", compile=True)

    # then
    assert found["compiled"].startswith("0 of")
