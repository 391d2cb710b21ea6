"""Several models, each with its own policies, run together: products that share a fund."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from hl_dask._explain import memory_lines, notes, summary
from hl_dask.blocks import BLOCK_ROWS
from hl_dask.errors import MemoryBudgetError, ModelError, PlanError
from hl_dask.execution import (
    Execution,
    Order,
    Recorded,
    all_hold,
    check_count,
    project_memory,
    record_orders,
)
from hl_dask.model import Model, run_models
from hl_dask.plan import ActionPlan
from hl_dask.report import check_proj_len
from hl_dask.result import Result
from hl_dask.settings import RunStats, Settings

Outputs = Mapping[str, Sequence[str] | None]


class PortfolioResult(Mapping[str, Result]):
    """Totals of a run of several models: ``result["annuity"]`` is the Result of one of them.

    Attributes
    ----------
    df_agg : DataFrame
        A row for each t, columns ``(model, formula, argument, ...)``.
    values : dict
        Reported formulas without t, by ``(model, formula)``.
    stats : RunStats
        Time, memory, chunks, of all models together.
    """

    def __init__(self, results: Mapping[str, Result]) -> None:
        self._results = dict(results)
        self.df_agg = beside({name: result.df_agg for name, result in results.items()})
        self.values = {  # type: ignore[assignment, method-assign]
            (name, *_tuple(label)): value
            for name, result in results.items()
            for label, value in result.values.items()
        }
        self.stats: RunStats = next(iter(results.values())).stats

    @property
    def thresholds(self) -> pd.DataFrame:
        """Totals that were compared; see :attr:`hl_dask.Result.thresholds`."""
        frames = {name: result.thresholds for name, result in self._results.items()}
        return pd.concat(frames, names=["model"]).reset_index("model").reset_index(drop=True)

    def __getitem__(self, name: str) -> Result:
        return self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        return f"<PortfolioResult of {', '.join(self._results)}: {self.stats.rows:,} policies>"


def beside(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Tables side by side, with the name of each above its columns."""
    labels = [(name, *_tuple(label)) for name, frame in frames.items() for label in frame.columns]
    width = max((len(label) for label in labels), default=2)
    joined = pd.concat(list(frames.values()), axis=1)
    joined.columns = pd.MultiIndex.from_tuples(
        [(*label, *[""] * (width - len(label))) for label in labels],
        names=["model", "formula", *[None] * (width - 2)],
    )
    return joined


def _tuple(label: Any) -> tuple[Any, ...]:
    return label if isinstance(label, tuple) else (label,)


class Portfolio(Mapping[str, Model]):
    """Models with data of their own that are run together and may ask each other for totals.

    In a formula of any of them, ``self.portfolio.total("assets", t)`` is the total over all
    policies of all models that have a formula ``assets``, ``self.portfolio.total_by("fund",
    "assets", t)`` the total of each policy's fund, and ``self.portfolio["annuity"].rate(t)`` a
    value without rows of another model; see :class:`~hl_dask.members.PortfolioView`.

    Parameters
    ----------
    models : mapping of str to Model
        The models by name. Data and assumptions are assigned to them as before; a model belongs to
        the last portfolio that it was given to.

    Raises
    ------
    ModelError
        When there are none, or one is given twice.

    Examples
    --------
    >>> import numpy as np
    >>> import hl_dask as hl
    >>> class Share(hl.Model):
    ...     def assets(self, t):
    ...         return self.data["assets"] * 1.01**t
    ...
    ...     @hl.agg(None)
    ...     def share(self, t):
    ...         return self.assets(t) / self.portfolio.total("assets", t)
    ...
    ...     def shares(self, t):
    ...         return self.share(t).sum()
    >>> one = Share(data={"assets": np.array([10.0, 20.0])})
    >>> other = Share(data={"assets": np.array([70.0])})
    >>> book = hl.Portfolio({"one": one, "other": other})
    >>> book.RunModel(0)
    >>> book.df_agg["one"]["shares"].round(9).tolist()
    [0.3]
    """

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models: dict[str, Model] = dict(models)
        if not self._models:
            msg = "a portfolio has at least one model"
            raise ModelError(msg, remedy='give them by name: hl.Portfolio({"term": model})')
        for name, model in self._models.items():
            given: tuple[Any, Any] = name, model
            if not isinstance(given[0], str) or not isinstance(given[1], Model):
                msg = f"a portfolio has models by name; got {name!r}: {type(model).__name__}"
                raise ModelError(msg, remedy='give instances: hl.Portfolio({"term": Term(...)})')
        if len({id(model) for model in self._models.values()}) < len(self._models):
            msg = "a model is given twice to a portfolio"
            raise ModelError(msg, remedy="make another one, or a copy: copy.copy(model)")
        self._proj_len: int | None = None
        self._kept: list[Recorded] | None = None
        self._result: PortfolioResult | None = None
        self._adopt()

    def _adopt(self) -> None:
        for model in self._models.values():
            model.__dict__["_portfolio"] = self
            model._clear()

    def __getitem__(self, name: str) -> Model:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<Portfolio of {', '.join(self._models)}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None, "_result": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._adopt()

    # ---- plain runs --------------------------------------------------------------------------

    def RunModel(self, proj_len: int) -> None:  # noqa: N802 - a framework method
        """Run all models in memory with every value cached; see :meth:`hl_dask.Model.RunModel`."""
        self._check()
        run_models(self._models, check_proj_len(proj_len))
        self._proj_len, self._result = proj_len, None

    @property
    def df_agg(self) -> pd.DataFrame:
        """Totals of the last run by t, with columns ``(model, formula, argument, ...)``."""
        self._check()
        return beside({name: model.df_agg for name, model in self._models.items()})

    @property
    def result(self) -> PortfolioResult | None:
        """The result of the last ``ExecuteActions``, None after anything was changed."""
        if self._result is not None:
            models = self._models.items()
            if any(model.result is not self._result[name] for name, model in models):
                self._result = None
        return self._result

    def Clear(self) -> None:  # noqa: N802 - a framework method
        """Forget cached values and results of all models."""
        for model in self._models.values():
            model.Clear()

    # ---- recording and replay ----------------------------------------------------------------

    def GenerateActions(  # noqa: N802 - a framework method
        self,
        proj_len: int | None = None,
        outputs: Outputs | None = None,
        *,
        block_rows: int = BLOCK_ROWS,
    ) -> dict[str, ActionPlan]:
        """Record all models together.

        Parameters
        ----------
        proj_len : int, optional
            The last time step; that of the last run by default.
        outputs : mapping of str to sequence of str, optional
            Formulas to be reported, by model; by default all that have an aggregate.
        block_rows : int
            Rows of a block, the unit of summation.

        Returns
        -------
        dict of str to ActionPlan
            The action list of each model.
        """
        orders = self._orders(proj_len, outputs, block_rows)
        self._kept, self._proj_len = record_orders(list(orders.values())), orders_len(orders)
        return self.plans

    @property
    def plans(self) -> dict[str, ActionPlan]:
        """The action lists of the last recording, by model; empty before."""
        kept = self._kept or []
        return {name: each.plan for name, each in zip(self._models, kept, strict=False)}

    def ExecuteActions(  # noqa: N802 - a framework method
        self,
        proj_len: int | None = None,
        outputs: Outputs | None = None,
        *,
        memory: int | str | None = None,
        scheduler: Any = None,
        workers: int | None = None,
        block_rows: int | None = None,
        chunk_blocks: int | None = None,
        granularity: str = "chunk",
        scratch: str | Path | None = None,
        progress: bool | None = None,
        compute: bool = True,
    ) -> Any:
        """Replay all models on their data, as one Dask graph, in bounded memory.

        Parameters are those of :meth:`hl_dask.Model.ExecuteActions`; ``outputs`` are given by
        model, as in :meth:`GenerateActions`.

        Returns
        -------
        PortfolioResult
            Also kept as ``portfolio.result``; ``portfolio.df_agg`` and ``model.df_agg`` of each
            model give the totals.

        Raises
        ------
        MemoryBudgetError
            Before any work, when the projected peak is above ``memory``.
        OpaqueFormulaError
            When formulas cannot be followed and the data are not in memory.
        """
        for name, value in (("chunk_blocks", chunk_blocks), ("workers", workers)):
            check_count(name, value)
        if self._kept is not None:
            plans = self.plans
            first = next(iter(plans.values()))
            proj_len = first.proj_len if proj_len is None else proj_len
            outputs = {n: p.outputs for n, p in plans.items()} if outputs is None else outputs
            block_rows = first.block_rows if block_rows is None else block_rows
        orders = self._orders(proj_len, outputs, block_rows or BLOCK_ROWS, memory)
        settings = Settings(
            memory, scheduler, workers, chunk_blocks, progress, granularity, scratch
        )
        editions = {name: model._edition for name, model in self._models.items()}

        def publish(results: list[Result]) -> PortfolioResult:
            found = PortfolioResult(dict(zip(self._models, results, strict=True)))
            if editions == {name: model._edition for name, model in self._models.items()}:
                self._result, self._proj_len = found, orders_len(orders)
                for name, model in self._models.items():
                    model._take_over(found[name], editions[name])
            return found

        execution = Execution(list(orders.values()), settings, self._kept, publish)
        self._kept = execution.recorded
        return execution.execute() if compute else execution.lazy()

    def explain(self, memory: int | str | None = None) -> str:
        """What a run does and costs, model by model and in all, as text.

        Parameters
        ----------
        memory : int or str, optional
            Total resident memory allowed; by default what a run would take it to be.
        """
        if self._kept is None:
            self.GenerateActions()
        plans = self.plans
        lines: list[str] = []
        for name, plan in plans.items():
            points = self._models[name]._row_points()
            cut = plan.blocks(1 if points is None else points.rows)
            head, *rest = summary(plan, cut)
            lines += [f"{name}: {head}", *rest, *notes(plan)]
        first = next(iter(plans.values()))
        try:
            projected = self._projected(None, first, None, memory)
        except MemoryBudgetError as error:
            return "\n".join([*lines, f"  refused: {error.message}", f"  {error.remedy}"])
        if projected is not None:
            lines += ["together:", *memory_lines(projected)]
        return "\n".join(lines)

    # ---- what a run needs --------------------------------------------------------------------

    def _check(self) -> None:
        """Refuse to work with models that have gone to another portfolio."""
        gone = [n for n, model in self._models.items() if model._portfolio is not self]
        if gone:
            msg = f"models that were given to another portfolio since: {', '.join(gone)}"
            raise ModelError(msg, remedy="use that one, or make this one again: hl.Portfolio(...)")

    def _orders(
        self,
        proj_len: int | None,
        outputs: Outputs | None,
        block_rows: int,
        memory: int | str | None = None,
    ) -> dict[str, Order]:
        """A snapshot of the models with what is asked of them."""
        self._check()
        proj_len = self._proj_len if proj_len is None else proj_len
        if proj_len is None:
            msg = "the projection length is not known: the portfolio has not been run"
            raise PlanError(msg, remedy="give proj_len=..., or call RunModel first")
        proj_len = check_proj_len(proj_len)
        if outputs is not None and not isinstance(outputs, Mapping):
            msg = f"outputs of a portfolio are given by model; got {outputs!r}"
            raise ModelError(msg, remedy=f'write outputs={{"{next(iter(self))}": ["premiums"]}}')
        unknown = [name for name in outputs or {} if name not in self._models]
        if unknown:
            msg = f"outputs names no model of the portfolio: {', '.join(map(str, unknown))}"
            raise ModelError(msg, remedy=f"choose among {', '.join(self._models)}")
        found = {}
        for name, model in self._models.items():
            # A mapping that leaves a model out asks nothing of it but what the others need.
            asked = None if outputs is None else outputs.get(name, ())
            order = model._order(proj_len, asked, block_rows, memory=memory)
            bind = partial(self._bind, name)
            found[name] = replace(order, subject=replace(order.subject, member=name), bind=bind)
        return found

    def _bind(self, name: str, plan: ActionPlan) -> ActionPlan:
        def evaluator(plan: ActionPlan) -> Any:
            del plan
            msg = f"the plan is of {name!r} within a portfolio, whose totals rest on other models"
            raise PlanError(msg, remedy="use RunModel of the portfolio, and look at model.cache")

        return plan.bound(evaluator, partial(self._projected, name))

    def _projected(
        self, name: str | None, plan: ActionPlan, rows: int | None, memory: int | str | None
    ) -> Any:
        """The memory that a run is projected to take, with so many rows of one model."""
        outputs = {n: p.outputs for n, p in self.plans.items()}
        orders = self._orders(plan.proj_len, outputs, plan.block_rows)
        listed = list(orders.values())
        kept = self._kept
        if kept is None or not all_hold(kept, listed):
            kept = self._kept = record_orders(listed)
        counts = [rows if n == name and rows else order.rows for n, order in orders.items()]
        return project_memory(kept, listed, counts, memory)


def orders_len(orders: Mapping[str, Order]) -> int:
    """The last time step of orders that belong together."""
    return next(iter(orders.values())).proj_len
