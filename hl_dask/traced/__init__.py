"""The duck array that formulas see while a model is recorded.

A :class:`TracedArray` carries the value on a small sample *and* the node of the expression graph
that made it. NumPy's protocols hand every operation on it to this package, which records the
operation (`functions` knows what each NumPy function does to rows) or refuses it. What cannot be
seen, an *escape*, is reported to the :class:`Tracer` and never passes silently.

The rooms, from the bottom up::

    tracer                  writes nodes into the graph
    base, ops               values with nodes; alignment of rows, ufuncs, calls
    lookups, indexing       x[...], table[x], x[...] = y, reshape
    dispatch                NumPy's protocols -> a rule, a ufunc, or an escape
    rules                   what rules have in common
    elementwise, within, totals, products, shapes     rules by family
    functions               the table of rules
    concrete, array, text, shared                     what formulas hold in their hands
"""

from hl_dask.traced.array import TracedArray
from hl_dask.traced.base import UNSEEN, is_traced
from hl_dask.traced.functions import install as _install
from hl_dask.traced.functions import reduce_rows, total_of_rows
from hl_dask.traced.ops import check_session, fill, full_rows
from hl_dask.traced.shared import SharedArray, share
from hl_dask.traced.text import TracedText
from hl_dask.traced.tracer import Notes, SampleUsedError, Tracer

_install()

__all__ = [
    "UNSEEN",
    "Notes",
    "SampleUsedError",
    "SharedArray",
    "TracedArray",
    "TracedText",
    "Tracer",
    "check_session",
    "fill",
    "full_rows",
    "is_traced",
    "reduce_rows",
    "share",
    "total_of_rows",
]
