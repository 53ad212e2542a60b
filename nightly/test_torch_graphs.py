"""The translation to PyTorch: graphs of the larger tasks and of zoos' nets agree with MXNet's in float64.

And ``compile=True``: a compiled step computes the same numbers as one that is not compiled. Run it alone with
``python -m pytest nightly/test_torch_graphs.py -n 2``. MXNet takes most of the time.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multifit.gluon.compat import mx

if find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

import torch
from gluoncv.model_zoo import get_model
from gluonnlp.model import BERTEncoder, BERTModel
from gluonnlp.model.language_model import AWDRNN

from multifit.balance import PCGrad, UPGrad
from multifit.cli.taskfile import TaskFile
from multifit.torch.from_gluon.translate import tensors_of, translate
from multifit.utils.seeding import seed_everything
from nightly.torch_graphs import Traced, assert_graph_agrees, traced_graphs
from tests.torch.runs import BATCHES, assert_equal, estimator_of

ROOT = Path(__file__).parents[1]
TASKS = [
    "classification model=resnet18", "classification model=alexnet", "classification model=vgg",
    "augmentation", "segmentation model=fcn", "detection", "scenes",
]  # fmt: skip
# name: the size of pictures; one net of each family
ZOO = {
    "alexnet": 224, "cifar_resnet20_v1": 32, "cifar_wideresnet16_10": 32, "darknet53": 64,
    "densenet121": 224, "googlenet": 224, "inceptionv3": 299, "mobilenet0.25": 64, "mobilenetv2_0.25": 64,
    "mobilenetv3_small": 64,
    "resnest14": 64, "resnet18_v1b": 64, "resnet18_v2": 64, "resnext50_32x4d": 64, "se_resnext50_32x4d": 64,
    "senet_154": 64, "squeezenet1.0": 224, "vgg11_bn": 64, "xception": 96,
}  # fmt: skip
# Their places of bilinear interpolation are computed in float32; or the rank of a box's score decides whether
# it is kept, and coordinates are large.
LOOSE, OTHERS = 1e-5, {
    "fcn_resnet50_ade": 64, "deeplab_resnet50_ade": 64, "psp_resnet50_ade": 64,
    "simple_pose_resnet18_v1b": 64, "ssd_300_vgg16_atrous_voc": 300,
}  # fmt: skip
# In training on such small pictures, darknet53 turns a difference of 1e-12 in its input into one of 5e-8
GROWING = 1e-6
MODES = pytest.mark.parametrize("training", [False, True], ids=["evaluates", "trains"])


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start every test with the same parameters, whatever ran before it."""
    seed_everything(0)


@pytest.mark.parametrize("case", TASKS)
def test_graphs_of_tasks(case: str) -> None:
    for graph in traced_graphs(*case.split()):
        assert_graph_agrees(graph, LOOSE if "model=fcn" in case else 1e-9)


@MODES
@pytest.mark.parametrize("name", [*ZOO, *OTHERS])
def test_nets_of_the_zoo(name: str, training: bool) -> None:
    size = {**ZOO, **OTHERS}[name]
    options = {} if name in ZOO else {"pretrained_base": False}
    options |= {"crop_size": size, "base_size": size} if name.endswith("_ade") else {}
    net = get_model(name, **options)
    net.initialize(mx.init.Xavier())
    tolerance = LOOSE if name in OTHERS else GROWING if name == "darknet53" and training else 1e-8
    assert_block_agrees(net, {"data": np.random.RandomState(0).rand(2, 3, size, size)}, training, tolerance)


@MODES
def test_yolo(training: bool) -> None:
    """In training on small pictures, differences grow as in darknet53; boxes in pixels are large outputs."""
    net = get_model("yolo3_darknet53_voc", pretrained_base=False)
    net.initialize(mx.init.Xavier())
    random = np.random.RandomState(0)
    sizes = {"data": (2, 3, 64, 64)}
    if training:  # boxes, and the targets of its losses, for the 252 places of pictures of this size
        sizes |= {"boxes": (2, 1, 4), "objectness": (2, 252, 1), "centers": (2, 252, 2)}
        sizes |= {"scales": (2, 252, 2), "weights": (2, 252, 2), "classes": (2, 252, 20)}
    inputs = {name: random.rand(*size) for name, size in sizes.items()}
    assert_block_agrees(net, inputs, training, LOOSE if training else 1e-8)


@MODES
def test_bert(training: bool) -> None:
    encoder = BERTEncoder(num_layers=2, units=32, hidden_size=64, max_length=16, num_heads=4, dropout=0.1)
    net = BERTModel(encoder, 50, token_type_vocab_size=2, units=32, embed_size=32, use_decoder=False)
    net.initialize(mx.init.Normal(0.1))
    random = np.random.RandomState(0)
    inputs = {"words": random.randint(0, 50, (3, 10)) * 1.0, "types": random.randint(0, 2, (3, 10)) * 1.0}
    inputs["length"] = np.array([10.0, 4.0, 7.0])
    # MXNet's attention operators work in float32 only
    assert_block_agrees(net, inputs, training, 1e-4, words=True, dtype="float32")


@MODES
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_a_language_model(mode: str, training: bool) -> None:
    net = AWDRNN(mode, 50, 16, 24, 2, False, 0.1, 0.5, 0.1, 0.1, 0.1)
    net.initialize(mx.init.Normal(0.1))
    words = np.random.RandomState(0).randint(0, 50, (7, 3)) * 1.0
    assert_block_agrees(net, {"words": words}, training, words=True)


@MODES
@pytest.mark.parametrize("model", ["rnn", "transformer"])
def test_halves_of_a_translation_net(model: str, training: bool) -> None:
    """Between its halves the net computes with arrays, so the halves are two graphs."""
    file = TaskFile(ROOT / "tasks" / "translation.py")
    file.set([f"model={model}", "train_count=64", "val_count=8"])
    net = file.module.net()
    net.initialize(mx.init.Normal(0.1))
    batch = next(iter(file.module.bitext().loaders(4)[0]))
    source, target, length, target_length, _ = (slot.as_in_context(mx.cpu()) for slot in batch)
    net(source, target, length, target_length)
    embedded = net.src_embed(source)
    states = net.decoder.init_state_from_encoder(net.encode(source, valid_length=length)[0], length)
    encoder = {"words": embedded, "length": length}
    decoder = {"words": net.tgt_embed(target), "length": target_length}
    decoder |= {f"state{i}": state for i, state in enumerate(states)}
    for half, inputs, call in (
        (net.encoder, encoder, lambda half, words, length: half(words, None, length)[0]),
        (net.decoder, decoder, lambda half, words, length, *states: half(words, list(states), length)[0]),
    ):
        arrays = {name: array.asnumpy().astype("float64") for name, array in inputs.items()}
        assert_block_agrees(half, arrays, training, call=call)


def assert_block_agrees(
    net: Any,
    inputs: dict[str, np.ndarray],
    training: bool,
    tolerance: float = 1e-8,
    call: Any = lambda net, *inputs: net(*inputs),
    words: bool = False,
    dtype: str = "float64",
) -> None:
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
    assert_graph_agrees(Traced(mx.sym.Group(flat(outputs)), inputs, parameters, training), tolerance, dtype)


def _with_an_exact_slope(block: Any) -> None:
    """Set the slope of a LeakyReLU, which MXNet holds in float32, to a number that is exact in float32."""
    if isinstance(block, mx.gluon.nn.LeakyReLU):
        block._alpha = 0.125


def flat(outputs: Any) -> list[Any]:
    """Return the symbols in nested lists."""
    nested = isinstance(outputs, (list, tuple))
    return [each for output in outputs for each in flat(output)] if nested else [outputs]


# ---- compiled ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "balance", [None, PCGrad(on="features"), UPGrad()], ids=["plain", "features", "rows"]
)
def test_a_compiled_step_is_the_step(balance: Any) -> None:
    of_steps, of_values = [], []
    for compiles in (False, True):
        estimator = estimator_of("float64", compile=compiles, balance=balance)
        of_steps.append(dict(estimator.fit(BATCHES, BATCHES, epochs=2, event_handlers=[])))
        of_values.append(estimator.values())
    assert_equal(*of_steps, 1e-10)
    assert_equal(*of_values, 1e-10)


@pytest.mark.parametrize("task", ["digits", "sentiment", "segmentation"])
def test_a_task_is_one_graph_to_torch(task: str) -> None:
    """Nothing, such as reading a number, breaks the graph that is compiled or captured into several."""
    graphs = traced_graphs(task, batches=1)
    assert graphs
    for graph in graphs:
        held = {n: p for n, p in graph.parameters.items() if n in graph.symbol.list_inputs()}
        trained = [n for n, p in held.items() if p.grad_req != "null"] if graph.training else []
        arrays = {name: parameter.data().asnumpy() for name, parameter in held.items()}
        source = graph.symbol.tojson()
        module = translate(source, list(graph.inputs), tensors_of(arrays, trained), graph.training)
        with torch.set_grad_enabled(graph.training):
            found = torch._dynamo.explain(module)(*map(torch.from_numpy, graph.inputs.values()))
        assert found.graph_break_count == 0, found.break_reasons
