"""Plain-text tables."""

from __future__ import annotations

from typing import Iterable, Sequence

__all__ = ["table"]


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = (), indent: int = 0) -> str:
    """Align `rows` in columns, two spaces apart.

    Parameters
    ----------
    rows : iterable of sequences
        The cells; each is shown by `str`. Short rows are filled up.
    header : sequence of str
        Column titles, underlined; none by default.
    indent : int
        Spaces before each line.

    Returns
    -------
    str
        The lines, joined; numbers (``int``, ``float``) stand to the right of their column.
    """
    body = [list(row) for row in rows]
    numeric = _numeric_columns(body)
    cells = [[str(cell) for cell in row] for row in ([list(header)] if header else []) + body]
    width = max((len(row) for row in cells), default=0)
    cells = [row + [""] * (width - len(row)) for row in cells]
    widths = [max(len(row[i]) for row in cells) for i in range(width)]
    if header:
        cells.insert(1, ["-" * size for size in widths])
    lines = (
        "  ".join(c.rjust(w) if i in numeric else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths)))
        for row in cells
    )
    return "\n".join((" " * indent + line).rstrip() for line in lines)


def _numeric_columns(rows: Sequence[Sequence[object]]) -> set[int]:
    count = max((len(row) for row in rows), default=0)
    columns = ([row[i] for row in rows if i < len(row) and row[i] != ""] for i in range(count))
    return {
        i for i, column in enumerate(columns) if column and all(isinstance(c, (int, float)) for c in column)
    }
