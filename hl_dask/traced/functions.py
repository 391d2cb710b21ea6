"""The table of NumPy's functions: which rule says what each does to the rows.

There are five families of rules, each in a module of its own.

elementwise
    operands broadcast; every row of the result comes from that row of the operands.
within
    ``axis=`` names an axis other than the rows: sorts, quantiles, cumulative sums within a row.
totals
    reductions over the rows: partials by block, combined in the tree.
products
    dot, matmul, einsum: within a row or totals, depending on what is summed over.
shapes
    stacking, transposing, repeating within a row.

What ranks, orders, shifts or picks rows is refused with a way out. A function that is not in the
table makes the formula opaque.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hl_dask.traced import elementwise, products, shapes, totals, within
from hl_dask.traced.dispatch import FUNCTIONS
from hl_dask.traced.rules import ORDER_REMEDY, Rule, refused, without_rows
from hl_dask.traced.totals import moments, reduce_rows, total_of_rows

__all__ = ["install", "moments", "reduce_rows", "total_of_rows"]


def _register(rule: Rule, *names: str) -> None:
    """Enter functions by name; those that this version of NumPy lacks are left out."""
    for name in names:
        function: Any = np
        for part in name.split("."):
            function = getattr(function, part, None)
        if function is not None:
            FUNCTIONS[function] = rule


BROADCASTING = {
    "clip": "a a_min a_max out min max dtype casting",
    "isclose": "a b rtol atol equal_nan",
    "select": "condlist choicelist default",
    "fix": "x out",
    "sinc": "x",
    "i0": "x",
    "angle": "z deg",
    "isneginf": "x out",
    "isposinf": "x out",
    "isreal": "x",
    "iscomplex": "x",
}
WITHIN: dict[str, tuple[str, bool, int | None]] = {
    "sort": ("a axis kind order stable", True, -1),
    "argsort": ("a axis kind order stable", True, -1),
    "partition": ("a kth axis kind order", True, -1),
    "argpartition": ("a kth axis kind order", True, -1),
    "unwrap": ("p discont axis period", True, -1),
    "flip": ("m axis", True, None),
    "roll": ("a shift axis", True, None),
    "cumsum": ("a axis dtype out", True, None),
    "cumprod": ("a axis dtype out", True, None),
    "nancumsum": ("a axis dtype out", True, None),
    "nancumprod": ("a axis dtype out", True, None),
    "cumulative_sum": ("x axis dtype out include_initial", True, None),
    "cumulative_prod": ("x axis dtype out include_initial", True, None),
    "trapezoid": ("y x dx axis", False, -1),
    "argmax": ("a axis out keepdims", False, None),
    "argmin": ("a axis out keepdims", False, None),
    "nanargmax": ("a axis out keepdims", False, None),
    "nanargmin": ("a axis out keepdims", False, None),
    "median": ("a axis out overwrite_input keepdims", False, None),
    "nanmedian": ("a axis out overwrite_input keepdims", False, None),
}
QUANTILES = "a q axis out overwrite_input method keepdims weights"
OUTER = ("add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "less", "greater")
ACCUMULATE = ("add", "multiply", "maximum", "minimum", "fmax", "fmin", "logical_or", "logical_and")
QUESTIONS = (
    "ndim",
    "shape",
    "size",
    "iscomplexobj",
    "isrealobj",
    "result_type",
    "can_cast",
    "min_scalar_type",
)
REFUSED = (
    "unique",
    "bincount",
    "histogram",
    "histogram2d",
    "histogramdd",
    "nonzero",
    "argwhere",
    "flatnonzero",
    "lexsort",
    "compress",
    "extract",
    "convolve",
    "correlate",
    "kron",
    "cov",
    "corrcoef",
    "diagonal",
    "diag",
    "trace",
    "rot90",
    "vsplit",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "intersect1d",
    "setdiff1d",
    "setxor1d",
    "union1d",
    "ediff1d",
    "put",
    "place",
    "copyto",
    "putmask",
    "put_along_axis",
    "fill_diagonal",
    "resize",
    "trim_zeros",
    "tril",
    "triu",
    "packbits",
)


def install() -> None:
    """Fill the table of rules."""
    _install_elementwise()
    _install_totals()
    _install_within()
    _install_shapes()
    _register(refused(ORDER_REMEDY), *REFUSED)


def _install_elementwise() -> None:
    for name, parameters in BROADCASTING.items():
        _register(elementwise.broadcasting(parameters), name)
    _register(elementwise.where, "where")
    _register(elementwise.choose, "choose")
    _register(elementwise.nan_to_num, "nan_to_num")
    _register(elementwise.round_, "round", "around")
    _register(elementwise.real, "real", "imag")
    _register(elementwise.real_if_close, "real_if_close")
    _register(elementwise.astype, "astype")
    _register(elementwise.polyval, "polyval")
    _register(elementwise.isin, "isin")
    _register(elementwise.search("a v side sorter", "v", ("a",)), "searchsorted")
    _register(elementwise.search("x bins right", "x", ("bins",)), "digitize")
    _register(elementwise.search("x xp fp left right period", "x", ("xp", "fp")), "interp")
    _register(elementwise.take, "take")
    _register(elementwise.take_along, "take_along_axis")
    _register(elementwise.like(0), "zeros_like", "empty_like")
    _register(elementwise.like(1), "ones_like")
    _register(elementwise.like(None), "full_like")


def _install_totals() -> None:
    for kind in ("sum", "prod", "min", "max", "any", "all"):
        _register(totals.total(kind), kind)
    _register(totals.total("min"), "amin")
    _register(totals.total("max"), "amax")
    _register(totals.total("sum", skip_nan=True), "nansum")
    _register(totals.total("prod", skip_nan=True), "nanprod")
    _register(totals.total("fmin"), "nanmin")
    _register(totals.total("fmax"), "nanmax")
    for kind in ("fmin", "fmax"):
        names = "array axis dtype out keepdims initial where"
        _register(totals.total(kind, names), f"{kind}.reduce")
    for kind in ("bitwise_or", "bitwise_and", "bitwise_xor", "logical_xor"):
        _register(totals.row_operation(kind), f"{kind}.reduce")
    _register(totals.mean(skip_nan=False), "mean")
    _register(totals.mean(skip_nan=True), "nanmean")
    for name in ("var", "std", "nanvar", "nanstd"):
        rule = totals.deviation(root=name.endswith("std"), skip_nan=name.startswith("nan"))
        _register(rule, name)
    _register(totals.count_nonzero, "count_nonzero")
    _register(totals.ptp, "ptp")
    _register(totals.average, "average")
    _register(totals.norm, "linalg.norm")
    _register(totals.allclose, "allclose")
    _register(totals.array_equal, "array_equal")
    _register(products.dot, "dot", "matmul", "vdot", "inner")
    _register(products.vecdot, "vecdot")
    _register(products.einsum, "einsum")
    _register(products.tensordot, "tensordot")
    _register(products.outer, "outer")
    for name in OUTER:
        _register(products.outer, f"{name}.outer")


def _install_within() -> None:
    for name, (parameters, keeps, default) in WITHIN.items():
        _register(within.along(parameters, keeps=keeps, default=default), name)
    for name in ("percentile", "quantile", "nanpercentile", "nanquantile"):
        _register(within.along(QUANTILES, keeps=False), name)
    accumulate = within.along("array axis dtype out", keeps=True, default=0)
    for name in ACCUMULATE:
        _register(accumulate, f"{name}.accumulate")
    _register(within.diff, "diff")
    _register(within.gradient, "gradient")


def _install_shapes() -> None:
    _register(shapes.stack, "stack")
    _register(shapes.concatenate, "concatenate")
    _register(shapes.column_stack, "column_stack")
    _register(shapes.vstack, "vstack")
    _register(shapes.hstack, "hstack")
    _register(shapes.dstack, "dstack")
    _register(shapes.append, "append")
    _register(without_rows(shapes.edited("arr obj values axis")), "insert")
    _register(without_rows(shapes.edited("arr obj axis")), "delete")
    _register(shapes.split, "split", "array_split")
    _register(shapes.hsplit, "hsplit")
    _register(shapes.unstack, "unstack")
    _register(shapes.transpose, "transpose")
    _register(shapes.swapaxes, "swapaxes")
    _register(shapes.moveaxis, "moveaxis")
    _register(shapes.rollaxis, "rollaxis")
    _register(shapes.matrix_transpose, "matrix_transpose", "linalg.matrix_transpose")
    _register(shapes.fliplr, "fliplr")
    _register(shapes.flipud, "flipud")
    _register(shapes.expand_dims, "expand_dims")
    _register(shapes.squeeze, "squeeze")
    _register(shapes.reshape, "reshape")
    _register(shapes.ravel, "ravel")
    _register(without_rows(shapes.broadcast_to), "broadcast_to")
    _register(shapes.broadcast_arrays, "broadcast_arrays")
    for ndim in (1, 2, 3):
        _register(shapes.atleast(ndim), f"atleast_{ndim}d")
    _register(without_rows(shapes.repeat), "repeat")
    _register(without_rows(shapes.tile), "tile")
    _register(shapes.copy, "copy")
    _register(shapes.question, *QUESTIONS)
