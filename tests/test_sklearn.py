"""The estimators of `multifit.sklearn`, in the tools of scikit-learn."""

import logging
import pickle
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, softmax
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_get_params_invariance, check_set_params

from multifit import EarlyStoppingHandler, LossSpec, TaskSpec, TrainerSpec
from multifit.sklearn import MultiEstimatorClassifier, MultiEstimatorRegressor

from mxnet import gluon  # isort: skip

BCE, CE = gluon.loss.SigmoidBinaryCrossEntropyLoss(), gluon.loss.SoftmaxCrossEntropyLoss()
L2 = gluon.loss.L2Loss()
RANDOM = np.random.RandomState(0)
X = RANDOM.randn(60, 4)
NAMES = np.array(["a", "b", "c"])[X[:, :3].argmax(axis=1)]
VALUES = np.stack([X[:, 0] * 2, X[:, 1] - X[:, 2]], axis=1)
FAST = {"optimizer__learning_rate": 0.05, "random_state": 0}


def net(hidden: int = 8, outputs: int = 3) -> gluon.HybridBlock:
    made = gluon.nn.HybridSequential()
    made.add(gluon.nn.Dense(hidden, activation="tanh"), gluon.nn.Dense(outputs))
    made.hybridize()
    return made


class Linear(gluon.nn.Dense):
    """A class, in place of a function."""

    def __init__(self) -> None:
        super().__init__(1)


def classifier(**options: Any) -> MultiEstimatorClassifier:
    return MultiEstimatorClassifier(net, CE, **{**FAST, **options})


def regressor(**options: Any) -> MultiEstimatorRegressor:
    return MultiEstimatorRegressor(net, L2, **{**FAST, "net__outputs": 2, **options})


def test_a_classifier_learns_names_from_a_frame() -> None:
    frame = pd.DataFrame(X, columns=list("wxyz"))
    fitted = classifier(epochs=20).fit(frame, pd.Series(NAMES))
    assert list(fitted.classes_) == ["a", "b", "c"] and fitted.score(frame, NAMES) > 0.9
    scores = fitted.estimator_.predict((X,))["output"]
    assert np.allclose(fitted.predict_proba(frame), softmax(scores, axis=1))
    assert (fitted.predict(frame) == fitted.classes_[scores.argmax(axis=1)]).all()
    assert list(fitted.feature_names_in_) == list("wxyz") and fitted.n_features_in_ == 4
    assert len(fitted.history_["train_loss"]) == 20


def test_one_score_for_two_classes() -> None:
    fitted = MultiEstimatorClassifier(Linear, BCE, epochs=20, **FAST).fit(X, X[:, 0] > 0)
    scores = fitted.estimator_.predict((X,))["output"]
    assert fitted.score(X, X[:, 0] > 0) > 0.9 and fitted.predict(X).dtype == bool
    assert np.allclose(fitted.predict_proba(X), np.hstack([expit(-scores), expit(scores)]), atol=1e-6)


def test_scores_of_classes_that_did_not_occur_are_left_out() -> None:
    fitted = classifier(net__outputs=5, epochs=1).fit(X, NAMES)
    assert fitted.predict_proba(X).shape == (60, 3)
    assert np.allclose(fitted.predict_proba(X).sum(axis=1), 1)


@pytest.mark.parametrize("columns", [(), (1,), (2,)], ids=str)
def test_a_regressor_predicts_values_of_the_shape_of_y(columns: tuple[int, ...]) -> None:
    y = VALUES[:, : columns[0]] if columns else VALUES[:, 0]
    fitted = regressor(net__outputs=(*columns, 1)[0], epochs=60).fit(X, y)
    assert fitted.predict(X).shape == y.shape and fitted.score(X, y) > 0.9
    assert np.allclose(fitted.predict(X).ravel(), fitted.estimator_.predict((X,))["output"].ravel())


def test_it_trains_as_a_multi_estimator() -> None:
    """Options of the estimator, trainers among them, handlers and validation data are those of `fit`."""
    trainers = TrainerSpec(".*", "sgd", {"learning_rate": 0.1})
    labels = np.unique(NAMES, return_inverse=True)[1]
    made = classifier(estimator__trainers=trainers, estimator__accumulate=2, batch_size=60, epochs=4)
    stop = EarlyStoppingHandler("val_loss", min_delta=10.0)
    made.fit(X, NAMES, val_data=[(X, labels)], event_handlers=stop)
    assert made.estimator_.learning_rates() == {"lr": 0.1}
    assert len(made.history_["val_loss"]) == 2 and made.estimator_.state.step == 2


def test_the_random_state_decides_and_the_generators_of_others_stay() -> None:
    before = np.random.get_state()[1].copy()
    first, second = (classifier(epochs=2).fit(X, NAMES).predict_proba(X) for _ in range(2))
    assert (before == np.random.get_state()[1]).all() and (first == second).all()
    other = clone(classifier(epochs=2)).set_params(random_state=np.random.RandomState(1)).fit(X, NAMES)
    assert not np.allclose(first, other.predict_proba(X))


def test_every_sample_is_seen_once_in_an_epoch_and_in_another_order() -> None:
    seen: list[Any] = []

    class Listening:
        def batch_begin(self, estimator: Any, batch: Any) -> None:
            seen.append(batch)

    regressor(epochs=2, batch_size=25, net__outputs=1).fit(X, np.arange(60.0), event_handlers=[Listening()])
    assert [len(batch[1]) for batch in seen] == [25, 25, 10] * 2
    orders = [np.concatenate([batch[1].ravel() for batch in seen[i : i + 3]]) for i in (0, 3)]
    assert all((np.sort(order) == np.arange(60)).all() for order in orders)
    assert (orders[0] != orders[1]).any() and (X[orders[0][:25].astype(int)] == seen[0][0]).all()


def test_a_grid_search_over_options_in_a_pipeline() -> None:
    """In several processes (`n_jobs=2`), estimators are pickled."""
    grid = {
        "multiestimatorclassifier__net__hidden": [2, 16],
        "multiestimatorclassifier__optimizer__learning_rate": [1e-6, 0.05],
    }
    pipeline = make_pipeline(StandardScaler(), classifier(epochs=15))
    search = GridSearchCV(pickle.loads(pickle.dumps(pipeline)), grid, cv=2).fit(X, NAMES)
    assert search.best_params_["multiestimatorclassifier__optimizer__learning_rate"] == 0.05
    assert search.score(X, NAMES) > 0.7
    best = search.best_estimator_[-1]
    assert best.estimator_.parameters["0.weight"].shape == (best.get_params()["net__hidden"], 4)


@pytest.mark.parametrize("made", [classifier(), regressor(verbose=True)], ids=["classifier", "regressor"])
def test_checks_of_scikit_learn(made: Any) -> None:
    for check in (check_get_params_invariance, check_set_params):
        check(type(made).__name__, clone(made))
    copy = clone(made)
    assert copy.get_params().keys() == made.get_params().keys() and copy.net is net
    assert repr(copy) == repr(made) and "net__outputs=2" in repr(regressor())
    assert copy.set_params(net__hidden=3, epochs=1).get_params()["net__hidden"] == 3
    assert "net__hidden" not in made.get_params()


def test_it_logs_warnings_only_unless_it_is_verbose(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("multifit")
    logger.addHandler(caplog.handler)
    try:
        classifier(epochs=1).fit(X, NAMES).predict(X)
        assert caplog.messages == []
        classifier(epochs=1, verbose=True).fit(X, NAMES)
        assert any(message.startswith("epoch 1/1") for message in caplog.messages)
    finally:
        logger.removeHandler(caplog.handler)


TWO = TaskSpec(outputs=["a", "b"], labels=["y"], losses={"a": LossSpec(CE, "a", "y")}, unused=["b"])


VALID = '"batch_size", "epochs", "net", "optimizer", "random_state", "spec", "verbose", "net__…"'


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: MultiEstimatorClassifier(net, CE, net_hidden=3), TypeError,
         f'MultiEstimatorClassifier has no argument "net_hidden"; valid are {VALID}, "optimizer__…", '),
        (lambda: classifier().set_params(epoch=3), ValueError, "Invalid parameter 'epoch' for estimator"),
        (lambda: MultiEstimatorClassifier(Linear(), CE).fit(X, NAMES), ValueError,
         "net is Linear(None -> 1, linear), one net, but each fit trains a new one: give its class, or"),
        (lambda: MultiEstimatorClassifier(net, TWO).fit(X, NAMES), ValueError,
         'an estimator of scikit-learn has one output, and the spec has "a", "b"'),
        (lambda: classifier().fit(X, NAMES, val_dat=1), TypeError, 'has no argument "val_dat" (did you'),
        (lambda: classifier().fit(X, X[:, 0]), ValueError, "Unknown label type: continuous"),
        (lambda: classifier().fit(X[:1] * np.nan, ["a"]), ValueError, "Input X contains NaN"),
        (lambda: classifier().predict(X), NotFittedError, "not fitted"),
        (lambda: classifier(epochs=1).fit(X, NAMES).predict(X[:, :2]), ValueError, "X has 2 features"),
        (lambda: classifier(epochs=0).fit(X, NAMES), ValueError, "epochs is 0; valid is a whole number"),
    ],
)  # fmt: skip
def test_errors(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        call()
