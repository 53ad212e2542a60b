"""PyTorch nets as estimators of scikit-learn."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from torch import nn

from multifit.sklearn import MultiEstimatorClassifier

X, Y = load_digits(return_X_y=True)


def net_of(hidden: int = 16, outputs: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def test_a_classifier_in_a_search() -> None:
    x, words = X[Y < 3] / 16, np.array(["zero", "one", "two"])[Y[Y < 3]]
    classifier = MultiEstimatorClassifier(net_of, nn.CrossEntropyLoss(), random_state=0, net__outputs=3)
    search = GridSearchCV(classifier, {"net__hidden": [2, 16], "optimizer__lr": [1e-2]}, cv=2)
    search.set_params(estimator__epochs=3).fit(x, words)
    assert search.best_score_ > 0.95 and set(search.predict(x[:5])) <= {"zero", "one", "two"}
    assert search.predict_proba(x[:5]).sum(axis=1) == pytest.approx(1, abs=1e-6)


def test_one_net_is_refused() -> None:
    with pytest.raises(ValueError, match="one net, but each fit trains a new one: give its class, or a"):
        MultiEstimatorClassifier(net_of(), nn.CrossEntropyLoss()).fit(np.ones((4, 64)), [0, 1, 0, 1])
