"""Every ``python`` block of the README and of the documentation runs, and prints what it says.

The blocks of a file share one namespace and one empty working directory, as the cells of a notebook
do. Two markers steer them:

* ```` ```python no-run ```` is shown and not run (nor is anything in a ``{code-block}``),
* ``<!-- output -->`` before a ```` ```text ```` block says that the block above prints just that.
"""

from __future__ import annotations

import contextlib
import io
import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [
        ROOT / "README.md",
        *(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts),
    ]
)
OUTPUT_MARKER = "<!-- output -->"
FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,})\s*(?P<info>.*)$")


@dataclass
class Block:
    """One fenced block: its first code line (counted from 1), its text, its promised output."""

    line: int
    code: str
    output: str | None = None


@dataclass
class Fence:
    """One fenced block of any kind, with the nearest line of text above it."""

    line: int
    info: str
    text: str
    above: str


def fences(page: str) -> list[Fence]:
    """All fenced blocks of a page, in order."""
    found: list[Fence] = []
    above = ""
    opened: tuple[str, str, int] | None = None
    body: list[str] = []
    for number, line in enumerate(page.splitlines(), start=1):
        if opened is None:
            start = FENCE.match(line)
            if start:
                opened = (start["fence"], start["info"].strip(), number + 1)
                body = []
            elif line.strip():
                above = line.strip()
        elif line.rstrip() == opened[0]:
            found.append(Fence(opened[2], opened[1], "\n".join(body) + "\n", above))
            opened = None
            above = ""
        else:
            body.append(line)
    if opened is not None:
        msg = f"the block that opens at line {opened[2] - 1} is not closed"
        raise ValueError(msg)
    return found


def python_blocks(page: str) -> list[Block]:
    """The blocks to run, each with the output that the page promises for it."""
    blocks: list[Block] = []
    follows = False  # the last fence was a block that runs, so an output block may belong to it
    for fence in fences(page):
        if fence.info == "python":
            blocks.append(Block(fence.line, fence.text))
            follows = True
        elif fence.above == OUTPUT_MARKER:
            if fence.info != "text" or not follows:
                msg = f"line {fence.line - 1}: output without a block that runs"
                raise ValueError(msg)
            blocks[-1].output = fence.text
            follows = False
        else:
            follows = False
    return blocks


def normal(text: str) -> str:
    """Text without trailing blanks and without empty lines at either end."""
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()).rstrip()


def run_block(block: Block, file: Path, namespace: dict[str, Any]) -> str:
    """Run one block as if it stood in its file, and return what it prints."""
    # The empty lines give every code line the number that it has in the page: tracebacks, and
    # whatever else reads source by line number, then show the page itself.
    code = compile("\n" * (block.line - 1) + block.code, str(file), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


def failing_line(error: BaseException, file: Path, block: Block) -> int:
    """The last line of the page that the traceback passes through."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return error.lineno
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(file) and frame.lineno is not None
    ]
    return lines[-1] if lines else block.line


def run_page(page: Path) -> None:
    """Run all blocks of a page, in order, in one namespace."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in python_blocks(page.read_text(encoding="utf-8")):
        try:
            printed = run_block(block, page, namespace)
        except Exception as error:
            line = failing_line(error, page, block)
            message = f"{page}:{line}: {type(error).__name__}: {error}"
            raise AssertionError(message) from error
        if block.output is not None and normal(printed) != normal(block.output):
            message = (
                f"{page}:{block.line}: the block prints\n{normal(printed)}\n"
                f"where the page says\n{normal(block.output)}"
            )
            raise AssertionError(message)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_runs_as_written(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(page)


# --- the runner itself ------------------------------------------------------------------------

OUTPUT = f"\n{OUTPUT_MARKER}\n```text\n3\n```\n"


def write(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_blocks_share_a_namespace_and_print_what_the_page_says(tmp_path: Path) -> None:
    run_page(write(tmp_path, "```python\nx = 3\n```\n\n```python\nprint(x)\n```\n" + OUTPUT))


def test_another_output_fails_at_its_block(tmp_path: Path) -> None:
    page = write(tmp_path, "Text.\n\n```python\nprint(4)\n```\n" + OUTPUT)
    with pytest.raises(AssertionError, match=r"page\.md:4: the block prints\n4\n"):
        run_page(page)


def test_an_exception_names_the_line_of_the_page(tmp_path: Path) -> None:
    page = write(tmp_path, "```python\nx = 1\n```\n\n```python\nx = 2\n1 / 0\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:7: ZeroDivisionError"):
        run_page(page)


def test_a_syntax_error_names_the_line_of_the_page(tmp_path: Path) -> None:
    page = write(tmp_path, "\n```python\nx = 1\nx = (\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:4: SyntaxError"):
        run_page(page)


def test_other_blocks_are_left_alone(tmp_path: Path) -> None:
    run_page(
        write(tmp_path, "```python no-run\n1 / 0\n```\n\n```{code-block} python\n1 / 0\n```\n")
    )


def test_an_output_must_follow_a_block_that_runs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without a block that runs"):
        run_page(write(tmp_path, "```python no-run\nprint(3)\n```\n" + OUTPUT))


def test_an_open_block_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not closed"):
        run_page(write(tmp_path, "```python\nx = 1\n"))
