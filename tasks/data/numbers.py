"""Numbers in English words and in digits: a simple language pair whose translations anybody can check."""

import random

__all__ = ["make_pairs", "spelled"]

ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen"]
TEENS += ["fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
LONGEST = 6  # digits


def spelled(number: int) -> str:
    """Return a number below a million in words, "three hundred and two" for 302.

    Raises
    ------
    ValueError
        The number is negative or too large.
    """
    if not 0 <= number < 10**LONGEST:
        raise ValueError(f"the number must be at least 0 and less than {10**LONGEST}, not {number}")
    thousands, rest = divmod(number, 1000)
    if not thousands:
        return _below_thousand(rest)
    parts = [f"{_below_thousand(thousands)} thousand"]
    if rest:
        parts.append(("and " if rest < 100 else "") + _below_thousand(rest))
    return " ".join(parts)


def make_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return distinct numbers of two to six digits, each length equally often as far as possible.

    Parameters
    ----------
    count : int
        The number of pairs.
    seed : int
        The same seed gives the same numbers; a larger count adds to them.

    Returns
    -------
    list of (str, str)
        Words and digits, tokens separated by spaces: ``("three hundred and two", "3 0 2")``.
    """
    rng, numbers = random.Random(seed), {}
    while len(numbers) < count:
        width = rng.randint(2, LONGEST)
        numbers[rng.randrange(10 ** (width - 1), 10**width)] = None
    return [(spelled(number), " ".join(str(number))) for number in numbers]


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    parts = [f"{ONES[hundreds]} hundred"] if hundreds else []
    if rest or not hundreds:
        parts.append(_below_hundred(rest))
    return " and ".join(parts)


def _below_hundred(number: int) -> str:
    tens, ones = divmod(number, 10)
    if tens < 2:
        return (ONES + TEENS)[number]
    return TENS[tens - 2] + (f" {ONES[ones]}" if ones else "")
