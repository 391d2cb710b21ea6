"""Files that are either there in full or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from hl_dask.errors import StorageError


def write_whole(
    path: str | Path, write: Callable[[Path], None], *, overwrite: bool = False
) -> Path:
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
    final = Path(path).expanduser()
    if final.is_dir():
        msg = "the output is the name of a directory"
        raise StorageError(msg, file=str(final), remedy="give the name of a file in it")
    if final.exists() and not overwrite:
        msg = "the file exists already"
        raise StorageError(
            msg, file=str(final), remedy="choose another name, or say that it may be overwritten"
        )
    temporary: Path | None = None
    try:
        # The ending tells some writers what to write.
        handle, name = tempfile.mkstemp(
            prefix=f".{final.stem}-", suffix=final.suffix, dir=final.parent
        )
        os.close(handle)
        temporary = Path(name)
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        _open_to_others(temporary)
        temporary.replace(final)
    except OSError as error:
        msg = f"the file cannot be written: {error.strerror or error}"
        remedy = "check that its directory exists, may be written to, and has room"
        raise StorageError(msg, file=str(final), remedy=remedy) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return final


def _open_to_others(path: Path) -> None:
    """Give a temporary file, which is private, the permissions that a new file would have."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)
