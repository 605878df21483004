"""`kernelbraid bench`: what the engine costs, what the auditor is worth, and how fast the kernels are."""

import json as json_text
import math
from pathlib import Path
from typing import Annotated

import typer

from kernelbraid.kernels.models.widths import WIDTHS
from kernelbraid.ops.bench.audit import bench_audit
from kernelbraid.ops.bench.engine import bench_engine
from kernelbraid.ops.bench.layers import ARMS, bench_layers
from kernelbraid.ops.bench.layers import table as layers_table
from kernelbraid.ops.bench.long_log import bench_long_log
from kernelbraid.ops.bench.operators import bench_operators, measurable, overview
from kernelbraid.ops.bench.operators import table as operators_table
from kernelbraid.ops.cli.options import Json
from kernelbraid.ops.terminal import emit, say, tell

bench_app = typer.Typer(no_args_is_help=True, help="Measure what the engine costs beside the audits.")


@bench_app.callback()
def bench() -> None:
    """Measure what the engine costs beside the audits."""


@bench_app.command("engine")
def engine(
    iterations: Annotated[int, typer.Option(min=1, metavar="N", help="Iterations of the synthetic search.")] = 1000,
    events: Annotated[
        int | None,
        typer.Option(min=1000, metavar="N", help="Instead: check, fold and digest a log of so many events."),
    ] = None,
    json: Json = False,
) -> None:
    """Drive the real engine with simulated audits of full size, or read a long log.

    Store (synchronous FULL, in a temporary folder), rounds and statistics are the real ones; each iteration submits
    an unrelated source of 2 KB and records timing blocks of 12 workloads and a log. The overhead leaves out what the
    simulated audits compute themselves. With --events, a log is extended to N events, then checked, folded into every
    projection and digested in a process of its own.
    """
    figures = bench_engine(iterations) if events is None else bench_long_log(events)
    if json:
        emit(figures)
        return
    for key, value in figures.items():
        say(f"{key:<22}{value}")


@bench_app.command("audit")
def audit(
    identical: Annotated[int, typer.Option(min=0, metavar="N", help="Timings of identical candidates.")] = 300,
    trials: Annotated[int, typer.Option(min=0, metavar="N", help="Timings of a true gain of 2 %.")] = 50,
    operators: Annotated[
        str, typer.Option(metavar="NAMES", help="Operators whose catalogue is walked; none when empty.")
    ] = "attention,rms_norm",
    walk: Annotated[bool, typer.Option(help="Try every mechanism once, on the best so far.")] = True,
    campaign: Annotated[
        int, typer.Option(min=0, metavar="N", help="Audits of a campaign on each operator; none when 0.")
    ] = 40,
    target: Annotated[
        str, typer.Option(metavar="TARGET", help="cpu or triton; true gains are made for cpu alone.")
    ] = "cpu",
    wall: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="Begin no timing of a trial after so long.")
    ] = None,
    json: Json = False,
) -> None:
    """Audit real kernels on this machine: false promotions, power, and seconds an audit.

    Nothing is recorded in a store. The full measurement takes about fifteen minutes and wants a machine to itself.
    """
    if trials and target != "cpu":
        raise typer.BadParameter("a true gain is made for target cpu alone; add --trials 0", param_hint="--target")
    names = tuple(name for name in operators.split(",") if name)
    figures = bench_audit(identical, trials, names, target, campaign, walk, wall or math.inf, tell)
    if json:
        emit(figures)
        return
    for key, value in figures.items():
        say(f"{key:<22}{value}")


@bench_app.command("layers")
def layers(
    arms: Annotated[
        str, typer.Option(metavar="NAMES", help="stock, library (needs flash-attn-4), library_triton, unified.")
    ] = ",".join(ARMS),
    models: Annotated[str, typer.Option(metavar="NAMES", help="Models whose layer is run.")] = ",".join(WIDTHS),
    json: Json = False,
) -> None:
    """Run one decoder layer of five models through rollout and update, under each arm, on the GPU here.

    Needs torch, transformers and a CUDA device. Each arm has a process of its own; together about two minutes.
    """
    unknown = [name for name in models.split(",") if name not in WIDTHS]
    if unknown:
        raise typer.BadParameter(f"no such model: {', '.join(unknown)}; there are {', '.join(WIDTHS)}")
    result = bench_layers(tuple(arms.split(",")), tuple(models.split(",")))
    if json:
        emit(result)
        return
    for line in layers_table(result):
        say(line)
    for failure in result["failed"]:
        say(f"{failure['arm']}, {failure['model']}: {failure['failed']}")


@bench_app.command("operators")
def operators(
    names: Annotated[
        str, typer.Option("--operators", metavar="NAMES", help="Operators to time; all that run on a GPU when empty.")
    ] = "",
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Time torch.compile too.")] = True,
    record: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Measure nothing: the tables of what --json printed into FILE."),
    ] = None,
    json: Json = False,
) -> None:
    """Time every operator beside torch, SDPA, cuBLAS and flash-attn on the GPU here, by CUDA-graph replay.

    Needs torch, triton and a CUDA device. flash-attn 2, 3 and 4 take part where they are installed.
    """
    chosen = tuple(names.split(",")) if names else measurable()
    if unknown := [name for name in chosen if name not in measurable()]:
        raise typer.BadParameter(
            f"no GPU operator of that name: {', '.join(unknown)}; there are {', '.join(measurable())}"
        )
    result = json_text.loads(record.read_text()) if record else bench_operators(chosen, compiled)
    if json:
        emit(result)
        return
    for line in (*overview(result), "", *operators_table(result)):
        say(line)
    for failure in result["failed"]:
        say(str(failure.get("failed") or failure.get("ended")))
