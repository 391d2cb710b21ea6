"""Running: how much memory and how many threads, passes over the rows, and checking guesses.

A pass computes reductions over all rows. Usually one is enough. Where a formula turned a total into
a Python value (``if self.surplus(t) < 0``), the recording went on with the value of the sample; the
pass also computes that total over all rows, and where the two differ the model is traced again with
the real value. Values that a pass has computed stay known by their node, so a second trace costs a
second pass only for what is new.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from hl_dask._dask_compat import progress_bar, run_here, run_threads
from hl_dask.budget import Work, peak_bytes, processors
from hl_dask.chunks import ChunkRunner
from hl_dask.cluster import (
    client_of,
    run_on,
    share_folder,
    worker_peaks,
    workers_of,
)
from hl_dask.errors import StorageError, UnsupportedError
from hl_dask.expr import POINT, REDUCTIONS, Graph
from hl_dask.kernel import evaluate_global, portfolio_ancestors
from hl_dask.lower import Share, lower, lower_phase
from hl_dask.memory import parse_bytes
from hl_dask.planning import CHUNK, programs_of, reductions_of, roots_of
from hl_dask.points import ModelPoints
from hl_dask.program import BEFORE, Program
from hl_dask.record import Recording
from hl_dask.relay import Relay
from hl_dask.replay import same_number
from hl_dask.settings import (
    SYNCHRONOUS,
    RunStats,
    Settings,
    check_granularity,
    check_scheduler,
    floating_errors,
)
from hl_dask.shelves import FileShelf, MemoryShelf, Shelf
from hl_dask.ways import Fit, Way, fit_programs, ways_of, ways_on

LIGHT_OPERATIONS = 8
"""Operations on the rows of a total that is found out before anything else is done."""
MOST_RETRACES = 48
"""Times that a model is traced again for the sake of Python values, beside two for each of them."""


@contextlib.contextmanager
def _progress(show: bool) -> Iterator[None]:
    if not show:
        yield
        return
    with progress_bar(sys.stderr):
        yield


def _is_light(graph: Graph, node: int) -> bool:
    """Whether no more than a few operations on the rows lead to a node."""
    seen: set[int] = set()
    stack = [node]
    while stack and len(seen) <= LIGHT_OPERATIONS:
        for arg in graph.args[stack.pop()]:
            if graph.kinds[arg] == POINT and arg not in seen:
                seen.add(arg)
                stack.append(arg)
    return len(seen) <= LIGHT_OPERATIONS


def _is_phased(runners: dict[int, ChunkRunner]) -> bool:
    return any(runner.program.is_phased for runner in runners.values())


# ---- passes ----------------------------------------------------------------------------------


class Projection:
    """Recorded models with data: passes over the rows until all guesses are verified.

    Parameters
    ----------
    recordings : list of Recording
        What was traced: of one model, or of the models of a portfolio, which share a graph.
    rerecord : callable
        ``rerecord(recordings, assumed)`` traces again with known portfolio values.
    points : list of ModelPoints or None
        The rows of each model.
    block_rows : int
        Rows of a block.
    settings : Settings
        What the user asked for.
    """

    def __init__(
        self,
        recordings: list[Recording],
        rerecord: Callable[[list[Recording], dict[int, Any]], list[Recording]],
        points: Sequence[ModelPoints | None],
        block_rows: int,
        settings: Settings,
    ) -> None:
        check_scheduler(settings.scheduler)
        check_granularity(settings.granularity)
        self.recordings = recordings
        self.rerecord = rerecord
        self.points = list(points)
        self.rows = [1 if each is None else each.rows for each in points]
        self.block_rows = block_rows
        self.settings = settings
        self.known: dict[int, Any] = {}
        self.checked: set[int] = set()  # guards whose guess was right
        self.shelves: list[Shelf] = []
        self.relay: Relay | None = None
        self.way = Way()
        self.is_shared: bool | None = None  # a directory that all workers see
        self.chunk_blocks: int | None = None
        self.barrier = False
        self.is_light = False
        self.stats = RunStats(rows=sum(self.rows), months=recordings[0].proj_len + 1)

    @property
    def recording(self) -> Recording:
        """The first recording, for what all of them share: graph, guards, guesses."""
        return self.recordings[0]

    def roots(self) -> list[int]:
        """Portfolio nodes that are wanted: outputs and guards."""
        return roots_of(self.recordings)

    def missing(self) -> list[int]:
        """Reductions that are needed and not known."""
        return [n for n in reductions_of(self.recordings) if n not in self.known]

    def prepare(self, client: Any = None) -> tuple[dict[Any, Any], str] | None:
        """The Dask graph of the next pass, within the memory allowed.

        None if nothing is left, or if the pass is one of several phases.

        Parameters
        ----------
        client : Client, optional
            Whose workers will compute it; this process by default.
        """
        runners = self._runners(client)
        if not runners or _is_phased(runners):
            return None
        return lower(list(runners.values()), uuid.uuid4().hex[:12])

    def _runners(self, client: Any) -> dict[int, ChunkRunner]:
        """What runs the chunks of the next pass, within the memory allowed, by number of the model.

        Empty when nothing is left to do.
        """
        missing = self.missing()
        if not missing:
            return {}
        started = time.perf_counter()
        self.is_light = False
        if not self.stats.passes:
            light = self._light()
            self.is_light = bool(light) and len(light) < len(missing)
            missing = light if self.is_light else missing
        given = {node for shelf in self.shelves for node in shelf.nodes}
        given |= self.relay.nodes if self.relay is not None else set()
        compiled = partial(
            programs_of,
            self.recordings,
            missing,
            self.settings.granularity,
            self.known.copy(),
            given,
            barrier=self.barrier,
        )
        works, fitted, self.way = self._fitted(lambda again: compiled(again=again), client)
        at_once = fitted.workers if client is not None else None
        runners = {
            k: ChunkRunner.make(work.program, work.points, blocks, floating_errors(), at_once)
            for (k, work), blocks in zip(works.items(), fitted.cuts, strict=True)
        }
        if _is_phased(runners) and not self.shelves and self.relay is None:
            self._open(list(works.values()), client)
        self.chunk_blocks = fitted.cuts[0].chunk_blocks
        stats = self.stats
        stats.workers, stats.estimate = fitted.workers, fitted.projected
        stats.allowed_bytes = fitted.allowed_bytes
        so_far = peak_bytes() if client is None else 0
        stats.projected_bytes = max(stats.projected_bytes, fitted.projected.total_bytes, so_far)
        stats.chunk_rows = max(blocks.chunk_rows for blocks in fitted.cuts)
        stats.n_blocks = sum(blocks.n_blocks for blocks in fitted.cuts)
        stats.n_chunks = sum(blocks.n_chunks for blocks in fitted.cuts)
        stats.plan_s += time.perf_counter() - started
        return runners

    def _shared(self, client: Any) -> bool:
        """Whether all workers see the scratch directory; they have to where one is named."""
        named = self.settings.scratch
        try:
            is_shared = share_folder(client, str(named or tempfile.gettempdir()))
        except OSError as error:
            msg = f"no scratch directory can be made: {error}"
            raise StorageError(
                msg, file=str(named or tempfile.gettempdir()), remedy="give another one: scratch="
            ) from error
        if named is not None and not is_shared:
            msg = "not all workers see the scratch directory, or may write into it"
            raise StorageError(
                msg,
                file=str(named),
                remedy="name one that they do; without scratch= states stay with the workers",
            )
        return is_shared

    def _open(self, works: list[Work], client: Any) -> None:
        """A place for the states of each model."""
        needed = sum(2 * work.program.state_row_bytes * work.rows for work in works)

        def in_files() -> FileShelf:
            return FileShelf(self.settings.scratch, needed)

        self.stats.states = self.way.place
        if not self.way.holders:
            for _ in self.points:
                self.shelves.append(in_files() if self.way.in_files else MemoryShelf())
            return
        stores = [in_files() for _ in self.points] if self.is_shared else []
        self.relay = Relay(client, stores, progress=self._shows())

    def _close(self) -> None:
        while self.shelves:
            self.shelves.pop().close()
        if self.relay is not None:
            self.relay.close()
            self.relay = None

    def _light(self) -> list[int]:
        """Totals that became Python values and cost next to nothing: they are found out first.

        ``range(int(self.data["term"].max()))`` decides how much there is to do at all.
        """
        graph, guards = self.recording.graph, [node for node, _ in self.recording.guards]
        return [
            node
            for node in portfolio_ancestors(graph, guards)
            if graph.ops[node].name in REDUCTIONS
            and node not in self.known
            and graph.phases[node] == 1
            and _is_light(graph, node)
        ]

    def _fitted(self, programs: Callable[..., list[Program]], client: Any) -> Fit:
        """Programs, blocks, threads, projection, allowance, and where states are kept."""
        settings = self.settings
        most = 1 if settings.scheduler in SYNCHRONOUS else (settings.workers or processors())
        memory, base_bytes = settings.memory, None
        ways = ways_of(self.points)
        if client is not None:
            there = workers_of(client)
            most = min(settings.workers or there.threads, there.threads)
            base_bytes = there.base_bytes
            # What is allowed is for all workers together.
            memory = there.limit_bytes if memory is None else parse_bytes(memory) // there.number
            if any(program.is_phased for program in programs(())) and self.is_shared is None:
                self.is_shared = self._shared(client)
            ways = ways_on(there.number, is_shared=bool(self.is_shared))
        goes_on = bool(self.shelves) or self.relay is not None
        if goes_on:
            ways = [self.way]
        return fit_programs(
            programs,
            self.points,
            self.rows,
            ways,
            block_rows=self.block_rows,
            memory=memory,
            most_workers=most,
            # States that are there already are of the chunks that there were.
            chunk_blocks=self.chunk_blocks if goes_on else settings.chunk_blocks,
            base_bytes=base_bytes,
            # Nobody can hold some of the threads of a worker back from its tasks.
            all_workers=client is not None and settings.granularity != CHUNK,
        )

    def one_pass(self) -> bool:
        """Compute what is missing; False when nothing was."""
        with client_of(self.settings.scheduler) as client:
            runners = self._runners(client)
            if not runners:
                return False
            started = time.perf_counter()
            try:
                if _is_phased(runners):
                    self._phases(runners, client)
                    self.stats.passes += 1
                else:
                    graph, key = lower(list(runners.values()), uuid.uuid4().hex[:12])
                    self.take_in(self._computed(graph, key, client))
            finally:
                for points in self.points:
                    if points is not None:
                        points.release()
            self.stats.measured_bytes = peak_bytes()
            if client is not None:
                self.stats.worker_peaks = worker_peaks(client)
                self.stats.measured_bytes = max(self.stats.worker_peaks.values(), default=0)
            self.stats.replay_s += time.perf_counter() - started
            return True

    def _phases(self, runners: dict[int, ChunkRunner], client: Any) -> None:
        """Phase by phase, until all is known or a guess turns out wrong."""
        left = sorted({s.phase for r in runners.values() for s in r.program.segments} - {BEFORE})
        while left:
            if self.relay is None:
                count, found = 1, self._phase(runners, left[0], client)
            else:
                count = self.relay.batch(runners, one_by_one=bool(self._guessed()))
                name = uuid.uuid4().hex[:12]
                batch, is_last = left[:count], count >= len(left)
                found = self.relay.run(runners, batch, self.known, name, is_last=is_last)
                count = len(batch)
            self.known.update(found)
            self.stats.phases += count
            del left[:count]
            if self.wrong_guards():
                break

    def _guessed(self) -> list[int]:
        """Guards whose guess has not been checked."""
        return [node for node, _ in self.recording.guards if node not in self.checked]

    def _phase(self, runners: dict[int, ChunkRunner], phase: int, client: Any) -> dict[int, Any]:
        """A phase as a graph of its own, with states on shelves."""
        recording = self.recording
        shares: list[Share] = []
        for k, runner in runners.items():
            program, shelf = runner.program, self.shelves[k]
            for number, segment in enumerate(program.segments):
                if segment.phase == phase:
                    wanted = program.globals.get(phase, ())
                    values = evaluate_global(
                        recording.graph, wanted, self.known, recording.describe
                    )
                    kinds = {node: program.kind_of(node) for node in segment.makes}
                    shelf.begin(segment.makes, segment.keeps, kinds)
                    known = {node: values[node] for node in wanted}
                    shares.append(Share(runner, number, shelf, known))
        graph, key = lower_phase(shares, uuid.uuid4().hex[:12])
        found: dict[int, Any] = self._computed(graph, key, client)
        for share in shares:
            share.shelf.finish()
        return found

    def _shows(self) -> bool:
        """Whether to show a progress bar."""
        show = self.settings.progress
        return bool(getattr(sys.stderr, "isatty", lambda: False)()) if show is None else show

    def _computed(self, graph: dict[Any, Any], key: str, client: Any) -> Any:
        show = self._shows()
        if client is not None:
            return run_on(client, graph, key, progress=show)
        with _progress(show):
            if self.settings.scheduler in SYNCHRONOUS:
                return run_here(graph, key)
            return run_threads(graph, key, self.stats.workers)

    def take_in(self, values: dict[int, Any]) -> None:
        """Keep the reductions of a pass."""
        self.known.update(values)
        self.stats.passes += 1

    def wrong_guards(self) -> dict[int, Any]:
        """Guards whose guess was wrong, with the real values, as far as they are known."""
        recording = self.recording
        graph = recording.graph
        found: dict[int, Any] = {}
        for node, _ in recording.guards:
            if node in self.checked:
                continue
            rests_on = portfolio_ancestors(graph, [node])
            if any(graph.ops[n].name in REDUCTIONS and n not in self.known for n in rests_on):
                continue
            real = evaluate_global(graph, [node], self.known, recording.describe)[node]
            if same_number(real, recording.assumed[node]):
                self.checked.add(node)
            else:
                found[node] = real
        return found

    def verified(self) -> bool:
        """Check the guesses of the recording; trace again where one was wrong."""
        wrong = self.wrong_guards()
        if not wrong:
            return True
        assumed = {**self.recording.assumed, **wrong}
        started = time.perf_counter()
        # What comes next may rest on this guess: from now on it waits for each of them.
        self.barrier = self.barrier or not self.is_light
        self.recordings = self.rerecord(self.recordings, assumed)
        self.stats.record_s += time.perf_counter() - started
        return False

    def run(self) -> dict[int, Any]:
        """Values of all wanted portfolio nodes.

        Raises
        ------
        UnsupportedError
            When guesses keep turning out wrong.
        """
        retraced = 0
        try:
            while True:
                self.one_pass()
                if self.verified():
                    if not self.missing():
                        break
                    continue
                retraced += 1
                if retraced > MOST_RETRACES + 2 * len(self.recording.guards):
                    raise self._endless()
        finally:
            self._close()
        recording = self.recording
        return evaluate_global(recording.graph, self.roots(), self.known, recording.describe)

    def _endless(self) -> UnsupportedError:
        owner = self.recording.guards[-1][1]
        msg = "totals turned into Python values keep changing what comes next, without an end"
        return UnsupportedError(
            msg,
            formula=self.recording.describe(owner),
            remedy="keep the choice in arrays (np.where(total < 0, a, b)), or use RunModel",
        )
