"""The documentation's code runs, page by page, as a reader would type it, and prints what the page says."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

import multifit
from multifit import handlers

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
# A block, and the text right behind it: what the block prints.
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


class Block(NamedTuple):
    line: int
    code: str
    printed: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(text.count("\n", 0, m.start(1)), m[1], m[2] or "") for m in BLOCK.finditer(text)]


def run(page: Path, found: list[Block]) -> None:
    names = {"__name__": page.stem}
    for line, code, printed in found:
        said = io.StringIO()
        with redirect_stdout(said):
            exec(
                compile("\n" * line + code, str(page), "exec"), names
            )  # tracebacks show the page's own lines
        assert stripped(printed) in stripped(said.getvalue()), f"{page.name}:{line} printed {said.getvalue()}"


def stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "README.md"], ids=lambda p: p.stem)
def test_every_block_runs_and_prints_what_is_shown(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = blocks(page)
    assert len(found) == page.read_text(encoding="utf-8").count("```python") >= 4
    run(page, found)


@pytest.mark.parametrize(("code", "printed"), [("print(1)", "2"), ("assert False", ""), ("1 / 0", "")])
def test_a_page_that_says_something_else_is_caught(code, printed, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n```python\n{code}\n```\n\n```text\n{printed}\n```\n")
    with pytest.raises((AssertionError, ZeroDivisionError)):
        run(page, blocks(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_index_names_every_page():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    for page in [*PAGES, DOCS / "tutorial.ipynb"]:
        assert page.name == "README.md" or f"]({page.name})" in index


def test_classes_in_the_tables_exist():
    """What stands in code in the last column of a table is ours, or is imported by the page."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for cell in re.findall(r"\| ([^|]*) \|$", text, re.MULTILINE):
            for name in re.findall(r"(?<![\w.])([A-Z]\w+)\(", cell):
                assert hasattr(multifit, name) or hasattr(handlers, name) or f"class {name}" in text, name


class TestNotebook:
    text = (DOCS / "tutorial.ipynb").read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]

    def test_its_code_is_the_tutorials(self):
        code = ["".join(cell["source"]) for cell in self.cells]
        assert code == [block.code.rstrip("\n") for block in blocks(DOCS / "tutorial.md")]

    def test_it_ran_from_top_to_bottom_without_an_error(self):
        assert [cell["execution_count"] for cell in self.cells] == list(range(1, len(self.cells) + 1))
        assert not [out for cell in self.cells for out in cell["outputs"] if out["output_type"] == "error"]

    def test_it_shows_what_the_tutorial_says(self):
        for cell, block in zip(self.cells, blocks(DOCS / "tutorial.md")):
            said = "".join(line for out in cell["outputs"] for line in out.get("text", []))
            assert stripped(block.printed) in stripped(said)

    def test_it_shows_small_pictures(self):
        shown = [out.get("data", {}) for cell in self.cells for out in cell["outputs"]]
        sizes = [len("".join(data["image/png"])) for data in shown if "image/png" in data]
        assert len(sizes) == 3
        assert max(sizes) < 100_000

    def test_it_tells_nothing_of_the_machine_on_which_it_ran(self):
        told = r"/(home|root|tmp|work|Users|usr|var)/|site-packages|ipykernel| at 0x[0-9a-f]+"
        assert not re.findall(told, self.text)
