"""Every phase of every arm of the layer benchmark runs, on small layers with stand-ins. Its times need a GPU."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from kernelbraid.kernels.models.widths import WIDTHS  # noqa: E402
from kernelbraid.kernels.runtime import ran  # noqa: E402
from kernelbraid.ops.bench import layer_launches, layer_phases  # noqa: E402

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


def test_launches_are_summed_by_kernel_and_gaps_show() -> None:
    # when two kernels of one name and a longer one ran, with a gap of 3 us
    found = layer_launches.summed([("norm", 0.0, 2.0), ("product", 2.0, 9.0), ("norm", 12.0, 14.0)])

    # then
    assert (found["launches"], found["busy_us"], found["span_us"]) == (3, 11.0, 14.0)
    assert found["kernels"] == [
        {"name": "product", "launches": 1, "us": 7.0},
        {"name": "norm", "launches": 2, "us": 4.0},
    ]


def test_every_phase_whose_launches_are_read_runs() -> None:
    # given
    stack = layer_phases.build("unified", "Qwen3-4B")

    # when / then
    for of in layer_launches.PHASES.values():
        of(stack)()
