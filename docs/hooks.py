"""Add what is not in docs/ to the site: README, CONTRIBUTING, CHANGELOG, tasks and the help of commands."""

from __future__ import annotations

import argparse
import os
import re
import warnings
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PROJECT = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
REMOTE = re.compile(r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=[\"']?(https?:[^\"'> ]*)")
CODE = re.compile(r"(?<=<code>)[^<\n]+(?=</code>)")
HYPHENED = re.compile(r"[^\s<]*-[^\s<]+")
LINK = re.compile(r"(\]\()([^)\s#]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from files outside docs/."""
    for name, page in PROJECT.items():
        text = relinked((ROOT / name).read_text(encoding="utf-8"), PurePosixPath(name))
        if page == "index.md":
            text = f'<div class="home" markdown>\n\n{text}\n</div>\n'
        files.append(wide_page(config, page, text))
    for task in [*sorted((ROOT / "tasks").glob("*.py")), *(ROOT / "multifit" / "cli").glob("new_task*.txt")]:
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


def on_page_content(html: str, **_: Any) -> str:
    """Let no line break at the hyphens of identifiers and options."""
    return CODE.sub(lambda code: HYPHENED.sub(r'<span class="whole">\g<0></span>', code[0]), html)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that loads anything from the network."""
    remote = REMOTE.findall(output)
    if remote:
        raise PluginError(
            f"{page.file.src_uri} loads {', '.join(remote)}: the site must work without a network"
        )
    return output


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
    """Return a section for each command with its own options, after one with those that several share."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mxnet's, of numpy
        from multifit.cli import build_parser

    [commands] = [
        action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)
    ]
    users: dict[tuple[str, str], list[str]] = {}  # the commands that have an option, by its form and its help
    sections = []
    for name, parser in commands.choices.items():
        for action in arguments_of(parser):
            users.setdefault(described(action), []).append(name)
    shared = {option: names for option, names in users.items() if len(names) > 1}
    rows = [f"| {form} | {text} | {', '.join(names)} |" for (form, text), names in shared.items()]
    sections.append("\n".join(["## Shared options", "", "| | | commands |", "|---|---|---|", *rows]))
    for name, parser in commands.choices.items():
        own = [option for option in map(described, arguments_of(parser)) if option not in shared]
        usage = parser.format_usage().removeprefix("usage: ").strip()
        text = f"{parser.description[:1].upper()}{parser.description[1:]}."
        sections.append(f"## {name}\n\n{text}\n\n```text\n{usage}\n```")
        if own:
            sections.append(
                "\n".join(["| | |", "|---|---|", *(f"| {form} | {text} |" for form, text in own)])
            )
    return "\n\n".join(sections)


def arguments_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return a command's arguments, without `--help`."""
    return [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]


def described(action: argparse.Action) -> tuple[str, str]:
    """Return how an argument is written, and its help."""
    value = action.metavar or (f"{{{','.join(action.choices)}}}" if action.choices else action.dest.upper())
    value = "" if action.nargs == 0 else value if isinstance(value, str) else value[0]
    written = f"{', '.join(action.option_strings)} {value}".strip() if action.option_strings else action.dest
    return f"`{written}`".replace("|", "\\|"), str(action.help).replace("|", "\\|")
