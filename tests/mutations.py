"""Inputs gone wrong: a portfolio in files, and more than a hundred ways to spoil it.

Each mutation is a function that is given a folder with the good files and spoils them there. What
should come of it is decided by pandas and pyarrow: where they read the columns that the model
needs, as numbers and text without nulls, the answer is the one of NumPy on what they read.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 900
Mutation = Callable[[Path], None]
MUTATIONS: dict[str, Mutation] = {}


def portfolio(rows: int = ROWS) -> pa.Table:
    """Return the good policies."""
    rng = np.random.default_rng(17)
    return pa.table(
        {
            "age": rng.integers(20, 80, rows),
            "premium": np.round(rng.uniform(10, 90, rows), 2),
            "sex": rng.choice(["F", "M"], rows),
            "unused": rng.random(rows),
        }
    )


def write(folder: Path, *tables: pa.Table, **options: object) -> None:
    """Write tables as the Parquet files of a folder, in place of those that are there."""
    for old in folder.glob("*.parquet"):
        old.unlink()
    options = {"row_group_size": 200, **options}
    for k, table in enumerate(tables):
        pq.write_table(table, folder / f"part-{k}.parquet", **options)


def good(folder: Path) -> None:
    """Write the good portfolio in three files."""
    table = portfolio()
    write(folder, table[:300], table[300:600], table[600:])


def mutation(name: str) -> Callable[[Mutation], Mutation]:
    def add(mutate: Mutation) -> Mutation:
        assert name not in MUTATIONS, name
        MUTATIONS[name] = mutate
        return mutate

    return add


def each(name: str, *variants: object) -> Callable[[Callable[..., None]], None]:
    """Add one mutation for each variant."""

    def add(mutate: Callable[..., None]) -> None:
        for variant in variants:
            text = getattr(variant, "__name__", str(variant))
            mutation(f"{name}: {text}")(lambda folder, v=variant: mutate(folder, v))

    return add


def changed(name: str, change: Callable[[pa.ChunkedArray], pa.Array | pa.ChunkedArray]) -> Mutation:
    """Change a column of the second file."""

    def mutate(folder: Path) -> None:
        table = portfolio()
        parts = [table[:300], table[300:600], table[600:]]
        at = table.column_names.index(name)
        parts[1] = parts[1].set_column(at, name, change(parts[1][name]))
        write(folder, *parts)

    return mutate


def everywhere(name: str, change: Callable[[pa.ChunkedArray], pa.Array]) -> Mutation:
    """Change a column of all files."""

    def mutate(folder: Path) -> None:
        table = portfolio()
        at = table.column_names.index(name)
        table = table.set_column(at, name, change(table[name]))
        write(folder, table[:300], table[300:600], table[600:])

    return mutate


# ---- bytes -------------------------------------------------------------------------------------


def flipped(path: Path, seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    data = bytearray(path.read_bytes())
    for _ in range(count):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)


@each("bytes flipped", *range(16))
def flip(folder: Path, seed: int) -> None:
    flipped(folder / "part-1.parquet", seed, 1 + seed % 3)


@each("bytes flipped in plain pages", *range(6))
def flip_plain(folder: Path, seed: int) -> None:
    write(folder, portfolio(), compression="none", use_dictionary=False)
    flipped(folder / "part-0.parquet", 100 + seed, 2)


@each("bytes flipped in pages with checksums", *range(6))
def flip_checked(folder: Path, seed: int) -> None:
    write(folder, portfolio(), compression="zstd", write_page_checksum=True)
    flipped(folder / "part-0.parquet", 200 + seed, 2)


@each("bytes of the footer flipped", *range(8))
def flip_footer(folder: Path, seed: int) -> None:
    path = folder / "part-2.parquet"
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[-8:-4], "little")
    rng = np.random.default_rng(seed)
    data[len(data) - 8 - int(rng.integers(length))] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)


@each("truncated to", 0, 3, 8, 100, "half", "all but one")
def truncate(folder: Path, length: object) -> None:
    path = folder / "part-1.parquet"
    data = path.read_bytes()
    keep = {"half": len(data) // 2, "all but one": len(data) - 1}.get(str(length), length)
    path.write_bytes(data[: int(str(keep))])


@mutation("a hole of zeros")
def hole(folder: Path) -> None:
    path = folder / "part-0.parquet"
    data = bytearray(path.read_bytes())
    data[200:1_200] = bytes(1_000)
    path.write_bytes(data)


@mutation("text in place of Parquet")
def text_file(folder: Path) -> None:
    (folder / "part-1.parquet").write_text("age,premium,sex\n1,2,F\n")


@mutation("a directory in place of a file")
def directory(folder: Path) -> None:
    (folder / "part-1.parquet").unlink()
    (folder / "part-1.parquet").mkdir()


# ---- columns -----------------------------------------------------------------------------------


@each("dropped", "age", "premium", "sex", "unused")
def drop(folder: Path, name: str) -> None:
    write(folder, portfolio().drop_columns([name]))


@each("dropped in one file", "age", "sex", "unused")
def drop_once(folder: Path, name: str) -> None:
    table = portfolio()
    write(folder, table[:400], table[400:].drop_columns([name]))


@each("renamed", ("age", "Age"), ("premium", "premium "), ("sex", "gender"), ("unused", "other"))
def rename(folder: Path, names: tuple[str, str]) -> None:
    table = portfolio()
    write(
        folder, table.rename_columns([names[1] if n == names[0] else n for n in table.column_names])
    )


@mutation("a column twice")
def twice(folder: Path) -> None:
    table = portfolio()
    write(folder, table.append_column("age", table["age"]))


@mutation("columns in another order in one file")
def order(folder: Path) -> None:
    table = portfolio()
    write(folder, table[:500], table[500:].select(table.column_names[::-1]))


@mutation("one column more in one file")
def more(folder: Path) -> None:
    table = portfolio()
    write(folder, table[:500], table[500:].append_column("extra", pa.nulls(400, pa.int8())))


@mutation("ten thousand columns")
def wide(folder: Path) -> None:
    table = portfolio(60)
    extra = {f"c{k}": np.full(60, k, dtype=np.int32) for k in range(10_000)}
    write(folder, pa.table({**dict(zip(table.column_names, table.columns, strict=True)), **extra}))


# ---- types -------------------------------------------------------------------------------------

AGES = {
    "int8": lambda a: a.cast(pa.int8()),
    "uint64": lambda a: a.cast(pa.uint64()),
    "float": lambda a: a.cast(pa.float64()),
    "half": lambda a: a.cast(pa.float16()),
    "text": lambda a: a.cast(pa.string()),
    "bool": lambda a: pa.array(np.asarray(a) > 40),
    "decimal": lambda a: a.cast(pa.decimal128(20, 0)),
    "dictionary": lambda a: a.dictionary_encode(),
    "date": lambda a: a.cast(pa.int32()).cast(pa.date32()),
    "time": lambda a: a.cast(pa.time64("us")),
    "zone": lambda a: a.cast(pa.timestamp("us", "UTC")),
    "list": lambda a: pa.array([[int(x)] for x in np.asarray(a)]),
    "struct": lambda a: pa.array([{"x": int(x)} for x in np.asarray(a)]),
    "binary": lambda a: pa.array([str(x).encode() for x in np.asarray(a)], pa.binary()),
    "null": lambda a: pa.nulls(len(a)),
    "huge": lambda a: pa.array(np.full(len(a), 2**64 - 1, np.uint64)),
    "with nulls": lambda a: pa.array(
        [None if k == 7 else int(x) for k, x in enumerate(np.asarray(a))]
    ),
    "negative": lambda a: pa.array(-np.asarray(a)),
    "out of the table": lambda a: pa.array(np.asarray(a) + 1_000),
}
for _name, _change in AGES.items():
    MUTATIONS[f"age in one file: {_name}"] = changed("age", _change)
    MUTATIONS[f"age in all files: {_name}"] = everywhere("age", _change)

PREMIUMS = {
    "float32": lambda a: a.cast(pa.float32()),
    "integers": lambda a: pa.array(np.asarray(a).astype(np.int64)),
    "decimal": lambda a: pa.array([decimal.Decimal(f"{x:.2f}") for x in np.asarray(a)]),
    "infinite": lambda a: pa.array(np.where(np.arange(len(a)) == 3, np.inf, a)),
    "both infinities": lambda a: pa.array(
        np.select([np.arange(len(a)) == k for k in (3, 4)], [np.inf, -np.inf], a)
    ),
    "NaN": lambda a: pa.array(np.where(np.arange(len(a)) == 3, np.nan, a)),
    "null": lambda a: pa.array([None if k == 3 else float(x) for k, x in enumerate(np.asarray(a))]),
    "text": lambda a: a.cast(pa.string()),
    "large": lambda a: pa.array(np.full(len(a), 1.7e308)),
}
for _name, _change in PREMIUMS.items():
    MUTATIONS[f"premium in one file: {_name}"] = changed("premium", _change)

SEXES = {
    "dictionary": lambda a: a.dictionary_encode(),
    "large text": lambda a: a.cast(pa.large_string()),
    "view": lambda a: a.cast(pa.string_view()),
    "null": lambda a: pa.array([None if k == 299 else str(x) for k, x in enumerate(a)]),
    "empty text": lambda a: pa.array([""] * len(a)),
    "other text": lambda a: pa.array(["\u00fcnb\u0000k"] * len(a)),
    "integers": lambda a: pa.array(np.arange(len(a))),
    "bytes": lambda a: pa.array([b"\xff\xfe"] * len(a), pa.binary()),
}
for _name, _change in SEXES.items():
    MUTATIONS[f"sex in one file: {_name}"] = changed("sex", _change)


# ---- rows --------------------------------------------------------------------------------------


@mutation("no rows at all")
def no_rows(folder: Path) -> None:
    write(folder, portfolio()[:0], portfolio()[:0])


@mutation("no rows in one file")
def empty_part(folder: Path) -> None:
    table = portfolio()
    write(folder, table[:300], table[300:300], table[300:])


@mutation("no files")
def no_files(folder: Path) -> None:
    write(folder)


@mutation("one row")
def one_row(folder: Path) -> None:
    write(folder, portfolio()[:1])


@mutation("one giant row group")
def giant(folder: Path) -> None:
    write(folder, portfolio(40_000), row_group_size=10**9)


@mutation("a row group for each row")
def tiny_groups(folder: Path) -> None:
    write(folder, portfolio(), row_group_size=1)


# ---- CSV ---------------------------------------------------------------------------------------

_CSV = portfolio(300).to_pandas().to_csv(index=False)
_LINES = _CSV.splitlines()
TEXTS: dict[str, bytes] = {
    "good": _CSV.encode(),
    "with a mark of its byte order": b"\xef\xbb\xbf" + _CSV.encode(),
    "Windows line ends": _CSV.replace("\n", "\r\n").encode(),
    "no line end at the end": _CSV.rstrip("\n").encode(),
    "semicolons": _CSV.replace(",", ";").encode(),
    "empty": b"",
    "header only": (_LINES[0] + "\n").encode(),
    "no header": "\n".join(_LINES[1:]).encode(),
    "a cell too few": "\n".join([*_LINES[:9], "33,12.5,F", *_LINES[9:]]).encode(),
    "a cell too many": "\n".join([*_LINES[:9], "33,12.5,F,0.1,7", *_LINES[9:]]).encode(),
    "an empty cell": "\n".join([*_LINES[:9], "33,,F,0.1", *_LINES[9:]]).encode(),
    "an empty text": "\n".join([*_LINES[:9], "33,10.0,,0.1", *_LINES[9:]]).encode(),
    "an empty line": "\n".join([*_LINES[:9], "", *_LINES[9:]]).encode(),
    "a word among numbers": "\n".join([*_LINES[:9], "old,12.5,F,0.1", *_LINES[9:]]).encode(),
    "a NaN": "\n".join([*_LINES[:9], "33,nan,F,0.1", *_LINES[9:]]).encode(),
    "an infinity": "\n".join([*_LINES[:9], "33,inf,F,0.1", *_LINES[9:]]).encode(),
    "a decimal comma": "\n".join([*_LINES[:9], '33,"12,5",F,0.1', *_LINES[9:]]).encode(),
    "a quote that is not closed": "\n".join([*_LINES[:9], '33,12.5,"F,0.1', *_LINES[9:]]).encode(),
    "not UTF-8": _CSV.replace("F", "\u00e9").encode("latin-1"),
    "a zero byte": _CSV.replace("F", "\x00", 1).encode(),
    "a huge integer": "\n".join([*_LINES[:9], f"{10**30},12.5,F,0.1", *_LINES[9:]]).encode(),
    "a column twice": _CSV.replace("unused", "age", 1).encode(),
    "a name of a column empty": _CSV.replace("premium", "", 1).encode(),
    "a column in quotes": _CSV.replace("age", '"age"', 1).encode(),
    "only zeros": bytes(1_000),
}


def as_csv(content: bytes) -> Mutation:
    def mutate(folder: Path) -> None:
        write(folder)
        (folder / "policies.csv").write_bytes(content)

    return mutate


for _name, _content in TEXTS.items():
    MUTATIONS[f"CSV: {_name}"] = as_csv(_content)


@each("bytes of a CSV file flipped", *range(8))
def flip_csv(folder: Path, seed: int) -> None:
    as_csv(TEXTS["good"])(folder)
    flipped(folder / "policies.csv", 300 + seed, 2)


# ---- what should come of it --------------------------------------------------------------------

RATES = 1.04 ** np.arange(120) / 500


def read(folder: Path) -> pd.DataFrame:
    """Return the columns that the model reads as pandas and pyarrow read them.

    Raises whatever they raise; ValueError for what hl_dask refuses by design.
    """
    csv = folder / "policies.csv"
    if csv.exists():
        frame = pd.read_csv(csv, keep_default_na=False, encoding="utf-8-sig")
        frame["premium"] = frame["premium"].replace("nan", np.nan).astype(float)
        frame["sex"] = frame["sex"].astype(str)
        return frame
    paths = sorted(folder.glob("*.parquet"))
    frames = []
    for path in paths:
        table = pq.ParquetFile(path, page_checksum_verification=True).read(
            ["age", "premium", "sex"]
        )
        if not table.num_rows:
            continue
        if any(table[name].null_count for name in table.column_names):
            message = "nulls"
            raise ValueError(message)
        frame = pd.DataFrame(
            {
                "age": numbers(table["age"]),
                "premium": numbers(table["premium"]).astype(float),
                "sex": texts(table["sex"]),
            }
        )
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def numbers(column: pa.ChunkedArray) -> np.ndarray:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_decimal(kind):
        return np.array([float(x) for x in column.to_pylist()])
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        message = f"no number: {kind}"
        raise ValueError(message)
    return np.array(column.to_pylist())


def texts(column: pa.ChunkedArray) -> list[str]:
    found = column.to_pylist()
    if not all(isinstance(text, str) for text in found):
        message = "no text"
        raise ValueError(message)
    return found


def answer(frame: pd.DataFrame) -> list[float]:
    """Return the totals of the model for t = 0, 1, 2, by NumPy."""
    age = frame["age"].to_numpy()
    if age.dtype.kind not in "iub":
        message = "ages that are no integers do not index"
        raise ValueError(message)
    loading = np.where(frame["sex"].to_numpy() == "F", 1.0, 1.5)
    with np.errstate(all="ignore"):
        return [
            float(np.sum(frame["premium"].to_numpy() * loading * RATES[age + t])) for t in range(3)
        ]
