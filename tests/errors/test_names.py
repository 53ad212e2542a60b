"""Names: malformed, unknown, duplicate, colliding, not taken."""

from typing import Any

import pytest

from multifit import LabelSpec, LossSpec, MetricSpec, SpecError, TaskSpec

import mxnet as mx  # isort: skip

from .setups import BOTH, CE, L2, Setup, fault

# fmt: off
FAULTS = [
    # not names at all
    fault("output is None", lambda s: s.but(outputs=[None]),
        "outputs: None is not a name; a name is a string"),
    fault("outputs are a dict", lambda s: s.but(outputs={"digit": 1}), "is a dict; give a list of names"),
    fault("no outputs", lambda s: s.but(outputs=[]), "outputs: no name is given; name at least one"),
    fault("key is a number", lambda s: s.but(losses={3: CE()}), "losses: 3 is not a name"),
    fault("name is a number", lambda s: s.but(name=3), "name: 3 is not a string"),
    fault("dots in the middle", lambda s: s.but(outputs=["digit", ..., "amount"]),
        'outputs: "..." must come last'),
    fault("loss is None", lambda s: s.but(losses={**s.spec["losses"], "amount": None}),
        'losses["amount"]: is None; leave it out, or declare LossSpec(outputs=...), without a function, for'),
    fault("a bare loss", lambda s: s.but(losses=CE()),
        "losses: is SoftmaxCrossEntropyLoss(batch_axis=0, w=None); give a dict by name"),
    # LabelSpec
    fault("dtype", lambda s: s.but(labels=[LabelSpec("digit", dtype="flot32"), "amount"]),
        'labels["digit"]: dtype is \'flot32\' (did you mean "float32"?); valid are "float16", "float32"'),
    fault("classes", lambda s: s.but(labels=[LabelSpec("digit", classes=0), "amount"]),
        'labels["digit"]: classes is 0; it must be a whole number of at least 1'),
    fault("ignore", lambda s: s.but(labels=[LabelSpec("digit", ignore="none"), "amount"]),
        "labels[\"digit\"]: ignore is 'none'; it must be a finite number"),
    # unknown
    fault("unknown output", lambda s: s.with_loss(CE(), outputs="digits", labels="digit"),
        '1 problem found:\n  1. losses["digit"]: there is no output "digits" (did you mean "digit"?)',
        'outputs are "digit", "amount"'),
    fault("unknown label", lambda s: s.with_loss(CE(), outputs="digit", labels="digt"),
        'losses["digit"]: there is no label "digt" (did you mean "digit"?)',
        'labels and inputs are "digit", "amount", "x"'),
    fault("unknown loss in a metric", lambda s: s.with_metric(mx.metric.Loss(), losses="digits"),
        'metrics["figure"]: there is no loss "digits" (did you mean "digit"?); losses are "digit", "amount"'),
    fault("unknown argument", lambda s: s.with_loss(CE(), arguments=["outputs.digit", "labels.digt"]),
        'losses["digit"]: there is no output or label "labels.digt"'),
    fault("ambiguous argument", lambda s: s.with_loss(CE(), arguments=["digit", "labels.digit"]),
        '"digit" is an output and a label; write "outputs.digit" or "labels.digit" in arguments'),
    fault("argument left out", lambda s: s.with_loss(CE(), "digit", "digit", arguments=["outputs.digit"]),
        'losses["digit"]: arguments= must name every output and label that it takes; "labels.digit" missing'),
    fault("unknown normalizer", lambda s: s.with_loss(CE(), normalize_by="amont"),
        'losses["digit"]: normalize_by: there is no label "amont" (did you mean "amount"?)'),
    fault("unknown unused", lambda s: s.but(unused=["boxes"]),
        'unused: there is no output or label "boxes"; outputs, labels and inputs are "digit", "amount", "x"'),
    fault("key without label", lambda s: s.but(labels=["digit"]), "1 problem found:",
        'losses["amount"]: there is no label "amount"; labels and inputs are "digit", "x"',
        "declare it, or name what it takes with labels="),
    fault("key without output", lambda s: s.but(outputs=["digit", "amont"]),
        'losses["amount"]: there is no output "amount" (did you mean "amont"?); outputs are "digit", "amont"',
        "name what it takes with outputs="),
    fault("key of nothing", lambda s: s.but(losses={**s.spec["losses"], "other": L2()}),
        'losses["other"]: there is no output and no label "other"',
        "name what it takes with outputs= and labels="),
    fault("takes nothing", lambda s: s.with_metric(mx.metric.Accuracy(), outputs=[], labels=[]),
        'metrics["figure"]: takes nothing; name what it takes with outputs= and labels='),
    # twice
    fault("output twice", lambda s: s.but(outputs=["digit", "amount", "digit"]),
        'outputs: "digit" is declared 2 times; give each its own name'),
    fault("slot twice in batch", lambda s: s.but(batch=["x", "digit", "amount", "x"]),
        'batch: "x" is listed 2 times; every slot of a batch has its own name'),
    fault("slot missing in batch", lambda s: s.but(batch=["x", "digit"]),
        'batch: "amount" missing; it must name every input and label, it names "x", "digit"'),
    fault("unknown in batch", lambda s: s.but(batch=["x", "digit", "amount", "index"]),
        'batch: "index" is neither an input nor a label; valid are "x", "digit", "amount"',
        'if nothing takes it, list it: unused=["index"]'),
    # two figures of one name
    fault("metric like a loss", lambda s: s.but(metrics={"digit": mx.metric.Accuracy()}),
        'the figure "digit" is produced by losses["digit"] and metrics["digit"]; rename one of them'),
    fault("loss called loss",
        lambda s: s.but(losses={**s.spec["losses"], "loss": LossSpec(L2(), "amount", "amount")}),
        'the figure "loss" is produced by the objective and losses["loss"]'),
    fault("part like a loss",
        lambda s: s.but(metrics={},
            losses={"a": LossSpec(CE(), **BOTH, returns=["b"]), "a.b": LossSpec(L2(), "amount", "amount")}),
        'the figure "a.b" is produced by losses["a"] and losses["a.b"]'),
    # declared, and not used
    fault("output not taken", lambda s: s.but(outputs=["digit", "amount", "extra"]),
        'the output "extra" is not taken by any loss or metric; route it, or list it: unused=["extra"]'),
    fault("label not taken", lambda s: s.but(labels=["digit", "amount", "weight"]),
        'the label "weight" is not taken by any loss or metric'),
    # the evaluating spec
    fault("evaluate is a dict", lambda s: s.but(evaluate={}), "evaluate: {} is not a TaskSpec"),
    fault("evaluate within evaluate",
        lambda s: s.but(evaluate=TaskSpec(outputs="a", evaluate=TaskSpec(outputs="a"))),
        "evaluate: the TaskSpec for evaluation has an evaluate= of its own; leave that one out"),
    fault("a metric that evaluate= replaces",
        lambda s: s.with_metric(mx.metric.Accuracy(), **BOTH, stage="evaluate").but(
            evaluate=TaskSpec(outputs=["digit", "amount"], unused=["digit", "amount"])),
        'metrics["figure"]: is for stage="evaluate", where the TaskSpec in evaluate= replaces this'),
    fault("forward", lambda s: s.but(forward="net"), "forward: 'net' cannot be called; give a function"),
    fault("batch_fn", lambda s: s.but(batch_fn=3), "batch_fn: 3 cannot be called; give a function"),
    # functions that take something else
    fault("forward of nothing", lambda s: s.but(forward=lambda: 0),
        'forward: is called with 2 arguments ("net", "slots"), but takes (): ', "; let it take (net, slots)"),
    fault("batch_fn of two", lambda s: s.but(batch_fn=lambda a, b: {}),
        'batch_fn: is called with 1 argument ("batch"), but takes (a, b): ', "; let it take (batch)"),
    fault("functions of a loss",
        lambda s: s.with_loss(CE(), **BOTH, weight=lambda: 1, normalize_by=lambda: 1),
        ".weight: is called with 1 argument (\"state\"), but takes (): ", "; let it take (state)",
        ".normalize_by: is called with 1 argument (\"slots\"), but takes (): ", "; let it take (slots)"),
]
# fmt: on


@pytest.mark.parametrize(("change", "texts"), FAULTS)
def test_a_wrong_name_is_an_error(setup: Setup, change: Any, texts: tuple) -> None:
    change(setup).refused(SpecError, *texts)


def test_names_do_not_cause_further_problems_nor_hide_them(setup: Setup) -> None:
    """The name that was probably meant is not reported as taken by nothing."""
    message = setup.with_loss(CE(), outputs="digt", labels="dgit").refused(SpecError)
    assert message.startswith("2 problems found:") and "taken by no loss" not in message
    faulty = setup.but(labels=[None, "digit"], losses={"digit": LossSpec(CE(), weight=-1)})
    faulty.refused(SpecError, "2 problems found", "None is not a name", "the weight is -1")


def test_a_metric_may_have_a_losss_name_if_its_figures_have_others(setup: Setup) -> None:
    spec = MetricSpec(mx.metric.Accuracy(), "digit", "digit", names=["top"])
    setup.but(metrics={"digit": spec}).trains()
