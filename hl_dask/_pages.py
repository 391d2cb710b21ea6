"""Sizes of Parquet pages, read from their headers.

The footer tells how large a column chunk is, and not how large its pages are, which is what a
reader holds. Page headers are Thrift structs whose first three fields are the type of the page, its
size decoded, and its size as stored.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from hl_dask._thrift import read_struct

HEADER_BYTES = 4_096
"""Read for a header, which may hold statistics of its page."""
DICTIONARY_PAGE = 2


class PageSizes(NamedTuple):
    """Bytes of a column chunk's first data page and of its dictionary, decoded."""

    page: int
    dictionary: int


def page_sizes(path: str, first_page: int) -> PageSizes | None:
    """Sizes of the first pages of a column chunk; None when they cannot be told.

    Parameters
    ----------
    path : str
        The file.
    first_page : int
        Where the chunk begins.
    """
    with contextlib.suppress(OSError, ValueError, KeyError), open(path, "rb") as file:
        dictionary = 0
        at = first_page
        for _ in range(2):
            file.seek(at)
            header, length = read_struct(file.read(HEADER_BYTES))
            kind, decoded, stored = header[1], header[2], header[3]
            if kind != DICTIONARY_PAGE:
                return PageSizes(decoded, dictionary)
            dictionary = decoded
            at += length + stored
    return None
