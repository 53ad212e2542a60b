"""PyTorch nets as estimators of scikit-learn."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from torch import nn

from multifit.sklearn import MultiEstimatorClassifier, MultiEstimatorRegressor


def net_of(hidden: int = 16, outputs: int = 10) -> nn.Module:
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def test_a_classifier_in_a_search() -> None:
    x, y = load_digits(return_X_y=True)
    words = np.array(["zero", "one", "two"])[y[y < 3]]
    classifier = MultiEstimatorClassifier(net_of, nn.CrossEntropyLoss(), random_state=0, net__outputs=3)
    search = GridSearchCV(classifier, {"net__hidden": [2, 16], "optimizer__lr": [1e-2]}, cv=2)
    search.set_params(estimator__epochs=3).fit(x[y < 3] / 16, words)
    assert search.best_score_ > 0.95 and set(search.predict(x[:5] / 16)) <= {"zero", "one", "two"}
    assert search.predict_proba(x[:5] / 16).sum(axis=1) == pytest.approx(1, abs=1e-6)


def test_a_regressor() -> None:
    x, _ = load_digits(return_X_y=True)
    ink = x.mean(axis=1)
    options: dict[str, Any] = {"epochs": 30, "random_state": 0, "optimizer__lr": 1e-2, "net__outputs": 1}
    assert MultiEstimatorRegressor(net_of, nn.MSELoss(), **options).fit(x / 16, ink).score(x / 16, ink) > 0.9


def test_one_net_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="one net, but each fit trains a new one: give its class, or a"):
        MultiEstimatorClassifier(net_of(), nn.CrossEntropyLoss()).fit(np.ones((4, 64)), [0, 1, 0, 1])
