"""The nets of the tasks compute what their papers say, and do not see padding."""

from pathlib import Path

import numpy as np
import pytest

from multifit.cli.taskfile import TaskFile

# isort: split
import mxnet as mx
from gluoncv.nn.coder import NormalizedBoxCenterDecoder
from mxnet import nd
from mxnet.gluon import rnn

TASKS = Path(__file__).parents[2] / "tasks"


def task(name, *settings):
    file = TaskFile(TASKS / f"{name}.py")
    file.set(settings)
    return file.module


def test_each_task_mixes_the_experts_by_a_gate_of_its_own():
    cells = task("cells")
    mixture = cells.net()
    mixture.initialize(cells.initializer())
    measures = np.random.RandomState(0).randn(5, 10).astype("float32")

    def dense(layer, values):
        return values @ layer.weight.data().asnumpy().T + layer.bias.data().asnumpy()

    outputs = mixture(nd.array(measures))
    experts = np.tanh(dense(mixture.experts, measures)).reshape(5, cells.experts, cells.units)
    for output, gate, head in zip(outputs, mixture.gates, mixture.heads):
        shares = np.exp(dense(gate, measures))
        shares /= shares.sum(axis=1, keepdims=True)
        mixed = np.einsum("neu,ne->nu", experts, shares)
        np.testing.assert_allclose(output.asnumpy(), dense(head, mixed), rtol=1e-4, atol=1e-5)


def test_the_judge_prefers_digits():
    dcgan = task("dcgan")
    (images, digit), score = dcgan.digits(), dcgan.judge()
    assert score(None, images[:300]) > 0.95  # it knows them
    assert score(None, images[digit == 3]) < 0.15  # one kind
    assert score(None, np.random.RandomState(0).uniform(-1, 1, (300, 64))) < 0.5


def test_targets_of_an_ssd_are_the_boxes_of_the_objects():
    detection = task("detection")
    net, images = detection.net([mx.cpu()]), detection.scenes.scenes(3, detection.size)
    anchors = net.anchors.asnumpy()
    assert anchors.shape == (1, 4 * (16**2 + 8**2 + 4**2), 4)
    assert (anchors[..., :2].min(), anchors[..., :2].max()) == (4, 124)  # they cover the image
    classes, offsets = detection.ssd_targets.targets(net.anchors, images.boxes)
    decode = NormalizedBoxCenterDecoder(stds=(0.1, 0.1, 0.2, 0.2))
    boxes = decode(nd.array(offsets), net.anchors).asnumpy().round().astype(int)
    for image in range(3):
        decoded = {(*boxes[image, i], classes[image, i] - 1) for i in np.flatnonzero(classes[image])}
        assert decoded == {(*row[:4].astype(int), row[4]) for row in images.boxes[image] if row[4] >= 0}
    padded = np.concatenate([images.boxes, np.full((3, 3, 6), -1, "float32")], axis=1)
    for expected, found in zip((classes, offsets), detection.ssd_targets.targets(net.anchors, padded)):
        np.testing.assert_array_equal(expected, found)


def test_the_body_of_scenes_runs_once():
    net, calls = task("scenes").net([mx.cpu()]), []
    net.body.register_forward_hook(lambda *_: calls.append(1))
    with mx.autograd.train_mode():
        net.hybridize(False)
        net(nd.zeros((1, 3, 128, 128)))
    assert len(calls) == 1


def test_the_decoder_returns_a_score_for_every_pixel():
    net = task("segmentation").TinyFCN(4)
    net.initialize()
    assert net(nd.zeros((2, 3, 64, 96))).shape == (2, 4, 64, 96)


def test_bidirectional_agrees_with_gluon_without_padding():
    block = task("sentiment").Bidirectional(rnn.LSTM, 3)
    layer = rnn.LSTM(3, bidirectional=True, layout="NTC", input_size=2)
    inputs = nd.random.normal(shape=(2, 4, 2))
    for each in (block, layer):
        each.initialize()
    block(inputs, nd.array([4, 4]))
    for side, part in (("l", block.onward), ("r", block.back)):
        for name, value in part._collect_params_with_prefix().items():
            getattr(layer, f"{side}0_{name.split('.')[-1].replace('l0_', '')}").set_data(value.data())
    np.testing.assert_allclose(block(inputs, nd.array([4, 4])).asnumpy(), layer(inputs).asnumpy(), atol=1e-6)


@pytest.mark.parametrize("model", ["birnn", "textcnn"])
def test_padding_changes_no_mood(model):
    sentiment = task("sentiment", "train_count=50", f"model={model}")
    net = sentiment.net()
    net.initialize()
    words, length = map(nd.array, sentiment.encoded(["the film was not bad at all"]))
    wider = nd.concat(words, nd.ones((1, 9)) * words[0, -1], dim=1)
    np.testing.assert_allclose(net(words, length).asnumpy(), net(wider, length).asnumpy(), atol=1e-6)


@pytest.mark.parametrize("model", ["rnn", "transformer"])
def test_a_translator_decodes_step_by_step_and_each_sentence_by_itself(model):
    module = task("translation", "train_count=8", "val_count=1", "units=8", f"model={model}")
    net, bitext = module.net(), module.bitext()
    net.initialize()
    batch = bitext.batch([bitext.encode(*pair) for pair in bitext.train])
    source, target, *lengths, _ = (slot.as_in_context(mx.cpu()) for slot in batch)
    together, attention = net(source, target, *lengths)
    together = together.asnumpy()
    states = net.decoder.init_state_from_encoder(net.encode(source, lengths[0])[0], lengths[0])
    of_source, of_target = (each.asnumpy().astype(int) for each in lengths)
    for step in range(target.shape[1]):
        output, states = net.decode_step(target[:, step], states)
        valid = of_target > step
        np.testing.assert_allclose(output.asnumpy()[valid], together[valid, step], atol=1e-5)
    for i, (s, t) in enumerate(zip(of_source, of_target)):
        one = slice(i, i + 1)
        alone = net(source[one, :s], target[one, :t], *(length[one] for length in lengths))[0]
        np.testing.assert_allclose(together[i, :t], alone.asnumpy()[0], atol=1e-5)
    weights = attention[-1][-1].asnumpy().reshape(len(source), -1, target.shape[1], source.shape[1])
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
    assert not any(row[..., length:].any() for row, length in zip(weights, of_source))
