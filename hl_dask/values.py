"""Values of formulas: traced arrays, alone or within tuples, lists, dicts, text and records.

A *template* is a picture of a value with a numbered slot in place of each traced array. Templates
of two traces can be compared, and a value can be put together again from the arrays of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from hl_dask.declared import Record
from hl_dask.errors import FormulaError
from hl_dask.traced import TracedText, Tracer, check_session, full_rows, is_traced

TOLERANCE = 1e-9
"""Relative difference allowed where a total enters as a Python value: its last bits may differ."""


def normalise(tracer: Tracer, raw: Any) -> Any:
    """What a formula returned, read-only, with plain row-long arrays turned into traced ones.

    Raises
    ------
    FormulaError
        When it is an iterator, which would be used up by the first who reads it.
    """
    if is_traced(raw):
        if raw.tracer is not tracer:
            check_session(tracer, raw)
        raw.fresh = False
        return raw
    if type(raw) is tuple:
        return tuple(normalise(tracer, v) for v in raw)
    if type(raw) is list:
        return [normalise(tracer, v) for v in raw]
    if type(raw) is dict:
        return {k: normalise(tracer, v) for k, v in raw.items()}
    if isinstance(raw, Iterator):
        kind = type(raw).__name__
        message = f"the formula returned a {kind}, which can be gone through once only"
        raise FormulaError(message, remedy="return a list, an array, or a number")
    return _plain_array(tracer, raw) if isinstance(raw, np.ndarray) else raw


def _plain_array(tracer: Tracer, raw: Any) -> Any:
    if raw.ndim and raw.shape[0] == tracer.rows and tracer.notes.asked_rows:
        lifted = full_rows(tracer, raw, 0)
        lifted.fresh = False
        return lifted
    if raw.flags.writeable:
        raw = raw.view()
        raw.setflags(write=False)
    return raw


def plain_value(value: Any, assumed: dict[int, Any], rows: Any = None) -> Any:
    """The value on the sample without traces.

    Parameters
    ----------
    value : object
        A formula's value or a column.
    assumed : dict
        Portfolio values by node that are known better than from the sample.
    rows : Rows, optional
        A selection of the rows of the sample; see :class:`hl_dask.opaque.Rows`.
    """
    if is_traced(value):
        axis = value.axis
        plain = value.value if axis >= 0 else assumed.get(value.node, value.value)
        if axis >= 0 and rows is not None:
            plain = rows.of(plain, axis)
        if isinstance(plain, np.ndarray):
            plain = plain.view()
            plain.setflags(write=False)
        return plain
    if type(value) is TracedText:
        return value.plain(plain_value(value.numbers, assumed, rows))
    if type(value) is Record:
        return value.mapped(lambda v: plain_value(v, assumed, rows))
    if type(value) is tuple:
        return tuple(plain_value(v, assumed, rows) for v in value)
    if type(value) is list:
        return [plain_value(v, assumed, rows) for v in value]
    if type(value) is dict:
        return {k: plain_value(v, assumed, rows) for k, v in value.items()}
    return value


def held_bytes(value: Any) -> int:
    """Bytes of the sample values that a formula's value holds."""
    if is_traced(value):
        return int(value.value.nbytes)
    if type(value) in (tuple, list):
        return sum(held_bytes(v) for v in value)
    return 0


def same_value(a: Any, b: Any, *, exact: bool = True) -> bool:
    """Equality of two plain values, bit for bit where they are numbers (NaN equals NaN).

    Parameters
    ----------
    exact : bool
        False where totals have entered as Python values: floats may differ by :data:`TOLERANCE`.
    """
    if type(a) in (tuple, list) and type(a) is type(b):
        return len(a) == len(b) and all(
            same_value(x, y, exact=exact) for x, y in zip(a, b, strict=True)
        )
    if type(a) is dict and type(b) is dict:
        return a.keys() == b.keys() and all(same_value(a[k], b[k], exact=exact) for k in a)
    if np.shape(a) != np.shape(b):
        return False
    try:
        return _same_array(np.asarray(a), np.asarray(b), exact=exact)
    except (TypeError, ValueError):
        return a is b


def _same_array(left: Any, right: Any, *, exact: bool) -> bool:
    if left.dtype != right.dtype:
        return False
    if np.array_equal(left, right, equal_nan=left.dtype.kind in "fcmM"):
        return True
    # Totals are put together in another order here than by np.mean or np.std in one go.
    loose = left.dtype.kind in "fc" and (not exact or left.ndim == 0)
    return loose and np.allclose(left, right, rtol=TOLERANCE, atol=0, equal_nan=True)


# ---- templates -------------------------------------------------------------------------------


def template_of(value: Any, ids: list[int]) -> Any:
    """The template of a value; the nodes of its traced arrays are appended to ``ids``."""
    if is_traced(value):
        ids.append(value.node)
        return ("arg", len(ids) - 1)
    if type(value) is TracedText:
        return ("text", template_of(value.numbers, ids), value.categories)
    if type(value) is Record:
        return ("record", tuple((k, template_of(v, ids)) for k, v in value.fields()))
    if type(value) is tuple:
        return ("tuple", tuple(template_of(v, ids) for v in value))
    if type(value) is list:
        return ("list", tuple(template_of(v, ids) for v in value))
    if type(value) is dict:
        return ("dict", tuple((k, template_of(v, ids)) for k, v in value.items()))
    return ("is", value)


def from_template(template: Any, args: list[Any]) -> Any:
    """The value that a template describes, with the arrays ``args`` in its slots."""
    kind, content = template[0], template[1]
    if kind == "arg":
        return args[content]
    if kind == "text":
        dtype = pd.CategoricalDtype(pd.Index(template[2]))
        return pd.Categorical.from_codes(from_template(content, args), dtype=dtype, validate=False)
    if kind == "record":
        return Record({k: from_template(t, args) for k, t in content})
    if kind == "tuple":
        return tuple(from_template(t, args) for t in content)
    if kind == "list":
        return [from_template(t, args) for t in content]
    if kind == "dict":
        return {k: from_template(t, args) for k, t in content}
    return content


ValueShape = tuple[Any, tuple[int, ...]]
"""A value in comparable form: its template (None for one traced array), and its nodes."""


def value_shape(value: Any) -> ValueShape:
    """What a formula's value is made of."""
    if is_traced(value):
        return None, (value.node,)
    ids: list[int] = []
    return comparable(template_of(value, ids)), tuple(ids)


def comparable(template: Any) -> Any:
    """A template with constants by their content."""
    kind = template[0]
    if kind == "is":
        return _content(template[1])
    if kind in ("tuple", "list"):
        return (kind, tuple(comparable(t) for t in template[1]))
    if kind in ("dict", "record"):
        return (kind, tuple((k, comparable(t)) for k, t in template[1]))
    return (kind, template[1]) if kind == "arg" else (kind, comparable(template[1]))


def _content(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        content = repr(value.tolist()) if value.dtype.hasobject else value.tobytes()
        return ("is", value.dtype.str, value.shape, content)
    if isinstance(value, (int, float, complex, str, bytes, bool, np.generic, type(None))):
        return ("is", type(value), repr(value))
    return ("is", type(value))
