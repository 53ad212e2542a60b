"""Small curves for every run: the tests of the command draw real ones."""

import pytest
from matplotlib.figure import Figure


@pytest.fixture(scope="module", autouse=True)
def small_curves():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multifit.estimator.run_folder.curves", lambda history: Figure(figsize=(0.1, 0.1)))
        yield
