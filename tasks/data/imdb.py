"""The IMDB reviews (Maas et al., 2011, "Learning word vectors for sentiment analysis"), from a folder."""

from pathlib import Path

__all__ = ["read_imdb"]

NEEDED = (
    "unpack aclImdb_v1.tar.gz of https://ai.stanford.edu/~amaas/data/sentiment/, so that the reviews are in "
    "aclImdb/train/pos, aclImdb/train/neg, aclImdb/test/pos and aclImdb/test/neg, one .txt file each, and "
    "give the folder that holds aclImdb, or aclImdb itself: --set root=FOLDER"
)


def read_imdb(root: str, segment: str) -> list[tuple[str, int]]:
    """Read the reviews of one half of the data set.

    Parameters
    ----------
    root : str
        The folder ``aclImdb``, or its parent.
    segment : {"train", "test"}
        The half to read.

    Returns
    -------
    list of (str, int)
        The text without line breaks, and 1 for a positive review or 0 for a negative one.

    Raises
    ------
    FileNotFoundError
        There are no reviews; the message says where they must be.

    Notes
    -----
    gluonnlp's own class reads another file, made from these, and downloads it if its checksum differs.
    """
    base = Path(root).expanduser()
    base = base / "aclImdb" if (base / "aclImdb").is_dir() else base
    return [
        (path.read_text(encoding="utf-8").replace("<br />", " "), mood)
        for mood, name in enumerate(("neg", "pos"))
        for path in _texts(base / segment / name)
    ]


def _texts(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.txt"))  # the order on the disk is arbitrary
    if not paths:
        raise FileNotFoundError(f"there are no reviews {folder}/*.txt; {NEEDED}")
    return paths
