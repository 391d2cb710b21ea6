"""The command line of the benchmarks."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from benchmarks import _measure, basic_term, cluster, feedback, memory, parquet, recording
from hl_dask import demo


class _Listed(click.ParamType):
    """Words between commas, each turned into ``kind``."""

    name = "list"

    def __init__(self, kind: Callable[[str], Any]):
        self.kind = kind

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return [self.kind(word.strip()) for word in value.split(",") if word.strip()]
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _size(word: str) -> int:
    rows = int(word.replace("_", ""))
    if rows < 1:
        message = f"a number of rows is at least 1, not {word}"
        raise ValueError(message)
    return rows


def _peer(word: str) -> str:
    if word not in basic_term.PEERS:
        message = f"{word!r} is not a peer; there are {', '.join(basic_term.PEERS)}"
        raise ValueError(message)
    return word


_json = click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write here too.")
_repeat = click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True)


@click.group()
def main() -> None:
    """Benchmarks of hl_dask; run them from the root of the repository."""


@main.command("basic_term")
@click.option("--rows", type=_Listed(_size), default="1000000", show_default=True)
@click.option("--peers", type=_Listed(_peer), default="heavylight,batches", show_default=True)
@_repeat
@_json
def basic_term_command(
    rows: Sequence[int], peers: Sequence[str], repeat: int, json_file: str | None
) -> None:
    """Run BasicTerm_ME on random policies in memory, against heavylight."""
    _measure.report(basic_term.run(rows, peers, repeat), json_file)


@main.command("recording")
@_repeat
@_json
def recording_command(repeat: int, json_file: str | None) -> None:
    """Time trace and plan: BasicTerm_ME, and 1,200 months of 100 generated formulas."""
    _measure.report(recording.run(repeat), json_file)


@main.command("cluster")
@click.option("--rows", type=_Listed(_size), default="1000000", show_default=True)
@_repeat
@_json
def cluster_command(rows: Sequence[int], repeat: int, json_file: str | None) -> None:
    """Local worker processes against threads: seconds, overhead for each chunk, bits."""
    measured = cluster.run(rows, repeat)
    _measure.report(measured, json_file)
    for line in cluster.overheads(measured):
        click.echo(line)


@main.command("feedback")
@click.option("--rows", type=_Listed(_size), default="1000000", show_default=True)
@click.option("--spill", is_flag=True, help="Run states of 3 GB within 1 GB and on 2 workers.")
@_repeat
@_json
def feedback_command(rows: Sequence[int], spill: bool, repeat: int, json_file: str | None) -> None:
    """Totals that feed back, month by month: against straight NumPy on whole arrays."""
    if spill:
        for line in feedback.spill():
            click.echo(line)
        return
    _measure.report(feedback.run(rows, repeat), json_file)


@main.command("memory")
@click.option("--rows", type=_Listed(_size), default="100000,1000000,10000000", show_default=True)
@click.option("--memory", "budgets", type=_Listed(str), default="400MB,1GB,4GB", show_default=True)
@click.option(
    "--times",
    type=_Listed(_size),
    default="",
    help="Measure data so many times as large as the first budget instead, e.g. 1,20.",
)
@click.option(
    "--months",
    type=click.IntRange(1, demo.MONTHS),
    default=demo.MONTHS,
    show_default=True,
    help="Months to project, with --times.",
)
@_json
def memory_command(
    rows: Sequence[int],
    budgets: Sequence[str],
    times: Sequence[int],
    months: int,
    json_file: str | None,
) -> None:
    """Projected and measured peaks: every number of rows with every budget."""
    measured = memory.scale(budgets[0], times, months) if times else memory.run(rows, budgets)
    _measure.report(measured, json_file)
    for line in memory.broken_promises(measured):
        click.echo(line)


@main.command("parquet")
@click.option("--rows", type=_Listed(_size), default="1000000,10000000", show_default=True)
@click.option("--memory", default="1GB", show_default=True, help="Total resident size allowed.")
@_repeat
@_json
def parquet_command(rows: Sequence[int], memory: str, repeat: int, json_file: str | None) -> None:
    """Run 277 months of the demo's model from Parquet within a budget of memory."""
    _measure.report(parquet.run(rows, memory, repeat), json_file)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
