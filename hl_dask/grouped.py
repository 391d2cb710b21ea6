"""Totals by group, for formulas: of each fund, product or branch, and back to its policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hl_dask.errors import ModelError
from hl_dask.formula import RUNNING

MOST_GROUPS = 128
"""Groups beyond this would take more operations than a formula should."""


def total_by(group: Any, values: Any, groups: Sequence[Any] | None = None) -> Any:
    """The total of some values over all policies of the same group, for each policy.

    Parameters
    ----------
    group : str, text column, or array of integers or texts, shape (policies,)
        The group of each policy: the name of a column, such as ``"fund"``, or the column itself.
    values : array, shape (policies, ...)
        What is added up.
    groups : sequence, optional
        The groups there are; those of a text column by default.

    Returns
    -------
    array, shape (policies, ...)
        For each policy the total of its group, as ``frame.groupby(group).transform("sum")`` gives
        it. Zero for a policy of no group, where ``groups`` leaves some out.

    Raises
    ------
    ModelError
        When the groups are not known, or are more than 128.

    Examples
    --------
    A policy's share of the assets of its fund, in a formula:

    >>> assets = np.array([1.0, 2.0, 3.0, 4.0])
    >>> fund = np.array([7, 8, 7, 8])
    >>> assets / total_by(fund, assets, groups=[7, 8])
    array([0.25      , 0.33333333, 0.75      , 0.66666667])
    """
    if isinstance(group, str):
        group = _column(group)
    names = group_names(group, groups)
    return by_group(group, names, [group_total(group, name, values) for name in names])


def group_total(group: Any, name: Any, values: Any) -> Any:
    """The total of the values of one group."""
    return np.where(_members(group, name, values.ndim), values, np.zeros((), values.dtype)).sum(
        axis=0
    )


def by_group(group: Any, names: Sequence[Any], totals: Sequence[Any]) -> Any:
    """For each policy the total of its group, zero where it has none."""
    out: Any = None
    for name, total in zip(names, totals, strict=True):
        other = np.zeros((), total.dtype) if out is None else out
        out = np.where(_members(group, name, total.ndim + 1), total, other)
    return out


def _members(group: Any, name: Any, ndim: int) -> Any:
    """Which policies are of a group, in a shape that fits values of so many axes."""
    member = group == name
    return member if ndim == 1 else member[(slice(None), *[np.newaxis] * (ndim - 1))]


def _column(name: str) -> Any:
    """A column of the model whose formula is running."""
    model = RUNNING.get()
    if model is None:
        msg = f"the group is named {name!r}, and no formula is running whose model has the column"
        raise ModelError(msg, remedy="give the groups of the policies as an array")
    return model.data[name]


def group_names(group: Any, groups: Sequence[Any] | None) -> list[Any]:
    """The groups there are: those given, or those of a text column.

    Raises
    ------
    ModelError
        When they are not known, or too many.
    """
    if groups is None:
        groups = getattr(group, "categories", None)
    if groups is None:
        msg = "which groups there are is known of text columns only"
        raise ModelError(msg, remedy="name them: total_by(group, values, groups=[...])")
    found = list(groups)
    if not 1 <= len(found) <= MOST_GROUPS:
        msg = f"there are {len(found):,} groups; total_by takes 1 to {MOST_GROUPS}"
        raise ModelError(
            msg, remedy="give fewer with groups=, or group the policies more coarsely before"
        )
    return found
