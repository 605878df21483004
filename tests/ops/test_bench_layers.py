"""Sums and ratios of the layer benchmark; its times need a GPU."""

import json
from pathlib import Path

import pytest

from kernelbraid.ops.bench import layers
from kernelbraid.ops.bench.layers import summary, table, weighted_ms

PHASES = {"prefill": 2.0, "decode": 0.1, "recompute": 2.0, "update_forward": 2.0, "update": 6.0}


def test_only_a_stock_layer_pays_for_recomputing() -> None:
    assert weighted_ms("stock", PHASES) == pytest.approx(2 + 102.4 + 2 + 6)
    assert weighted_ms("unified", PHASES) == pytest.approx(2 + 102.4 + 6)


def test_an_arm_is_compared_over_the_models_that_both_ran() -> None:
    # given
    faster = {phase: ms / 2 for phase, ms in PHASES.items()}
    lines = [
        {"environment": {"gpu": "a"}},
        *({"arm": "stock", "model": name, "ms": PHASES} for name in ("Qwen3-4B", "Qwen3-8B")),
        {"arm": "unified", "model": "Qwen3-4B", "ms": faster, "operators": {"rms_norm": "root"}},
        {"arm": "unified", "model": "Qwen3-8B", "failed": "out of memory"},
    ]

    # when
    result = summary(lines)

    # then
    ratio = (2 + 102.4 + 2 + 6) / ((2 + 102.4 + 6) / 2)
    assert result["times_better"] == {"stock/unified": pytest.approx({"Qwen3-4B": ratio, "mean": ratio})}
    assert result["environment"] == {"gpu": "a"}
    assert [line["model"] for line in result["failed"]] == ["Qwen3-8B"]
    assert [row.split("|")[1:3] for row in list(table(result))[2:]] == [
        [" Qwen3-4B ", " stock "],
        [" Qwen3-4B ", " unified "],
        [" Qwen3-8B ", " stock "],
    ]


def test_a_stock_layer_that_decodes_without_a_mask_is_an_arm_of_its_own() -> None:
    # given
    lines = [
        {"arm": "stock", "model": "Qwen3-4B", "ms": PHASES | {"decode_unmasked": 0.05}},
        {"arm": "unified", "model": "Qwen3-4B", "ms": PHASES, "operators": {}},
    ]

    # when
    result = summary(lines)

    # then
    assert result["ms"] == {
        "stock": {"Qwen3-4B": PHASES},
        "stock_unmasked": {"Qwen3-4B": PHASES | {"decode": 0.05}},
        "unified": {"Qwen3-4B": PHASES},
    }
    ratio = (2 + 51.2 + 2 + 6) / (2 + 102.4 + 6)
    assert result["times_better"]["stock_unmasked/unified"]["mean"] == pytest.approx(ratio)


def test_only_the_library_starts_without_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    started: list[tuple[str, bool]] = []
    monkeypatch.setattr(layers, "lines_of", lambda _, words, __, more: started.append((words[0], bool(more))) or [])

    # when
    layers.bench_layers(("stock", "library", "unified"), ("Qwen3-4B",))

    # then
    assert started == [("stock,unified", False), ("library", True)]


def test_a_process_that_dies_is_a_failure_and_not_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a Python without the module that measures
    monkeypatch.setattr(layers, "MODULE", "kernelbraid.no_such_module")

    # when
    result = layers.bench_layers(("stock",), ("Qwen3-4B",))

    # then
    assert "No module named" in result["failed"][0]["failed"]


def test_the_readme_shows_the_recorded_table() -> None:
    # given
    root = Path(__file__).resolve().parents[2]
    record = json.loads((root / "ops" / "bench" / "records" / "2026-12-01-layers.json").read_text())

    # when
    shown = (root / "kernels" / "models" / "README.md").read_text()

    # then
    assert "\n".join(table(record)) in shown
    assert not record["failed"]
    for before, mean in ((pair, record["times_better"][f"{pair}/unified"]["mean"]) for pair in ("stock", "library")):
        assert f"{mean:.2f} times better than" in shown, before
