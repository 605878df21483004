"""What compares whole models on a GPU runs, on small models with stand-ins."""

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

SMALL = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
pytestmark = pytest.mark.usefixtures("standing_in", "starved")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """on_device.py, for small models on the CPU."""
    spec = importlib.util.spec_from_file_location("models_on_device", Path(__file__).parent / "on_device.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "DEVICE", "cpu")
    monkeypatch.setattr(module, "LENGTHS", (24, 9, 1, 17))
    monkeypatch.setattr(module, "PROMPTS", (7, 3, 0, 17))
    monkeypatch.setattr(module, "SHORT_PROMPTS", (1, 3, 0, 16))
    small = {"dense": {"model_type": "qwen3", "intermediate_size": 160, **SMALL}}
    small["experts"] = {"model_type": "qwen3_moe", "intermediate_size": 160, **SMALL, **EXPERTS}
    monkeypatch.setattr(module, "SIZES", small)
    return module


@pytest.mark.parametrize("name", ["dense", "experts"])
@pytest.mark.parametrize("kernels", ["unified", "library"])
def test_it_says_what_was_compared_and_what_ran(kernels: str, name: str, script: Any) -> None:
    # given
    asked = {"kernels": kernels, "attention": "triton", "experts": None, "graph": False, "trace": True}
    more = {"compile": False, "gradients": kernels == "unified", "layers": 1, "vocabulary": 64}

    # when
    found = script.agreement(name, argparse.Namespace(**asked, **more))

    # then
    assert found["rows"] == 51
    assert found["largest_difference"] < 0.02
    assert any(line.startswith("attention/attention_decode_bf16") for line in found["operators"])
    assert ("least alike gradient" in found) == (kernels == "unified")


def test_one_row_or_log_probability_that_differs_is_no_agreement(script: Any) -> None:
    # given
    good = {"differing_rows": 0, "rows_differing_several_at_a_time": 0, "sampled": "0 of 320 differ"}

    # when / then
    assert script.agrees(good)
    assert not script.agrees(good | {"differing_rows": 1})
    assert not script.agrees(good | {"rows_differing_several_at_a_time": 1})
    assert not script.agrees(good | {"sampled": "10 of 320 differ"})
    assert not script.agrees({"failed": "out of memory"})
