"""Code in README and docs runs and prints what the page shows; links and commands are valid."""

import ast
import io
import logging
import pkgutil
import re
import shlex
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

import multifit
from multifit.cli import build_parser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = sorted(DOCS.glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *GUIDES]
# A block of code and, if one follows directly, the block of text that it prints.
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
# A block of what the page's code logs; its numbers may differ.
LOG = re.compile(r"^```log\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# What a block's code shows of the libraries that it needs.
LIBRARIES = {
    "mxnet": r"(import|from) (mxnet|gluoncv|gluonnlp)\b",
    "torch": r'="torch"|(import|from) (torch|torchmetrics)\b',
    "datasets": r"from datasets\b",
}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    line: int
    code: str
    printed: str


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[Block]:
    text = read(page)
    return [Block(text.count("\n", 0, m.start(1)), m[1], m[2] or "") for m in BLOCK.finditer(text)]


def run(page: Path) -> None:
    log = io.StringIO()
    handler, logger = logging.StreamHandler(log), logging.getLogger("multifit")
    logger.addHandler(handler)
    try:
        complete = run_blocks(page)
    finally:
        logger.removeHandler(handler)
    for shown in LOG.findall(read(page)) if complete else ():
        assert without_numbers(shown) in without_numbers(log.getvalue()), f"{page.name}\n{log.getvalue()}"


def without_numbers(text: str) -> str:
    return re.sub(r" *\d[\d.]*", " 0", text)


def run_blocks(page: Path) -> bool:
    """Run a page's blocks, and return whether all of them could run here."""
    names = {"__name__": page.stem}
    complete, skipped = True, set[str]()  # names that only blocks which cannot run here would have defined
    for line, code, printed in blocks(page):
        used, defined = names_in(code)
        if used & skipped - names.keys() - defined or not runs_here(code):
            complete = False
            skipped |= defined - names.keys()
            continue
        output = io.StringIO()
        with redirect_stdout(output):
            # Empty lines in front, so that tracebacks show the page's line numbers.
            exec(compile("\n" * line + code, str(page), "exec"), names)
        assert stripped(printed) in stripped(output.getvalue()), f"{page.name}:{line}\n{output.getvalue()}"
    return complete


def runs_here(code: str) -> bool:
    """Return whether the libraries that a block needs are installed, and the CPU computes in its dtypes."""
    if any(re.search(pattern, code) and find_spec(name) is None for name, pattern in LIBRARIES.items()):
        return False
    if "bfloat16" not in code or find_spec("mxnet") is None:
        return True
    from multifit.gluon.graph.lower import cpu_supports_bfloat16  # not above: mxnet may not be installed

    return cpu_supports_bfloat16()


def names_in(code: str) -> tuple[set[str], set[str]]:
    """Return the names that a block reads, and those that it defines."""
    used: set[str] = set()
    defined: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.alias):
            defined.add(node.asname or node.name.partition(".")[0])
    return used, defined


def stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", read(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(program: str) -> list[str]:
    """The command lines of `program` in all pages' shell blocks, without comments."""
    shell = [text for page in PAGES for text in re.findall(r"```bash\n(.*?)```", read(page), re.DOTALL)]
    return sorted({line for line in "".join(shell).splitlines() if line.startswith(f"{program} ")})


WITH_CODE = [page for page in [ROOT / "README.md", *GUIDES] if "```python" in read(page)]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_code_runs_and_prints_what_is_shown(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(blocks(page)) == read(page).count("```python")
    run(page)


@pytest.mark.parametrize(
    ("code", "printed", "kind"),
    [
        ("print(1)", "2", "text"),
        ("assert False", "", "text"),
        ("1 / 0", "", "text"),
        ("print(1)", "a line", "log"),
    ],
)
def test_a_page_with_wrong_code_output_or_log_fails(code, printed, kind, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n```python\n{code}\n```\n\n```{kind}\n{printed}\n```\n")
    with pytest.raises((AssertionError, ZeroDivisionError)):
        run(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_images_exist(page):
    for link in LINK.findall(read(page)):
        if not link.startswith("https://"):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_readme_and_navigation_list_every_page():
    readme, navigation = read(ROOT / "README.md"), read(ROOT / "mkdocs.yml")
    for page in GUIDES:
        assert f"](docs/{page.name}" in readme and f"- {page.name}\n" in navigation, page.name


def test_images_are_small():
    images = sorted(DOCS.glob("**/*.png"))
    assert images
    assert [image.name for image in images if image.stat().st_size > 200_000] == []


def test_classes_in_tables_exist():
    """A class called in a table's last column is exported by multifit, or imported by the page."""
    for page in WITH_CODE:
        for cell in re.findall(r"\| ([^|]*) \|$", read(page), re.MULTILINE):
            for name in re.findall(r"(?<![\w.])([A-Z]\w+)\(", cell):
                assert hasattr(multifit, name) or re.search(rf"(class|import) .*\b{name}\b", read(page)), name


@pytest.mark.parametrize("command", commands("multifit"))
def test_multifit_commands_are_valid(command):
    options = build_parser().parse_args(shlex.split(command, comments=True)[1:])
    file = Path(getattr(options, "file", ""))
    written = command.startswith("multifit new ") or file.suffix != ".py"  # or the folder of an exported net
    assert written or (ROOT / file).exists()


def test_names_of_the_api_pages_exist():
    names = [
        name for page in (DOCS / "api").glob("*.md") for name in re.findall(r"^::: (.+)$", read(page), re.M)
    ]
    assert len(names) > 30 and all(pkgutil.resolve_name(name) for name in names)


def test_make_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", read(ROOT / "Makefile"), re.MULTILINE))
    assert {command.split()[1] for command in commands("make")} <= targets


def test_the_layers_in_contributing_name_every_package():
    layers = set(re.findall(r"^ *(\w+)/ ", read(ROOT / "CONTRIBUTING.md"), re.MULTILINE))
    packages = {path.parent.name for path in (ROOT / "multifit").glob("**/__init__.py")}
    assert layers == packages - {"multifit"}
