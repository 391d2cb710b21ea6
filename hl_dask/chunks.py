"""Running one chunk: read its columns, run its blocks, return its part of the tree."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from hl_dask.aggregate import Tree
from hl_dask.blocks import Blocks
from hl_dask.errors import HlDaskError
from hl_dask.kernel import Machine
from hl_dask.points import ModelPoints
from hl_dask.program import Program


@dataclass(slots=True)
class ChunkRunner:
    """Runs chunks; one machine for each thread that does.

    Attributes
    ----------
    errstate : dict
        How NumPy treats floating-point errors, as in :func:`numpy.errstate`.
    """

    program: Program
    points: ModelPoints | None
    blocks: Blocks
    errstate: dict[str, Any]
    machines: list[Machine]
    lock: Any

    @classmethod
    def make(
        cls, program: Program, points: ModelPoints | None, blocks: Blocks, errstate: dict[str, Any]
    ) -> ChunkRunner:
        """A runner without machines; threads make theirs when they first need one."""
        return cls(program, points, blocks, errstate, [], threading.Lock())

    def __call__(self, chunk: int) -> Tree:
        """Partials of a chunk, as nodes of the tree over blocks."""
        machine = self._take()
        try:
            with np.errstate(**self.errstate):
                return self._run(machine, chunk)
        finally:
            with self.lock:
                self.machines.append(machine)

    def _take(self) -> Machine:
        with self.lock:
            if self.machines:
                return self.machines.pop()
        return Machine(self.program, min(self.blocks.block_rows, self.blocks.rows))

    def _run(self, machine: Machine, chunk: int) -> Tree:
        start, stop = self.blocks.chunk(chunk)
        columns: dict[str, Any] = {}
        if self.points is not None and self.program.columns:
            columns = self.points.read(start, stop, self.program.columns)
        tree = Tree(self.blocks.n_blocks, self.program.combine)
        for block in self.blocks.blocks_of(chunk):
            first, last = self.blocks.block(block)
            part = {k: v[first - start : last - start] for k, v in columns.items()}
            try:
                tree.add(block, machine.run_block(part, last - first))
            except HlDaskError as error:
                # A row number in the message counts from the first row of the block.
                error.rows = f"{first:,} to {last - 1:,}, counted from the first of them"
                raise
        return tree
