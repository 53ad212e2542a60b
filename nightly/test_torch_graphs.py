"""The translation to PyTorch: graphs of the larger tasks and of zoos' nets, in float64 against MXNet's."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from multifit.gluon.compat import mx

if find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

from gluoncv.model_zoo import get_model

from tests.torch.graphs import Traced, assert_graph_agrees, traced_graphs

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


@pytest.mark.parametrize("case", TASKS, ids=" ".join)
def test_graphs_of_tasks(case):
    for graph in traced_graphs(*case):
        assert_graph_agrees(graph, LOOSE if "model=fcn" in case else 1e-9)


MODES = pytest.mark.parametrize("training", [False, True], ids=["evaluates", "trains"])


@MODES
@pytest.mark.parametrize("name", ZOO)
def test_nets_of_the_zoo(name, training):
    assert_net_agrees(get_model(name), ZOO[name], training)


@MODES
@pytest.mark.parametrize("name", SEGMENTATION)
def test_nets_that_segment(name, training):
    net = get_model(name, pretrained_base=False, crop_size=64, base_size=64)
    assert_net_agrees(net, 64, training, LOOSE)


@MODES
@pytest.mark.parametrize("name", OTHER)
def test_other_nets(name, training):
    # A score's rank decides which boxes are kept: their coordinates are large
    assert_net_agrees(get_model(name, pretrained_base=False), OTHER[name], training, LOOSE)


def assert_net_agrees(net, size, training, tolerance=1e-8):
    net.initialize(mx.init.Xavier())
    picture = mx.nd.array(np.random.RandomState(0).rand(2, 3, size, size))
    mode = mx.autograd.train_mode if training else mx.autograd.predict_mode
    with mode():
        net(picture)
        outputs = net(mx.sym.var("data"))
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    graph = Traced(mx.sym.Group(list(outputs)), {"data": picture.asnumpy()}, net.collect_params(), training)
    assert_graph_agrees(graph, tolerance)
