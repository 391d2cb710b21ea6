"""Sizes of Parquet pages, read from their headers.

The footer tells how large a column chunk is, and not how large its pages are, which is what a
reader holds. Page headers are Thrift structs in the compact protocol; the three fields that are
wanted come first: the type of the page, its size decoded, its size as stored.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

HEADER_BYTES = 64
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
    with contextlib.suppress(OSError, ValueError, IndexError), open(path, "rb") as file:
        dictionary = 0
        at = first_page
        for _ in range(2):
            file.seek(at)
            kind, decoded, stored, length = _header(file.read(HEADER_BYTES))
            if kind != DICTIONARY_PAGE:
                return PageSizes(decoded, dictionary)
            dictionary = decoded
            # The rest of the header has a few fields more; the next page begins after the data.
            file.seek(at)
            at += _header_length(file.read(HEADER_BYTES), length) + stored
    return None


def _header(raw: bytes) -> tuple[int, int, int, int]:
    """Type, decoded size, stored size, and where the fields after them begin."""
    at = 0
    fields = []
    for _ in range(3):
        if raw[at] != 0x15:  # the next field, an i32
            msg = "no page header"
            raise ValueError(msg)
        value, at = _varint(raw, at + 1)
        fields.append((value >> 1) ^ -(value & 1))
    return fields[0], fields[1], fields[2], at


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _header_length(raw: bytes, at: int) -> int:
    """Bytes of a page header, past its structs, down to the byte that ends it."""
    return _skip_struct(raw, at)


def _skip_struct(raw: bytes, at: int) -> int:
    while raw[at]:
        kind, short = raw[at] & 0x0F, raw[at] >> 4
        at += 1
        if not short:
            _, at = _varint(raw, at)
        if kind in (1, 2):  # a flag is in the type
            continue
        if kind == 3:
            at += 1
        elif kind in (4, 5, 6):
            _, at = _varint(raw, at)
        elif kind == 7:
            at += 8
        elif kind == 8:
            length, at = _varint(raw, at)
            at += length
        elif kind == 12:
            at = _skip_struct(raw, at)
        else:
            msg = "an unknown field"
            raise ValueError(msg)
    return at + 1
