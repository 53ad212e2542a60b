"""The translation to PyTorch: graphs of the larger tasks and of zoos' nets agree with MXNet's in float64.

Run it alone with ``python -m pytest nightly/test_torch_graphs.py -n 2``. MXNet takes most of the time.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from multifit.gluon.compat import mx

if find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

from gluoncv.model_zoo import get_model
from gluonnlp.model import BERTEncoder, BERTModel
from gluonnlp.model.language_model import AWDRNN

from multifit.cli.taskfile import TaskFile
from multifit.utils.seeding import seed_everything
from nightly.torch_graphs import Traced, assert_graph_agrees, traced_graphs

ROOT = Path(__file__).parents[1]
TASKS = [
    ("classification", "model=resnet18"),
    ("classification", "model=alexnet"),
    ("classification", "model=vgg"),
    ("augmentation",),
    ("segmentation", "model=fcn"),
    ("detection",),
    ("scenes",),
]
# name: the size of pictures; one net of each family
ZOO = {
    "alexnet": 224,
    "cifar_resnet20_v1": 32,
    "cifar_wideresnet16_10": 32,
    "darknet53": 64,
    "densenet121": 224,
    "googlenet": 224,
    "inceptionv3": 299,
    "mobilenet0.25": 64,
    "mobilenetv2_0.25": 64,
    "mobilenetv3_small": 64,
    "resnest14": 64,
    "resnet18_v1b": 64,
    "resnet18_v2": 64,
    "resnext50_32x4d": 64,
    "se_resnext50_32x4d": 64,
    "senet_154": 64,
    "squeezenet1.0": 224,
    "vgg11_bn": 64,
    "xception": 96,
}
SEGMENTATION = ["fcn_resnet50_ade", "deeplab_resnet50_ade", "psp_resnet50_ade"]
OTHER = {"simple_pose_resnet18_v1b": 64, "ssd_300_vgg16_atrous_voc": 300}
LOOSE = 1e-5  # MXNet computes the places of bilinear interpolation in float32
# In training on such small pictures, darknet53 turns a difference of 1e-12 in its input into one of 5e-8
GROWING = 1e-6


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start every test with the same parameters, whatever ran before it."""
    seed_everything(0)


@pytest.mark.parametrize("case", TASKS, ids=" ".join)
def test_graphs_of_tasks(case):
    for graph in traced_graphs(*case):
        assert_graph_agrees(graph, LOOSE if "model=fcn" in case else 1e-9)


MODES = pytest.mark.parametrize("training", [False, True], ids=["evaluates", "trains"])


@MODES
@pytest.mark.parametrize("name", ZOO)
def test_nets_of_the_zoo(name, training):
    tolerance = GROWING if name == "darknet53" and training else 1e-8
    assert_net_agrees(get_model(name), ZOO[name], training, tolerance)


@MODES
@pytest.mark.parametrize("name", SEGMENTATION)
def test_nets_that_segment(name, training):
    net = get_model(name, pretrained_base=False, crop_size=64, base_size=64)
    assert_net_agrees(net, 64, training, LOOSE)


@MODES
@pytest.mark.parametrize("name", OTHER)
def test_other_nets(name, training):
    # Not tighter: the rank of its score decides which box is kept, and coordinates are large
    assert_net_agrees(get_model(name, pretrained_base=False), OTHER[name], training, LOOSE)


@MODES
def test_yolo(training):
    """In training on small pictures, differences grow as in darknet53; boxes in pixels are large outputs."""
    net = get_model("yolo3_darknet53_voc", pretrained_base=False)
    net.initialize(mx.init.Xavier())
    random = np.random.RandomState(0)
    inputs = {"data": random.rand(2, 3, 64, 64)}
    if training:  # boxes, and the targets of its losses, for the 252 places of pictures of this size
        sizes = {"boxes": (2, 1, 4), "objectness": (2, 252, 1), "centers": (2, 252, 2), "scales": (2, 252, 2)}
        sizes.update(weights=(2, 252, 2), classes=(2, 252, 20))
        inputs.update({name: random.rand(*size) for name, size in sizes.items()})
    assert_block_agrees(net, inputs, training, LOOSE if training else 1e-8)


@MODES
def test_bert(training):
    encoder = BERTEncoder(num_layers=2, units=32, hidden_size=64, max_length=16, num_heads=4, dropout=0.1)
    net = BERTModel(
        encoder, vocab_size=50, token_type_vocab_size=2, units=32, embed_size=32, use_decoder=False
    )
    net.initialize(mx.init.Normal(0.1))
    random = np.random.RandomState(0)
    inputs = {"words": random.randint(0, 50, (3, 10)), "types": random.randint(0, 2, (3, 10))}
    inputs = {name: words.astype("float64") for name, words in inputs.items()}
    inputs["length"] = np.array([10.0, 4.0, 7.0])
    # MXNet's attention operators work in float32 only
    assert_block_agrees(net, inputs, training, 1e-4, words=True, dtype="float32")


@MODES
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_a_language_model(mode, training):
    net = AWDRNN(mode, 50, 16, 24, 2, False, 0.1, 0.5, 0.1, 0.1, 0.1)
    net.initialize(mx.init.Normal(0.1))
    words = np.random.RandomState(0).randint(0, 50, (7, 3)).astype("float64")
    assert_block_agrees(net, {"words": words}, training, words=True)


@MODES
@pytest.mark.parametrize("model", ["rnn", "transformer"])
def test_halves_of_a_translation_net(model, training):
    """Between its halves the net computes with arrays, so the halves are two graphs."""
    file = TaskFile(ROOT / "tasks" / "translation.py")
    file.set([f"model={model}", "train_count=64", "val_count=8"])
    net = file.module.net()
    net.initialize(mx.init.Normal(0.1))
    batch = next(iter(file.module.bitext().loaders(4)[0]))
    source, target, length, target_length, _ = (slot.as_in_context(mx.cpu()) for slot in batch)
    net(source, target, length, target_length)
    embedded, target = net.src_embed(source), net.tgt_embed(target)
    states = net.decoder.init_state_from_encoder(net.encode(source, valid_length=length)[0], length)
    encoder = {"words": embedded, "length": length}
    decoder = {"words": target, "length": target_length, **{f"state{i}": s for i, s in enumerate(states)}}
    assert_block_agrees(
        net.encoder, wide(encoder), training, call=lambda half, words, length: half(words, None, length)[0]
    )
    assert_block_agrees(
        net.decoder,
        wide(decoder),
        training,
        call=lambda half, words, length, *states: half(words, list(states), length)[0],
    )


def wide(arrays):
    return {name: array.asnumpy().astype("float64") for name, array in arrays.items()}


def assert_net_agrees(net, size, training, tolerance=1e-8):
    net.initialize(mx.init.Xavier())
    assert_block_agrees(net, {"data": np.random.RandomState(0).rand(2, 3, size, size)}, training, tolerance)


def assert_block_agrees(
    net,
    inputs,
    training,
    tolerance=1e-8,
    call=lambda net, *inputs: net(*inputs),
    words=False,
    dtype="float64",
):
    """Assert that outputs and gradients of a net agree with MXNet's.

    Unless `words`, the first input is multiplied by a parameter, so that the backward pass runs through the
    whole net: on CPUs, MXNet updates the running statistics of a BatchNorm in its backward pass.
    """
    net.apply(_with_an_exact_slope)
    scale = mx.gluon.Parameter("scale_of_the_input", shape=(1,), init="ones")
    scale.initialize()
    mode = mx.autograd.train_mode if training else mx.autograd.predict_mode
    with mode():
        call(net, *map(mx.nd.array, inputs.values()))
        first, *others = (mx.sym.var(name) for name in inputs)
        outputs = call(net, first if words else mx.sym.broadcast_mul(first, scale.var()), *others)
    parameters = dict(net.collect_params().items(), scale_of_the_input=scale)
    graph = Traced(mx.sym.Group(flat(outputs)), inputs, parameters, training)
    assert_graph_agrees(graph, tolerance, dtype)


def _with_an_exact_slope(block):
    """Set the slope of a LeakyReLU, which MXNet holds in float32, to a number that is exact in float32."""
    if isinstance(block, mx.gluon.nn.LeakyReLU):
        block._alpha = 0.125


def flat(outputs):
    """Return the symbols in nested lists."""
    nested = isinstance(outputs, (list, tuple))
    return [each for output in outputs for each in flat(output)] if nested else [outputs]
