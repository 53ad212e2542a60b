"""On torch, a figure is that of the whole pass, too."""

from typing import Any

import numpy as np
import pytest

from tests.common.ranks import run_ranks
from tests.common.whole_pass import assert_whole, cut, estimator


@pytest.mark.parametrize("size", [1, 2])
def test_figures_do_not_depend_on_batches_and_ranks(size: int) -> None:
    def train(world: Any) -> list[dict[str, float]]:
        trained, data = estimator(engine="torch", world=world), cut([8, 8, 1, 12, 12])
        last = trained.fit(data, cut([20, 3]), epochs=2, event_handlers=[]).last
        stages = [
            {name.removeprefix(prefix): last[name] for name in last if name.startswith(prefix)}
            for prefix in ("train_", "val_")
        ]
        return [*stages, trained.evaluate(data, event_handlers=[])]

    for figures in np.ravel(run_ranks(size, train)).tolist():
        assert_whole(figures)
