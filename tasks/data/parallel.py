"""Parallel text as IWSLT and WMT give it: two files, line by line each other's translation."""

from __future__ import annotations

from pathlib import Path

from gluonnlp.data import TextLineDataset

__all__ = ["read_parallel"]

NEEDED = (
    "two text files must lie in one folder, {} and {}, whose lines are each other's translations, tokens "
    "parted by blanks; say where with --set root=FOLDER, and how they are named with "
    "languages=\"('en', 'vi')\" segments=\"('train', 'tst2012')\""
)


def read_parallel(root: str, segment: str, languages: tuple[str, str]) -> list[tuple[str, str]]:
    """Read the two files of a segment, such as ``train.en`` and ``train.vi``.

    Parameters
    ----------
    root : str
        Their folder.
    segment : str
        What stands before the language in their names: ``train``, or ``train.tok.clean.bpe.32000``.
    languages : (str, str)
        The endings of the source's file and of the target's.

    Returns
    -------
    list of (str, str)
        Source and target, tokens parted by blanks; pairs with an empty side are left out.

    Raises
    ------
    FileNotFoundError
        A file is missing; the message says what must lie where.
    ValueError
        The files have different numbers of lines, or no pair.

    Notes
    -----
    gluonnlp's ``IWSLT2015`` and ``WMT2014BPE`` read these files too, and download them wherever a checksum
    differs.
    """
    paths = [Path(root).expanduser() / f"{segment}.{language}" for language in languages]
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}; {NEEDED.format(*(p.name for p in paths))}")
    source, target = (TextLineDataset(str(path)) for path in paths)
    if len(source) != len(target):
        raise ValueError(
            f"{paths[0]} has {len(source)} lines and {paths[1]} {len(target)}; they must be as many"
        )
    pairs = [pair for pair in zip(source, target) if all(pair)]
    if not pairs:
        raise ValueError(f"{paths[0]} and {paths[1]} have no line in common that is not empty")
    return pairs
