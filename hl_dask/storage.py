"""Files that are either there in full or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hl_dask.errors import StorageError

Write = Callable[[Path], object]
"""``write(temporary)`` writes a file."""


def write_whole(path: str | Path, write: Write, *, overwrite: bool = False) -> Path:
    """Write a file under a temporary name in its directory, and give it its name when it is done.

    Parameters
    ----------
    path : str or Path
        The final name.
    write : callable
        ``write(temporary)`` writes the file.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    StorageError
        When there is such a file already, or it cannot be written; nothing is left behind then.
    """
    return write_together({Path(path): write}, overwrite=overwrite)[0]


def write_together(
    files: Mapping[Path, Write | None], *, overwrite: bool = False
) -> tuple[Path, ...]:
    """Write several files that belong together; each gets its name when all of them are written.

    Parameters
    ----------
    files : mapping of Path to callable or None
        Final names, and what writes each of them; None for one that must not be there, because it
        would be taken for a part of the others.

    Raises
    ------
    StorageError
        As for :func:`write_whole`.
    """
    # A link is followed: the file that it points to is replaced, and not the link.
    finals = {Path(os.path.realpath(path.expanduser())): path for path in files}
    for final, path in finals.items():
        _check_free(final, path, overwrite=overwrite)
    temporaries: dict[Path, Path] = {}
    try:
        for final, path in finals.items():
            write = files[path]
            if write is not None:
                with _told(path):
                    temporaries[final] = _written(final, write)
        for final, path in finals.items():
            # Writing took its time, and somebody else may have come first.
            _check_free(final, path, overwrite=overwrite)
        for final, path in finals.items():
            with _told(path):
                _put(temporaries.pop(final, None), final)
    finally:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)
    return tuple(path.expanduser() for path in finals.values())


def _check_free(final: Path, path: Path, *, overwrite: bool) -> None:
    if final.is_dir():
        msg = "the output is the name of a directory"
        raise StorageError(msg, file=str(path), remedy="give the name of a file in it")
    if final.exists() and not overwrite:
        msg = "the file exists already"
        raise StorageError(msg, file=str(path), remedy="choose another name, or say overwrite=True")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say which file cannot be written, and what can be done."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        msg = f"the file cannot be written: {error.strerror or error}"
        remedy = "check that its directory exists, may be written to, and has room"
        raise StorageError(msg, file=str(path), remedy=remedy) from error


def _written(final: Path, write: Write) -> Path:
    """The temporary file, written and on the disk."""
    # The ending tells some writers what to write.
    temporary = final.with_name(f".{final.stem}-{secrets.token_hex(6)}{final.suffix}")
    temporary.touch(exist_ok=False)
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _put(temporary: Path | None, final: Path) -> None:
    """Give a temporary file its name, for good."""
    if temporary is None:
        final.unlink(missing_ok=True)
        return
    try:
        if final.exists():
            temporary.chmod(final.stat().st_mode & 0o777)
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)
    # The name is in the directory, which has to reach the disk as well; not all systems can.
    with contextlib.suppress(OSError):
        directory = os.open(final.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
