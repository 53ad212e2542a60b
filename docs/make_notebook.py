"""Make ``tutorial.ipynb`` of ``tutorial.md``, run from top to bottom: ``python docs/make_notebook.py``.

It needs nbformat, nbclient, ipykernel and what the tutorial needs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import v4

DOCS = Path(__file__).parent
# What a block prints stands behind it in the page; in the notebook, the outputs themselves take its place.
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```text\n.*?^```$)?", re.DOTALL | re.MULTILINE)


def cells(page: str) -> list[Any]:
    """Return a page's text and code as cells, in order, with ids that do not change from run to run."""
    found = []
    for i, part in enumerate(BLOCK.split(page)):  # text and code take turns
        source = part.strip("\n")
        if source:
            cell = v4.new_code_cell(source) if i % 2 else v4.new_markdown_cell(source)
            found.append({**cell, "id": f"part-{i}"})
    return [nbformat.from_dict(cell) for cell in found]


def executed(notebook: Any) -> Any:
    """Return the notebook with its outputs; it runs in an empty folder, which vanishes."""
    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=600, record_timing=False, resources={"metadata": {"path": folder}}
        )
        return client.execute()


def main() -> None:
    """Write the notebook beside the page."""
    # The kernel finds this checkout's multifit, and sees the same threads as the tests.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(DOCS.parent.resolve()), os.environ.get("PYTHONPATH", "")])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Widgets, such as a progress bar's, cannot be kept; so tqdm need not say that it has none.
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    notebook = executed(v4.new_notebook(cells=cells(page), metadata=metadata))
    notebook.metadata = nbformat.from_dict(metadata)  # the kernel added its version
    nbformat.validate(notebook)
    nbformat.write(notebook, DOCS / "tutorial.ipynb")


if __name__ == "__main__":
    main()
