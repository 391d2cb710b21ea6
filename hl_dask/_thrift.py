"""Thrift structs in the compact protocol, as Parquet files have them in footers and page headers.

Arrow reads them, too, and ends the process when it meets some of the damages that a file can have.
A struct becomes a dict of field numbers to values, a list a list, text and bytes become bytes.
"""

from __future__ import annotations

from typing import Any

Struct = dict[int, Any]

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = (
    1,
    2,
    3,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
)
_INTEGERS = frozenset({4, 5, 6})
_DEPTH = 24


def read_struct(raw: bytes, at: int = 0, depth: int = 0) -> tuple[Struct, int]:
    """Read a struct.

    Returns
    -------
    (dict, int)
        Values by field number, and the position after the struct.

    Raises
    ------
    ValueError
        When it is none, or ends too early.
    """
    try:
        return _struct(raw, at, depth)
    except IndexError as error:
        msg = "a struct that has no end"
        raise ValueError(msg) from error


def _struct(raw: bytes, at: int, depth: int) -> tuple[Struct, int]:
    if depth > _DEPTH:
        msg = "structs in structs without end"
        raise ValueError(msg)
    fields: Struct = {}
    number = 0
    while byte := raw[at]:
        at += 1
        kind, step = byte & 0x0F, byte >> 4
        if step:
            number += step
        else:
            zigzag, at = _varint(raw, at)
            number = (zigzag >> 1) ^ -(zigzag & 1)
        if kind <= _FALSE:
            fields[number] = kind == _TRUE
        else:
            fields[number], at = _value(raw, at, kind, depth)
    return fields, at + 1


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    byte = raw[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
        if shift > 63:
            msg = "a number of too many bytes"
            raise ValueError(msg)


def _value(raw: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in _INTEGERS:
        value, at = _varint(raw, at)
        return (value >> 1) ^ -(value & 1), at
    if kind == _BINARY:
        length, at = _varint(raw, at)
        return _bytes(raw, at, length)
    if kind == _STRUCT:
        return _struct(raw, at, depth + 1)
    if kind in (_LIST, _SET):
        return _list(raw, at, depth + 1)
    if kind in (_BYTE, _TRUE, _FALSE):
        return raw[at], at + 1
    if kind == _DOUBLE:
        return _bytes(raw, at, 8)
    if kind == _UUID:
        return _bytes(raw, at, 16)
    if kind == _MAP:
        return _map(raw, at, depth + 1)
    msg = f"a field of the unknown type {kind}"
    raise ValueError(msg)


def _bytes(raw: bytes, at: int, length: int) -> tuple[bytes, int]:
    if at + length > len(raw):
        msg = "bytes that reach beyond the end"
        raise ValueError(msg)
    return raw[at : at + length], at + length


def _list(raw: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    kind, length = raw[at] & 0x0F, raw[at] >> 4
    at += 1
    if length == 15:
        length, at = _varint(raw, at)
    if length > len(raw) - at:
        msg = "a list that reaches beyond the end"
        raise ValueError(msg)
    found = []
    for _ in range(length):
        value, at = _value(raw, at, kind, depth)
        found.append(value)
    return found, at


def _map(raw: bytes, at: int, depth: int) -> tuple[dict[Any, Any], int]:
    length, at = _varint(raw, at)
    if not length:
        return {}, at
    keys, values = raw[at] >> 4, raw[at] & 0x0F
    at += 1
    found: dict[Any, Any] = {}
    for _ in range(length):
        key, at = _value(raw, at, keys, depth)
        found[str(key)], at = _value(raw, at, values, depth)
    return found, at
