"""The command line: ``hl-dask``.

Exit codes: 0 for a run that went well, 1 when ``check`` has found differences, 2 for a command that
is not well formed, 3 for an error in data, model, memory or files, 4 for any other error, 130 after
Ctrl-C.
"""

import inspect
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

import click

from hl_dask import demo
from hl_dask.budget import peak_bytes
from hl_dask.errors import HlDaskError
from hl_dask.labels import label_text
from hl_dask.memory import parse_bytes
from hl_dask.model import Model
from hl_dask.points import ModelPoints
from hl_dask.result import Result
from hl_dask.script import load_model, make_model, missing_assumption, parse_filter, parse_setting

_MB = 1e6

_HOW_TO_GO_ON = """\
How to go on

  The model of this run is {source}
  Project your own policies with it, or write your own model in the same way:

      from hl_dask.demo import TermAssurance, assumptions

      model = TermAssurance(data="policies/*.parquet", **assumptions())
      result = model.ExecuteActions(proj_len={last_month}, memory="1GB")
      result.df_agg        # totals by month
      model.plan           # the action list, what it keeps and when it lets go

  Or from the command line, with a model of your own in model.py:

      hl-dask run model.py:Term --data "policies/*.parquet" --proj-len {last_month} --memory 1GB\
"""

DIFFERENCES, FAULT, UNEXPECTED, INTERRUPTED = 1, 3, 4, 130
"""Exit codes beside 0 and click's 2."""
WRITERS = {".parquet": "to_parquet", ".csv": "to_csv", ".xlsx": "to_excel"}


@click.group()
@click.version_option(package_name="hl-dask")
def main() -> None:
    """Project life insurance portfolios that are larger than memory."""


@main.command("demo")
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="Policies in the random portfolio.",
)
@click.option(
    "--memory",
    default="1GB",
    show_default=True,
    help="Total resident memory that the run may reach.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
def demo_command(rows: int, memory: str, seed: int) -> None:
    """Project a random portfolio of term assurances from Parquet files.

    Writes the portfolio to a temporary directory, which is removed at the end, projects it over
    277 months in bounded memory on all cores, and prints totals by year.
    """
    with _plain_errors():
        parse_bytes(memory)  # a slip of the pen is told before anything is written
        _demo(rows, memory, seed)


def _demo(rows: int, memory: str, seed: int) -> None:
    with tempfile.TemporaryDirectory(prefix="hl-dask-demo-") as folder:
        click.echo(f"Writing {rows:,} policies to {folder} ...")
        start = perf_counter()
        written_bytes = demo.write_portfolio(Path(folder), rows, seed)
        click.echo(f"{written_bytes / _MB:,.1f} MB of Parquet in {perf_counter() - start:.1f} s")

        model = demo.TermAssurance(data=f"{folder}/*.parquet", **demo.assumptions())
        start = perf_counter()
        model.GenerateActions(proj_len=demo.MONTHS - 1)
        click.echo(f"Action list recorded in {perf_counter() - start:.2f} s; projecting ...")
        start = perf_counter()
        result = model.ExecuteActions(memory=memory)
        _report(result, rows, perf_counter() - start)


def _report(result: Result, rows: int, seconds: float) -> None:
    yearly = result.by_year()
    click.echo("\nTotals by year (policies in force: at its start)\n")
    click.echo(yearly.to_string(float_format="{:,.0f}".format))
    click.echo(f"\nPresent value of net cash flows: {result.values['pv_net_cf']:,.2f}\n")
    stats = result.stats
    click.echo(
        f"Peak memory: projected {stats.projected_bytes / _MB:,.0f} MB, "
        f"measured {peak_bytes() / _MB:,.0f} MB, allowed {stats.allowed_bytes / _MB:,.0f} MB"
    )
    speed = rows * demo.MONTHS / seconds / 1e6
    click.echo(
        f"Speed: {rows:,} policies x {demo.MONTHS} months in {seconds:.1f} s, "
        f"{speed:,.1f} million policies x months per second\n"
    )
    source = inspect.getsourcefile(demo.TermAssurance)
    click.echo(_HOW_TO_GO_ON.format(source=source, last_month=demo.MONTHS - 1))


# ---- models of the user's own ----------------------------------------------------------------


def _model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What ``run``, ``explain`` and ``check`` have in common."""
    options = [
        click.argument("model", metavar="FILE_OR_MODULE[:CLASS]"),
        click.option(
            "--data",
            multiple=True,
            metavar="PATH",
            help="Parquet or CSV files: a file, a directory or a glob in quotes; may be repeated.",
        ),
        click.option(
            "--where",
            multiple=True,
            metavar="'COLUMN OPERATOR VALUE'",
            help="Take these policies only, e.g. 'age >= 40', 'product in term,whole'; repeated, "
            "all must hold.",
        ),
        click.option(
            "--proj-len",
            type=click.IntRange(min=0),
            required=True,
            metavar="N",
            help="The last time step: t = 0..N.",
        ),
        click.option("--outputs", metavar="A,B", help="Formulas to report; all by default."),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="NAME=VALUE",
            help="An assumption: a number, text, true, false, none, or a file after @ "
            "(.csv a table, .npy an array, .json); may be repeated.",
        ),
        click.option("--memory", help="Total resident memory that the run may reach, such as 1GB."),
        click.option("--debug", is_flag=True, help="Show the traceback of an error."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn errors into messages and exit codes."""

    @wraps(command)
    def guarded(*args: Any, debug: bool = False, **kwargs: Any) -> Any:
        with _plain_errors(debug=debug):
            return command(*args, **kwargs)

    return guarded


def _model(
    model: str,
    data: tuple[str, ...],
    where: tuple[str, ...],
    settings: tuple[str, ...],
    memory: str | None,
) -> Model:
    # Slips of the pen are told before anything is read.
    if memory is not None:
        parse_bytes(memory)
    if where and not data:
        message = "--where takes some of the policies of --data, which is not given"
        raise click.UsageError(message)
    filters = [parse_filter(text) for text in where]
    assumptions = dict(parse_setting(text) for text in settings)
    maker = load_model(model)
    points = ModelPoints(list(data), where=filters or None) if data else None
    return make_model(maker, points, assumptions)


def _names(outputs: str | None) -> list[str] | None:
    return None if outputs is None else [name.strip() for name in outputs.split(",")]


RUN_EXAMPLES = """\b
Examples
  hl-dask run term.py --data "policies/*.parquet" --proj-len 276 --memory 1GB
  hl-dask run term.py:Term --data 2026/ --proj-len 120 --set mort=@mort.csv --by year
  hl-dask run term.py --data 2026/ --where "issued >= 2020-01-01" --proj-len 120
  hl-dask run mycompany.models:Term --data p.csv --proj-len 60 --out totals.parquet"""


@main.command("run", epilog=RUN_EXAMPLES)
@_model_options
@click.option(
    "--scheduler", help="threads (the default), synchronous, or an address such as tcp://host:8786."
)
@click.option(
    "--granularity",
    type=click.Choice(["chunk", "step", "formula"]),
    default="chunk",
    show_default=True,
    help="What one task does.",
)
@click.option("--workers", type=click.IntRange(min=1), help="Threads; one a processor by default.")
@click.option(
    "--by", type=click.Choice(["year", "quarter"]), help="Roll months up, as formulas declare."
)
@click.option(
    "--out",
    metavar="FILE",
    help="Write a .parquet, .csv or .xlsx file instead of printing a table.",
)
@click.option("--overwrite", is_flag=True, help="Replace a file that exists.")
@click.option("-v", "--verbose", is_flag=True, help="Say what is done and what it takes.")
@_guarded
def run_command(
    model: str,
    data: tuple[str, ...],
    where: tuple[str, ...],
    proj_len: int,
    outputs: str | None,
    settings: tuple[str, ...],
    memory: str | None,
    scheduler: str | None,
    granularity: str,
    workers: int | None,
    by: str | None,
    out: str | None,
    overwrite: bool,
    verbose: bool,
) -> None:
    """Project policies with a model, and print or write the totals."""
    _check_out(out, by, overwrite)
    made = _model(model, data, where, settings, memory)
    started = perf_counter()
    result = made.ExecuteActions(
        proj_len,
        outputs=_names(outputs),
        memory=memory,
        scheduler=scheduler,
        granularity=granularity,
        workers=workers,
    )
    if verbose:
        _tell(result, perf_counter() - started)
    if out is not None:
        written = getattr(result, WRITERS[Path(out).suffix.lower()])(out, overwrite=overwrite)
        click.echo(f"written: {written}", err=True)
        return
    frame = result.df_agg if by is None else getattr(result, f"by_{by}")()
    if len(frame.columns):
        click.echo(frame.to_string())
    for name, value in result.values.items():
        click.echo(f"{label_text(name)}: {value}")


def _check_out(out: str | None, by: str | None, overwrite: bool) -> None:
    """Refuse an output that cannot be written before anything is computed."""
    if out is None:
        return
    path = Path(out)
    if path.suffix.lower() not in WRITERS:
        message = f"--out {out}: expected a name that ends in {', '.join(WRITERS)}"
        raise click.UsageError(message)
    if by is not None:
        message = "--out writes the totals by month; --by is for the table that is printed"
        raise click.UsageError(message)
    if path.exists() and not overwrite:
        message = f"--out {out}: the file exists already; add --overwrite to replace it"
        raise click.UsageError(message)


def _tell(result: Result, seconds: float) -> None:
    stats = result.stats
    lines = [
        f"recorded in {stats.record_s:.2f} s, {stats.passes} pass(es) in {stats.replay_s:.2f} s",
        f"{stats.rows:,} policies x {stats.months} months: {stats.n_blocks:,} blocks in "
        f"{stats.n_chunks:,} chunks of {stats.chunk_rows:,} rows on {stats.workers} thread(s)",
        f"memory: projected {stats.projected_bytes / _MB:,.0f} MB, measured "
        f"{peak_bytes() / _MB:,.0f} MB, allowed {stats.allowed_bytes / _MB:,.0f} MB",
        f"{stats.rows * stats.months / max(seconds, 1e-9) / 1e6:,.1f} million policies x months "
        f"per second, {seconds:.2f} s in all",
    ]
    for line in lines:
        click.echo(line, err=True)


EXPLAIN_EXAMPLES = """\b
Examples
  hl-dask explain term.py --data "policies/*.parquet" --proj-len 276 --memory 1GB
  hl-dask explain term.py --data sample.parquet --proj-len 12 --actions"""


@main.command("explain", epilog=EXPLAIN_EXAMPLES)
@_model_options
@click.option("--actions", is_flag=True, help="Print the action list as well.")
@click.option("--save", metavar="FILE", help="Save the plan as JSON.")
@_guarded
def explain_command(
    model: str,
    data: tuple[str, ...],
    where: tuple[str, ...],
    proj_len: int,
    outputs: str | None,
    settings: tuple[str, ...],
    memory: str | None,
    actions: bool,
    save: str | None,
) -> None:
    """Say what a run would do, and what it would take, without running it."""
    made = _model(model, data, where, settings, memory)
    plan = made.GenerateActions(proj_len, outputs=_names(outputs))
    click.echo(plan.explain(memory=memory))
    if actions:
        click.echo(plan.to_frame().to_string())
    if save is not None:
        plan.save(save)
        click.echo(f"written: {save}", err=True)


CHECK_EXAMPLES = """\b
Examples
  hl-dask check term.py --data sample.parquet --proj-len 120"""


@main.command("check", epilog=CHECK_EXAMPLES)
@_model_options
@_guarded
def check_command(
    model: str,
    data: tuple[str, ...],
    where: tuple[str, ...],
    proj_len: int,
    outputs: str | None,
    settings: tuple[str, ...],
    memory: str | None,
) -> None:
    """Compare the replay with a plain run on a sample, formula call by formula call.

    The exit code is 1 when there are differences.
    """
    made = _model(model, data, where, settings, memory)
    made.GenerateActions(proj_len, outputs=_names(outputs))
    found = made.Check(proj_len)
    if len(found):
        click.echo(found.to_string(index=False))
        click.echo(f"{len(found)} formula calls differ", err=True)
        raise click.exceptions.Exit(DIFFERENCES)
    click.echo("the replay agrees with a plain run")


# ---- errors ----------------------------------------------------------------------------------


@contextmanager
def _plain_errors(*, debug: bool = False) -> Iterator[None]:
    """Turn errors that the user can do something about into a message and an exit code."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit):
        raise
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except HlDaskError as error:
        _fail(error, str(error) + _hint(error), FAULT, debug=debug)
    except OSError as error:  # a full disk, above all
        _fail(error, f"{type(error).__name__}: {error}", FAULT, debug=debug)
    except Exception as error:
        message = f"{type(error).__name__}: {error}\n  (--debug shows where)"
        _fail(error, message, UNEXPECTED, debug=debug)


def _hint(error: HlDaskError) -> str:
    name = missing_assumption(error)
    return "" if name is None else f"\n  perhaps an assumption is missing: --set {name}=..."


def _fail(error: BaseException, message: str, code: int, *, debug: bool) -> NoReturn:
    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True)
    click.echo(f"Error: {message}", err=True)
    raise click.exceptions.Exit(code)
