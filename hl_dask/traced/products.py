"""Rules for products of arrays: dot, matmul, einsum, tensordot, outer."""

from __future__ import annotations

import string
from typing import Any

import numpy as np

from hl_dask.traced.base import Traced, dimensions, has_rows, is_traced, sample_value
from hl_dask.traced.ops import attempt, call
from hl_dask.traced.rules import options_of
from hl_dask.traced.tracer import Tracer

PRODUCT_REMEDY = "write it as a total: (x[:, :, None] * y[:, None, :]).sum(axis=0)"


def dot(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """dot, matmul, inner and vdot of at most one axis of rows."""
    options = options_of(tracer, func, "a b", args, kwargs)
    a, b = (x if is_traced(x) else np.asarray(x) for x in (options["a"], options["b"]))
    if not has_rows((a, b)):
        return call(tracer, func, (a, b), {}, axis=-1)
    nd = [dimensions(x) for x in (a, b)]
    axes = [x.axis if is_traced(x) else -1 for x in (a, b)]
    if func is np.vdot or nd == [1, 1]:
        _check_width(tracer, func, (a, b))
    if func is np.vdot:
        return np.sum(np.conj(a) * b)
    if 0 in nd and func is not np.matmul:
        return a * b
    if nd == [1, 1]:
        return np.sum(a * b)
    # (rows, k) @ shared (k,) or (k, m): every row is multiplied by the same matrix.
    if axes[1] < 0 and nd[1] <= 2 and axes[0] < nd[0] - 1:
        return call(tracer, func, (a, b), {}, axis=axes[0])
    # shared (m, k) @ (k, rows): the rows are the columns of the result.
    if axes[0] < 0 and nd[0] <= 2 and nd[1] == 2 and axes[1] == 1 and func is not np.inner:
        return call(tracer, func, (a, b), {}, axis=nd[0] - 1)
    # (k, rows) @ (rows, m): a sum over the rows of products within each row.
    if axes == [nd[0] - 1, 0] and max(nd) <= 2 and func is not np.inner:
        left, right = "ji"[2 - nd[0] :], "ik"[: nd[1]]
        out = "j" * (nd[0] > 1) + "k" * (nd[1] > 1)
        products = call(tracer, np.einsum, (f"{left},{right}->i{out}", a, b), {}, axis=0)
        return _total_of(tracer, products, func, (a, b))
    msg = f"np.{func.__name__} over the rows"
    raise tracer.mixing(msg, PRODUCT_REMEDY)


def _check_width(tracer: Tracer, func: Any, args: tuple[Any, ...]) -> None:
    """Refuse products over rows in a narrow type, which NumPy adds up in that very type.

    A sum of it would be wider: of truth values np.dot makes "or", and small integers wrap around.
    """
    dtype = np.result_type(*(_typed(a) for a in args if hasattr(a, "dtype")))
    if dtype.kind == "b" or dtype.itemsize < 8:
        msg = f"np.{func.__name__} over rows of dtype {dtype}, which is added up in that type,"
        raise tracer.mixing(msg, "use x.astype(float) or x.astype(np.int64) before it")


def _typed(value: Any) -> Any:
    """What decides about the type of a product: the type of a traced array, else the value."""
    return value.dtype if is_traced(value) else value


def _total_of(tracer: Tracer, products: Any, func: Any, args: tuple[Any, ...]) -> Any:
    """The sum over the rows, its first axis, of an array; ``func(*args)`` is the same in one go.

    NumPy adds up in another order in one go. Taking that value for the sample lets the recording
    find it equal to a plain evaluation.
    """
    _check_width(tracer, func, args)
    node = np.sum(products, axis=0).node
    if tracer.blind:
        return Traced.make(tracer, node)
    return Traced.make(tracer, node, attempt(tracer, func, [sample_value(a) for a in args], {}))


def vecdot(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.vecdot``: the scalar product along the last axis."""
    a, b = args
    left, right = (dimensions(x) for x in args)
    rows = {x.axis - n for x, n in ((a, left), (b, right)) if has_rows(x)}
    if kwargs or len(rows) > 1:
        msg = "np.vecdot with options, or of rows on different axes,"
        raise tracer.mixing(msg, PRODUCT_REMEDY)
    if rows == {-1}:
        return np.sum(np.conj(a) * b, axis=-1)
    if not rows:
        return call(tracer, func, args, {}, axis=-1)
    return call(tracer, func, args, {}, axis=max(left, right) + rows.pop())


def einsum(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.einsum`` with subscripts: the rows have one letter, which is kept or summed over."""
    subscripts, operands = args[0], args[1:]
    if not isinstance(subscripts, str) or "." in subscripts or kwargs:
        msg = "np.einsum with options, or without a letter for each axis,"
        raise tracer.mixing(msg, "name every axis, as in np.einsum('ij,j->i', x, w)")
    inputs, out = _parsed(subscripts.replace(" ", ""))
    return _product(tracer, func, args, (inputs, out, operands))


def _parsed(subscripts: str) -> tuple[list[str], str]:
    """Letters of the operands and of the result, which einsum lets you leave out."""
    left, arrow, out = subscripts.partition("->")
    if not arrow:
        letters = left.replace(",", "")
        out = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return left.split(","), out


def tensordot(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.tensordot``, as the sum over letters that it stands for."""
    options = options_of(tracer, func, "a b axes", args, kwargs)
    a, b, axes = options["a"], options["b"], options.get("axes", 2)
    left, right = dimensions(a), dimensions(b)
    if isinstance(axes, (int, np.integer)):
        pairs = [(left - axes + k, k) for k in range(axes)]
    else:
        over = [np.atleast_1d(side).tolist() for side in axes]
        pairs = [(i % left, j % right) for i, j in zip(*over, strict=True)]
    first, second = list(string.ascii_lowercase[:left]), list(string.ascii_uppercase[:right])
    for i, j in pairs:
        second[j] = first[i]
    summed = {first[i] for i, _ in pairs}
    out = "".join(c for c in first + second if c not in summed)
    inputs = ["".join(first), "".join(second)]
    return _product(tracer, func, (a, b, axes), (inputs, out, (a, b)))


def _product(
    tracer: Tracer, func: Any, args: Any, meaning: tuple[list[str], str, tuple[Any, ...]]
) -> Any:
    """A sum of products, ``func(*args)``, that means letters, letters of the result, operands."""
    inputs, out, operands = meaning
    if not has_rows(operands):
        return call(tracer, func, args, {}, axis=-1)
    letter = _letter_of_rows(tracer, func, inputs, operands)
    if letter in out:
        return call(tracer, func, args, {}, axis=out.index(letter))
    kept = f"{','.join(inputs)}->{letter}{out}"
    products = call(tracer, np.einsum, (kept, *operands), {}, axis=0)
    return _total_of(tracer, products, func, args)


def _letter_of_rows(tracer: Tracer, func: Any, inputs: list[str], operands: tuple[Any, ...]) -> str:
    """The one letter of the rows."""
    pairs = list(zip(inputs, operands, strict=False))
    letters = {text[x.axis] for text, x in pairs if has_rows(x)}
    letter = min(letters)
    held = [has_rows(x) for text, x in pairs if letter in text]
    if len(letters) > 1 or not all(held) or any(text.count(letter) > 1 for text, _ in pairs):
        msg = f"np.{func.__name__} of rows with each other"
        raise tracer.mixing(msg, PRODUCT_REMEDY)
    return letter


def outer(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """``np.outer`` and ``ufunc.outer`` of rows with a shared array."""
    a, b = args[:2]
    ufunc = np.multiply if func is np.outer else func.__self__
    if not has_rows((args, kwargs)):
        return call(tracer, func, args, kwargs, axis=-1)
    if kwargs or len(args) > 2 or (has_rows(a) and has_rows(b)):
        msg = f"np.{func.__name__} of rows with rows"
        raise tracer.mixing(msg, PRODUCT_REMEDY)
    ndims = [dimensions(x) for x in args]
    if func is np.outer and ndims != [1, 1]:
        msg = "np.outer of arrays with several axes"
        raise tracer.mixing(msg, "use x[:, :, None] * y")
    b = b if is_traced(b) else np.asarray(b)
    a = a if is_traced(a) else np.asarray(a)
    return ufunc(a[(..., *[None] * ndims[1])], b)
