"""Columns of several levels as texts, and back: ``("pols_at", "end")`` is ``pols_at[end]``.

Files and Dask DataFrames want one text for each column. Arguments are written as Python writes
them, but for texts that look like names, which go without quotes: ``claims[death, 3]`` has the text
``"death"`` and the number 3, ``claims['3']`` the text ``"3"``.
"""

from __future__ import annotations

import ast
import keyword
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hl_dask.errors import UnsupportedError

NUMBERS = {"nan": math.nan, "inf": math.inf}
"""Numbers that Python writes as names."""


def label_text(label: Any) -> str:
    """A column as one text: ``pols_if``, or ``pols_if_at[BEF_DECR]`` for one with arguments.

    Numbers, texts, booleans, None and tuples of these come back from it as they were, other
    arguments (dates, members of an enum) as texts.
    """
    if not isinstance(label, tuple):
        return str(label)
    parts = list(label[1:])
    while parts and isinstance(parts[-1], str) and parts[-1] == "":
        parts.pop()  # what fills the levels up
    return f"{label[0]}[{', '.join(map(_argument, parts))}]" if parts else str(label[0])


def _argument(value: Any) -> str:
    plain = value.item() if isinstance(value, np.generic) else value
    if type(plain) is str:
        is_name = plain.isidentifier() and not keyword.iskeyword(plain) and plain not in NUMBERS
        return plain if is_name else repr(plain)
    if plain is None or type(plain) in (bool, int, float):
        return repr(plain)
    if type(plain) is tuple:
        inner = ", ".join(map(_argument, plain))
        return f"({inner},)" if len(plain) == 1 else f"({inner})"
    return _argument(str(value))


def label_of(text: str) -> tuple[Any, ...]:
    """The column that :func:`label_text` has made this text of; text in other forms as it is."""
    name, bracket, rest = text.partition("[")
    if not bracket or not rest.endswith("]"):
        return (text,)
    try:
        parsed = ast.parse(f"({rest[:-1]},)", mode="eval").body
        arguments = _value(parsed)
    except (SyntaxError, ValueError):
        return (text,)
    return (name, *arguments)


def _value(node: ast.AST) -> Any:
    if isinstance(node, ast.Tuple):
        return tuple(_value(part) for part in node.elts)
    if isinstance(node, ast.Name):
        return NUMBERS.get(node.id, node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    return ast.literal_eval(node)


def flat_columns(columns: Iterable[Any]) -> pd.Index[Any]:
    """One text for each column.

    Raises
    ------
    UnsupportedError
        When two columns have the same text, which arguments of the user's own classes may cause.
    """
    texts = [label_text(column) for column in columns]
    if len(set(texts)) < len(texts):
        twice = next(text for k, text in enumerate(texts) if text in texts[:k])
        msg = f"two columns have the same text {twice!r}, because their arguments print alike"
        raise UnsupportedError(msg, remedy="call the formula with texts or numbers as arguments")
    return pd.Index(texts)


def split_columns(texts: Iterable[str]) -> pd.Index[Any]:
    """The columns that :func:`flat_columns` has made these texts of.

    Examples
    --------
    >>> split_columns(["premiums", "claims[death]", "claims[lapse]"]).tolist()
    [('premiums', ''), ('claims', 'death'), ('claims', 'lapse')]
    >>> split_columns(["premiums", "claims"]).tolist()
    ['premiums', 'claims']
    """
    return stacked([label_of(text) for text in texts])


def stacked(
    labels: Sequence[tuple[Any, ...]], names: Sequence[str | None] = ("formula",)
) -> pd.Index[Any]:
    """Labels as columns: of one level if they are names alone, else filled up with ``""``."""
    width = max((len(label) for label in labels), default=1)
    columns: pd.Index[Any] = pd.Index([label[0] for label in labels])
    if width > 1:
        full = [(*label, *[""] * (width - len(label))) for label in labels]
        columns = pd.MultiIndex.from_tuples(full, names=[*names, *[None] * width][:width])
    return columns
