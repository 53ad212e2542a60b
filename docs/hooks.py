"""Add what is not in docs/ to the site: README, CONTRIBUTING, CHANGELOG, tasks and the help of commands."""

from __future__ import annotations

import argparse
import os
import re
import warnings
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PROJECT = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
LINK = re.compile(r"(\]\()([^)\s#]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from files outside docs/."""
    for name, page in PROJECT.items():
        text = relinked((ROOT / name).read_text(encoding="utf-8"), PurePosixPath(name))
        files.append(wide_page(config, page, text))
    for task in [*sorted((ROOT / "tasks").glob("*.py")), ROOT / "multifit" / "cli" / "new_task.txt"]:
        code = f"# {task.name}\n\n```python\n{task.read_text(encoding='utf-8')}```\n"
        files.append(wide_page(config, page_of(f"tasks/{task.name}"), code, "toc"))
    return files


def wide_page(config: Any, path: str, text: str, *hidden: str) -> File:
    """Return a page without the navigation at its left, and without the other parts that are named."""
    return File.generated(
        config, path, content=f"---\nhide: [{', '.join(['navigation', *hidden])}]\n---\n{text}"
    )


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Redirect links that leave docs/, and fill in the commands' help."""
    if page.file.generated_by:
        return markdown
    if "<!-- commands" in markdown:
        markdown = re.sub(r"<!-- commands.*?-->", lambda _: command_help(), markdown)
    return relinked(markdown, PurePosixPath("docs") / page.file.src_uri)


def relinked(markdown: str, source: PurePosixPath) -> str:
    """Return the text of the file `source` with its links to files turned into links to pages."""
    here = page_of(str(source))

    def redirected(link: re.Match[str]) -> str:
        if "://" in link[2]:
            return link[0]
        target = os.path.normpath(source.parent / link[2])
        return link[1] + os.path.relpath(page_of(target), PurePosixPath(here).parent)

    return LINK.sub(redirected, markdown)


def page_of(path: str) -> str:
    """Return the page, relative to docs/, that shows a file of the repository."""
    if path in PROJECT:
        return PROJECT[path]
    if path.endswith((".py", ".txt")):
        return f"tasks/{PurePosixPath(path).stem}.md"
    return path.removeprefix("docs/")


def command_help() -> str:
    """Return a section with the help of every command."""
    os.environ["COLUMNS"] = "100"  # argparse wraps its help to the terminal
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mxnet's, of numpy
        from multifit.cli import build_parser

    [commands] = [
        action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)
    ]
    sections = [
        f"## {name}\n\n```text\n{parser.format_help()}```" for name, parser in commands.choices.items()
    ]
    return "\n\n".join(sections)
