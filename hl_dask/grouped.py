"""Totals by group, for formulas: of each fund, product or branch, and back to its policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hl_dask.errors import ModelError

MOST_GROUPS = 128
"""Groups beyond this would take more operations than a formula should."""


def total_by(group: Any, values: Any, groups: Sequence[Any] | None = None) -> Any:
    """The total of some values over all policies of the same group, for each policy.

    Parameters
    ----------
    group : text column, or array of integers or texts, shape (policies,)
        The group of each policy, such as ``self.data["fund"]``.
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
    out = None
    for name in _groups(group, groups):
        member = group == name
        if values.ndim > 1:
            member = member[(slice(None), *[np.newaxis] * (values.ndim - 1))]
        total = np.where(member, values, np.zeros((), values.dtype)).sum(axis=0)
        out = np.where(member, total, np.zeros((), total.dtype) if out is None else out)
    return out


def _groups(group: Any, groups: Sequence[Any] | None) -> list[Any]:
    if isinstance(group, str):
        msg = f"the groups are given as the text {group!r}"
        raise ModelError(msg, remedy=f'give the column itself: self.data["{group}"]')
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
