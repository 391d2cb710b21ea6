"""The command line: ``hl-dask``."""

import inspect
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import click

from hl_dask import demo
from hl_dask.budget import peak_bytes
from hl_dask.errors import HlDaskError
from hl_dask.memory import parse_bytes
from hl_dask.result import Result

_MB = 1e6

_HOW_TO_GO_ON = """\
How to go on

  The model of this run is {source}
  Project your own policies with it, or write your own model in the same way:

      from hl_dask.demo import TermAssurance, assumptions

      model = TermAssurance(data="policies/*.parquet", **assumptions())
      result = model.ExecuteActions(proj_len={last_month}, memory="1GB")
      result.df_agg        # totals by month
      model.plan           # the action list, what it keeps and when it lets go\
"""


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


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn errors that the user can do something about into a message and exit code 1."""
    try:
        yield
    except HlDaskError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:  # a full disk, above all
        message = f"{type(error).__name__}: {error}"
        raise click.ClickException(message) from error
