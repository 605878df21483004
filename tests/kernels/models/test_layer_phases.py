"""Every phase of every arm of the layer benchmark runs, on small layers with stand-ins. Its times need a GPU."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from kernelbraid.kernels.models.widths import WIDTHS  # noqa: E402
from kernelbraid.kernels.runtime import ran  # noqa: E402
from kernelbraid.ops.bench import layer_phases  # noqa: E402

SMALL = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "intermediate_size": 160,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
PHASES = {"prefill", "decode", "recompute", "update_forward", "update"}
pytestmark = pytest.mark.usefixtures("standing_in", "starved")


@pytest.fixture(autouse=True)
def small_and_untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers on the CPU; a phase is run once, and what would be captured is run."""
    small = {name: dict(sizes) | SMALL | (EXPERTS if "num_experts" in sizes else {}) for name, sizes in WIDTHS.items()}

    def once(run: Callable[[], object], _: int) -> float:
        run()
        return 1.0

    for name, value in {"WIDTHS": small, "DEVICE": "cpu", "BATCH": 2, "TOKENS": 12, "STACK": 2}.items():
        monkeypatch.setattr(layer_phases, name, value)
    monkeypatch.setattr(layer_phases, "captured", lambda run: run)
    monkeypatch.setattr(layer_phases, "median_ms", once)


@pytest.mark.parametrize("model", ["Qwen2.5-1.5B", "Qwen3-4B", "Llama-3.1-8B", "Qwen3-30B-A3B"])
@pytest.mark.parametrize("arm", ["stock", "library_triton", "unified"])
def test_every_phase_runs(arm: str, model: str) -> None:
    # when
    line: Any = layer_phases.measured(arm, model)

    # then
    assert set(line["ms"]) == PHASES | ({"decode_unmasked"} if arm == "stock" else set())
    assert bool(line["operators"]) == (arm != "stock")
    symbols = {each.symbol for each in ran()}
    assert ("attention_decode_bf16" in symbols) == (arm != "stock")
    assert ("moe_linear_decode_bf16" in symbols) == (arm == "unified" and model == "Qwen3-30B-A3B")
