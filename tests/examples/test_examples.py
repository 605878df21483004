"""Every example runs as its README says, with real audits, and prints the lines that its README promises.

What a machine under load may change is left open: how fast the best is, and whether a gain was promoted at all.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from kernelbraid import fold, open_store
from kernelbraid.events.campaign import RootQualified
from kernelbraid.events.sqlite import SqliteStore
from kernelbraid.kernels.audit.cuda.driver import device_count
from kernelbraid.kernels.audit.outcome import Blocks
from kernelbraid.kernels.operators.operator import load_operator
from tests.campaign.tampering import Held, edited

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ENOUGH_S = 240
NUMBER = r"\d+(\.\d+)?"
FOUND = (
    r"campaign    {campaign}, stopped: (budget|opportunities_exhausted)",
    r"audited     2, verified 2, promoted [01]",
    r"best        (i0000: the root|i0001: [a-z0-9_, ]+)",
    rf"speed-up    {NUMBER}x the root, in its last confirmation's own blocks",
)
CAMPAIGNS = {
    "attention": (5, 1, "i0002", "1.94"),
    "kv_cache_store": (3, 1, "i0002", "1.17"),
    "linear": (12, 2, "i0003", "1.14"),
    "log_softmax_gather": (3, 2, "i0002", "1.21"),
    "qk_norm": (3, 1, "i0002", "1.04"),
    "rms_norm": (3, 2, "i0002", "1.05"),
    "rope": (3, 2, "i0002", "1.13"),
    "rope_store": (3, 1, "i0002", "1.66"),
    "topk_softmax": (3, 2, "i0002", "2.25"),
}
"""By operator, in the order of the files: audited, promoted, the best and how many times faster than the root it is."""


def of_campaign(operator: str, audited: int, promoted: int, best: str, ratio: str) -> tuple[str, ...]:
    """What is printed of one campaign's log."""
    return (
        rf"{operator}-h200.jsonl.gz: {operator}-1 on NVIDIA H200",
        rf"  audited {audited}, promoted {promoted}, stopped: (budget|edits_failing)",
        rf"  best {best}: {re.escape(ratio)}x the root",
        r"  measurements recomputed: sound",
        r"  decided again: \d+ events, divergence: None",
    )


EXPECTED = {
    "quickstart": (
        FOUND[0].format(campaign="rms_norm-1"),
        *FOUND[1:],
        r"log         \d+ events, digest [0-9a-f]{16}",
    ),
    "replay_and_fork": (
        r"replayed    \d+ events, divergence: None",
        r"forked      rms_norm-1\.1 after position \d+, 2 more audits",
        r"the origin  is as it was",
    ),
    "campaigns": tuple(line for operator, found in CAMPAIGNS.items() for line in of_campaign(operator, *found)),
    "whole_model": (
        r"decoded     362 rows of logits, 0 differ from a full forward's",
        r"sampled     128 tokens, importance ratios from 1.000000 to 1.000000",
        r"trained     (\d+) of \1 parameters have a gradient",
        r"ran         attention \((best|root)\), .+",
    ),
    "own_operator": (FOUND[0].format(campaign="swiglu-1"), *FOUND[1:]),
    "own_strategy": (
        r"a0001  .+",
        r"replayed with this planner: agrees",
        r"replayed with the usual:    it decides otherwise today",
    ),
}
"""By example: what it prints with one audit, or one layer, as its argument, a pattern a line."""
NEEDED = {"whole_model": ("torch", "transformers")}
"""What an example asks for beside the package; those here ask for a GPU too."""


def run(example: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """The example's program in a folder of its own, with one audit."""
    command = [sys.executable, str(EXAMPLES / example / "run.py"), "1"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=ENOUGH_S, check=False)


def test_every_example_is_run_and_explained() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(EXPECTED)
    for name in folders:
        assert f"python examples/{name}/run.py" in (EXAMPLES / name / "README.md").read_text()


@pytest.mark.parametrize("example", EXPECTED)
def test_an_example_prints_what_its_readme_promises(example: str, tmp_path: Path) -> None:
    for name in NEEDED.get(example, ()):
        pytest.importorskip(name, reason=f"{name} is not installed")
    if example in NEEDED and not device_count():
        pytest.skip("no NVIDIA GPU here")
    ran = run(example, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    lines = ran.stdout.splitlines()
    assert len(lines) == len(EXPECTED[example]), ran.stdout
    for pattern, line in zip(EXPECTED[example], lines, strict=True):
        assert re.fullmatch(pattern, line), line
    # and nothing is left where it was started: its store was a temporary one
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("example", EXPECTED)
def test_a_readme_shows_output_of_the_programs_form(example: str) -> None:
    """Given a README's block, which is of a longer run, then it has every line, with other numbers."""
    shown = (EXAMPLES / example / "README.md").read_text().splitlines()
    for pattern in EXPECTED[example]:
        assert any(re.fullmatch(of_any_length(pattern), line) for line in shown), pattern


def of_any_length(pattern: str) -> str:
    """The pattern for a run of more audits."""
    counts = re.sub(r"(audited|verified)( +)2|(promoted) \[01\]", r"\1\2\3 *\\d+", pattern)
    return counts.replace("i0001:", r"i\d{4}:").replace("2 more", r"\d+ more")


@pytest.mark.parametrize(("operator", "implementation"), [(name, found[2]) for name, found in CAMPAIGNS.items()])
def test_what_ships_for_a_gpu_is_what_its_campaign_promoted(operator: str, implementation: str, tmp_path: Path) -> None:
    # given
    store = open_store(f"sqlite:///{tmp_path / 'campaigns.db'}")
    (name,) = store.import_(EXAMPLES / "campaigns" / f"{operator}-h200.jsonl.gz")

    # when
    state = fold(store.read(name))
    promoted = state.implementations[implementation]

    # then
    assert state.best == implementation
    shipped = load_operator(operator, "triton").best_sources()
    assert {file.name: store.blob(file.digest).decode() for file in promoted.sources} == dict(shipped)


def test_an_edited_sample_of_a_device_s_log_is_named() -> None:
    # given the shipped logs in which figures of timing sessions were recorded
    found, rng = 0, np.random.default_rng(11)
    for path in sorted((EXAMPLES / "campaigns").glob("*.gz")):
        store = SqliteStore(None)
        store.import_(path)
        (campaign,) = store.campaigns()
        held = Held.of(store, campaign.name)
        store.close()
        if not any(isinstance(item.event, RootQualified) and item.event.sessions for item in held.events):
            continue
        # when one sample of any of them is another, and everything is hashed anew
        for position, _, digest in held.timed():
            blocks = Blocks.from_bytes(held.blob(digest))
            arm = str(rng.choice(blocks.arms))
            at = cast(Any, tuple(int(rng.integers(size)) for size in blocks.samples_ns[arm].shape))
            other = edited(arm, int(blocks.samples_ns[arm][at]) + 1, at)
            # then that event is named, and no other
            problems = held.with_blocks(position, digest, other).problems()
            assert {problem.position for problem in problems} == {position}
            found += 1
    assert found >= 10
