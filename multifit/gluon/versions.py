"""``LooseVersion`` and ``StrictVersion``, as in the ``distutils.version`` that Python 3.12 no longer has.

mxnet, gluoncv and gluonnlp compare version numbers with them and use nothing else of ``distutils``.
"""

from __future__ import annotations

import functools
import re

__all__ = ["LooseVersion", "StrictVersion"]


@functools.total_ordering
class LooseVersion:
    """A version number that is compared piece by piece: numbers as numbers, letters as letters.

    Parameters
    ----------
    vstring : str
        For example "1.9.1" or "0.10.5.post0".

    Attributes
    ----------
    vstring : str
        The text as given.
    version : list of int and str
        Its pieces: ``[0, 10, 5, "post", 0]``.
    """

    def __init__(self, vstring: str) -> None:
        self.vstring = vstring
        self.version: list[int | str] = [
            int(piece) if piece.isdigit() else piece for piece in re.findall(r"\d+|[a-z]+", vstring)
        ]

    def __str__(self) -> str:
        return self.vstring

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vstring!r})"

    def __hash__(self) -> int:
        return hash(tuple(self.version))

    def __eq__(self, other: object) -> bool:
        pieces = self._pieces(other)
        return NotImplemented if pieces is None else self.version == pieces

    def __lt__(self, other: object) -> bool:
        pieces = self._pieces(other)
        return NotImplemented if pieces is None else self._order(self.version) < self._order(pieces)

    @classmethod
    def _pieces(cls, other: object) -> list[int | str] | None:
        if isinstance(other, str):
            other = cls(other)
        return other.version if isinstance(other, LooseVersion) else None

    @staticmethod
    def _order(pieces: list[int | str]) -> list[tuple[int, int | str]]:
        # distutils' own raises TypeError for a number against a word; here a word comes before a number,
        # so that "2.0.rc1" is older than "2.0.1".
        return [(1, piece) if isinstance(piece, int) else (0, piece) for piece in pieces]


class StrictVersion(LooseVersion):
    """A version number of two or three numbers, perhaps with ``a`` or ``b`` and a number for a pre-release.

    Raises
    ------
    ValueError
        The text is not of that form.
    """

    def __init__(self, vstring: str) -> None:
        match = re.fullmatch(r"(\d+)\.(\d+)(?:\.(\d+))?(?:([ab])(\d+))?", vstring)
        if match is None:
            raise ValueError(f"invalid version number '{vstring}'")
        super().__init__(vstring)
        major, minor, patch, stage, number = match.groups()
        # "z" sorts a release after its own alphas and betas; "1.2" is "1.2.0".
        self.version = [int(major), int(minor), int(patch or 0), stage or "z", int(number or 0)]
