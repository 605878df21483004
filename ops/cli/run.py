"""`kernelbraid run`: open a campaign and search."""

from pathlib import Path
from typing import Annotated

import typer

from kernelbraid.agents import search
from kernelbraid.agents.search import TARGETS
from kernelbraid.events.values import Policy
from kernelbraid.kernels.operators.operator import operator_names
from kernelbraid.ops import champions
from kernelbraid.ops.cli.options import Json, MetricsPort, StoreUrl
from kernelbraid.ops.driving import drive
from kernelbraid.ops.exits import NotFound, Unavailable
from kernelbraid.ops.harnesses import harness_factory
from kernelbraid.ops.wiring import session_of, writing


def run(
    context: typer.Context,
    operator: Annotated[
        str, typer.Argument(metavar="OPERATOR", help="An operator's name, or a folder with an operator.toml.")
    ],
    name: Annotated[str | None, typer.Option(help="The campaign's name. Default: the operator's, numbered.")] = None,
    target: Annotated[str, typer.Option(help="What to search for: cpu, or triton on an NVIDIA GPU.")] = "cpu",
    proposer: Annotated[
        str, typer.Option(help="Who proposes rewrites: catalogue. (model and outside come later.)")
    ] = "catalogue",
    audits: Annotated[int | None, typer.Option(min=1, help="Stop after this many audits.")] = None,
    kappa: Annotated[int, typer.Option(min=1, help="Stop after this many audits in a row without a new best.")] = 30,
    tokens: Annotated[int | None, typer.Option(min=1, help="Stop after this many model tokens.")] = None,
    cost: Annotated[float | None, typer.Option(min=1e-9, metavar="USD", help="Stop after spending this much.")] = None,
    wall: Annotated[
        float | None, typer.Option(min=1e-3, metavar="SECONDS", help="Stop after driving this long.")
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, max=64, help="Actions in flight at once; timing stays serial.")] = 1,
    seed: Annotated[int, typer.Option(min=-(2**63), max=2**63 - 1, help="Seed of every random choice.")] = 0,
    unsafe_no_sandbox: Annotated[
        bool, typer.Option("--unsafe-no-sandbox", help="Run candidates with your own rights, without a sandbox.")
    ] = False,
    metrics_port: MetricsPort = None,
    json: Json = False,
    store: StoreUrl = None,
) -> None:
    """Search for faster kernels of OPERATOR until a budget, kappa or the opportunities run out.

    Progress goes to stderr. At the end stdout gets the table of workloads (with --json the summary), and the best's
    sources with their evidence are written beside the store. Ctrl-C pauses after the running audit; `resume` goes on.
    A best of this operator that was measured in another environment is named first, with what differs.
    """
    require_available(target, proposer)
    require_operator(operator)
    session = session_of(context, store)
    policy = Policy(seed=seed, parallel=parallel, kappa=kappa, audits=audits, tokens=tokens, cost_usd=cost, wall_s=wall)
    with writing(session) as log:
        code = drive(
            log,
            lambda driven, watch, pause: search.run(
                operator,
                store=driven,
                target=target,
                policy=policy,
                name=name,
                strategies=session.wiring.strategies,
                harness=champions.warning_of(harness_factory(session.wiring, unsafe_no_sandbox), champions.known(log)),
                watch=watch,
                pause_requested=pause,
            ),
            json=json,
            metrics_port=metrics_port,
        )
    raise typer.Exit(code)


def require_available(target: str, proposer: str) -> None:
    """Raises Unavailable for what a later version does."""
    if target == "cuda":
        raise Unavailable("--target cuda is not in this version, which searches cpu and triton")
    if target not in TARGETS:
        raise Unavailable(f"there is no target {target}: this version searches {' and '.join(TARGETS)}")
    if proposer in ("model", "outside"):
        raise Unavailable(
            f"--proposer {proposer} is not in this version, whose proposer is the catalogue: leave --proposer out"
        )
    if proposer != "catalogue":
        raise Unavailable(f"there is no proposer {proposer}: this version has the catalogue")


def require_operator(operator: str) -> None:
    """Raises NotFound for a name that is neither packaged nor a folder with a declaration."""
    if operator not in operator_names() and not (Path(operator) / "operator.toml").is_file():
        known = ", ".join(operator_names())
        raise NotFound(f"there is no operator {operator}: known are {known}, or name a folder with an operator.toml")
