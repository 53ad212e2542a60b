"""Everything that uses MXNet. No other package imports mxnet."""

from ..seeding import add_seeder


def _seed_mxnet(seed: int) -> None:
    from .compat import mx  # only now: the command sets its environment before mxnet is imported

    mx.random.seed(seed)


add_seeder(_seed_mxnet)
