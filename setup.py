"""Install multifit from a checkout: ``pip install ".[torch]"`` for PyTorch, ``".[cpu]"`` for MXNet."""

from pathlib import Path

from setuptools import find_packages, setup

# mxnet 1.9.1 imports by itself with numpy below 1.24 only, which Python 3.12 does not have; there setuptools
# has the distutils that it imports. With a newer numpy, multifit is imported first: multifit/gluon/compat.py.
FOR_MXNET = [
    "numpy>=1.22,<1.24; python_version < '3.12'",
    "numpy>=1.26,<2; python_version >= '3.12'",
    "setuptools>=61; python_version >= '3.12'",
]
CPU = ["mxnet==1.9.1", *FOR_MXNET]
CV = ["gluoncv==0.10.5.post0", "opencv-python<4.12", "pandas<3; python_version < '3.12'"]
NLP = ["gluonnlp==0.10.0", "sacrebleu>=2.3"]
PLOT = ["matplotlib>=3.6"]
TENSORBOARD = ["tensorboardX>=2.6"]
HOROVOD = ["horovod==0.28.1"]  # is compiled against the mxnet that is there: docs/distributed.md
TORCH = ["torch>=2.5", "torchmetrics>=1.4"]  # without mxnet, on any numpy
# for the files in tasks/; those on texts also need NLP, which compiles a part of gluonnlp
TASKS = [*CV, *PLOT, "scikit-learn>=1.3"]
# mxnet's converter needs onnx.mapping, which onnx 1.19 took away
ONNX = ["onnx>=1.14,<1.19", "onnxruntime>=1.16"]
TEST = [
    *ONNX,
    "pytest>=8",
    "pytest-cov>=5",
    "pytest-xdist>=3",
    "scikit-learn>=1.6",
    "pandas>=1.5",
    "hypothesis>=6.100",
    "mlflow-skinny>=3.0",
    "optuna>=4.0",
]
DEV = [*TEST, "ruff>=0.9", "mypy>=1.10"]

setup(
    name="gluon-multifit",  # another package on PyPI is called multifit; the module is multifit all the same
    version="0.1.0",
    description="One loop for nets with several outputs, losses, metrics and trainers, bound by name",
    long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["multifit", "multifit.*"]),
    package_data={
        "multifit": ["__init__.pyi", "py.typed", "cli/new_task*.txt"],
        "multifit.cli": ["templates/*"],
    },
    # mxnet is an extra: its builds for CPU and GPU have different names. The pins of numpy belong to it.
    install_requires=[
        "numpy>=1.22",
        "psutil>=5.9",
        "filelock>=3.12",
        "tqdm>=4.63",
        "tabulate>=0.10",
        "jinja2>=3.1",
    ],
    extras_require={
        "cpu": CPU,
        "cu112": ["mxnet-cu112==1.9.1", *FOR_MXNET],
        "cu117": ["mxnet-cu117==1.9.1", *FOR_MXNET],
        "cv": CV,
        "nlp": NLP,
        "plot": PLOT,
        "onnx": ONNX,
        "tensorboard": TENSORBOARD,
        "horovod": HOROVOD,
        "torch": TORCH,
        "tasks": TASKS,
        "all": CPU + NLP + TASKS + TENSORBOARD,
        "dev": DEV,
    },
    entry_points={"console_scripts": ["multifit = multifit.__main__:run"]},
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3",
        *[f"Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)],
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
