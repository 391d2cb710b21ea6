"""Actuarial projections written as small formulas, replayed over portfolios larger than memory."""

from hl_dask.aggregate import Aggregate, Sum
from hl_dask.errors import HlDaskError
from hl_dask.formula import agg, per_point, rollup
from hl_dask.grouped import total_by
from hl_dask.model import LightModel, Model
from hl_dask.plan import ActionPlan
from hl_dask.points import ModelPoints
from hl_dask.portfolio import Portfolio, PortfolioResult
from hl_dask.result import Result
from hl_dask.running import RunningTotal
from hl_dask.table import Table, lookup

__all__ = [
    "ActionPlan",
    "Aggregate",
    "HlDaskError",
    "LightModel",
    "Model",
    "ModelPoints",
    "Portfolio",
    "PortfolioResult",
    "Result",
    "RunningTotal",
    "Sum",
    "Table",
    "agg",
    "lookup",
    "per_point",
    "rollup",
    "total_by",
]
