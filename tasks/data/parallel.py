"""Parallel text in the format of IWSLT and WMT: two files whose lines are translations of each other."""

from pathlib import Path

from gluonnlp.data import TextLineDataset

__all__ = ["read_parallel"]

NEEDED = (
    "a folder must have two text files, {} and {}, whose lines are translations of each other, tokens "
    "separated by spaces; set the folder with --set root=FOLDER, and the names with "
    "languages=\"('en', 'vi')\" segments=\"('train', 'tst2012')\""
)


def read_parallel(root: str, segment: str, languages: tuple[str, str]) -> list[tuple[str, str]]:
    """Read the two files of a segment, such as ``train.en`` and ``train.vi``.

    Parameters
    ----------
    root : str
        The folder of the files.
    segment : str
        The first part of their names: ``train``, or ``train.tok.clean.bpe.32000``.
    languages : (str, str)
        The suffixes of the source's and of the target's file.

    Returns
    -------
    list of (str, str)
        Source and target, tokens separated by spaces; pairs with an empty side are left out.

    Raises
    ------
    FileNotFoundError
        A file is missing; the message says which files are needed.
    ValueError
        The files have different numbers of lines, or no pair.

    Notes
    -----
    gluonnlp's ``IWSLT2015`` and ``WMT2014BPE`` read these files too, but download them if a checksum differs.
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
