"""Generated sentences about films, with negation: no single word tells whether somebody liked the film."""

import random
import re

__all__ = ["MOODS", "make_reviews", "words_of"]

MOODS = ("negative", "positive")
THINGS = [
    "film",
    "plot",
    "acting",
    "music",
    "ending",
    "dialogue",
    "cast",
    "script",
    "story",
    "camera",
    "pace",
    "humour",
]
GOOD = [
    "good",
    "great",
    "wonderful",
    "funny",
    "moving",
    "clever",
    "brilliant",
    "charming",
    "fresh",
    "gripping",
]
BAD = ["bad", "dull", "awful", "boring", "clumsy", "terrible", "tedious", "weak", "stale", "silly"]
DEGREES = ["", "", "very", "really", "quite", "rather", "truly"]
PLAIN = [
    "the {thing} was {degree} {word}",
    "i found the {thing} {degree} {word}",
    "they are right to call the {thing} {degree} {word}",
    "the {thing} is as {word} as all say",
]
NEGATED = [
    "the {thing} was not {degree} {word}",
    "i did not find the {thing} {degree} {word}",
    "nobody would call the {thing} {degree} {word}",
    "the {thing} is never {degree} {word}",
    "the {thing} was far from {word}",
]
OPENINGS = ["", "", "honestly ,", "on the whole", "in the end", "my friends say that"]
ENDINGS = [".", ".", "!", "at all .", ", if you ask me ."]


def make_reviews(count: int, seed: int = 0) -> list[tuple[str, int]]:
    """Return distinct sentences, half of them positive.

    A sentence has one or two clauses. The clause after "but", and the main clause of "although", decides;
    "and" joins two clauses of the same mood. In half of the clauses the word is negated.

    Parameters
    ----------
    count : int
        The number of sentences.
    seed : int
        The same seed gives the same sentences; a larger count adds to them.

    Returns
    -------
    list of (str, int)
        The sentence, and the index of its mood in `MOODS`.
    """
    rng, sentences = random.Random(seed), {}
    while len(sentences) < count:
        mood = len(sentences) % 2
        sentences.setdefault(_sentence(rng, mood), mood)
    return list(sentences.items())


def words_of(text: str) -> list[str]:
    """Split a text into words in lower case and punctuation marks."""
    return re.findall(r"[\w']+|[.,!?]", text.lower())


def _sentence(rng: random.Random, mood: int) -> str:
    form = rng.choice(["{a}", "{a} and {b}", "{c} but {a}", "although {c} , {a}"])
    clauses = {"a": _clause(rng, mood), "b": _clause(rng, mood), "c": _clause(rng, 1 - mood)}
    return " ".join(f"{rng.choice(OPENINGS)} {form.format(**clauses)} {rng.choice(ENDINGS)}".split())


def _clause(rng: random.Random, mood: int) -> str:
    negated = rng.random() < 0.5
    word = rng.choice(GOOD if bool(mood) != negated else BAD)
    form = rng.choice(NEGATED if negated else PLAIN)
    return form.format(thing=rng.choice(THINGS), degree=rng.choice(DEGREES), word=word)
