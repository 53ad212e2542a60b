# One command per chore. `make test PYTHON=python3.12` works in a virtual environment of its own, .venv-3.12.
PYTHON ?= python3
VERSION = $(shell "$$(.ci/find-python $(PYTHON) 2>/dev/null)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
VENV := .venv$(if $(filter-out python3,$(PYTHON)),-$(VERSION))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH := .venv-bench
# Horovod is compiled against the mxnet of its environment, and by itself on Python 3.11 only.
# TORCH chooses a build of PyTorch, such as torch==2.13.0; see .ci/install-torch.
DISTRIBUTED := .venv-distributed
TORCHED := .venv-torch
TORCH_ONLY := .venv-torch-only$(if $(filter-out python3,$(PYTHON)),-$(VERSION))
TORCH ?=
# Tests that need no MXNet, for `make torch-only`
OF_HANDLERS := checkpoint defaults early_stopping history metric plots printing state stopping triggers validation
WITHOUT_MXNET := tests/torch/native tests/balance tests/spec tests/cli/test_diagram.py tests/cli/test_page.py \
	tests/cli/test_runs.py tests/cli/test_taskfile.py tests/sampling/test_samplings.py \
	tests/distributed/test_connect.py tests/engines/test_sums.py tests/utils tests/test_checkpoints.py \
	tests/test_layering.py $(OF_HANDLERS:%=tests/handlers/test_%.py)
# The Python of `make gpu`, which has torch
GPU_PYTHON ?= $(or $(wildcard $(TORCHED)/bin/python),python3)

# Tests run in two processes; each of them with one thread.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test lint docs bench nightly distributed torch torch-only gpu gpu-bundle clean

help:
	@echo "make demo    train three tasks on scenes of handwritten digits, into runs/scenes"
	@echo "make test    all tests, with coverage and the ten slowest"
	@echo "make lint    ruff and mypy"
	@echo "make docs    the documentation as a site, in build/site; checks its links"
	@echo "make bench   steps against hand-written loops, Lightning, Keras; into runs/benchmarks"
	@echo "             ONLY=heads measures one table, OMP_NUM_THREADS=2 with two threads"
	@echo "make nightly train every task and check that it reaches its floor; reports in runs/nightly;"
	@echo "             DEVICE=cuda with PyTorch on a GPU, DEVICE=torch with PyTorch on the CPU"
	@echo "make distributed  build Horovod and run the tests that need it or PyTorch; ten minutes the first time"
	@echo "make torch   install PyTorch beside MXNet and run the tests of the engine on PyTorch; TORCH chooses a build"
	@echo "make torch-only   install PyTorch without MXNet and run the tests that need no MXNet; Python 3.10 to 3.13"
	@echo "make gpu     steps and the nightly table with PyTorch on a GPU, into runs/gpu; see nightly/benchmarks/README.md"
	@echo "make gpu-bundle   pack what a machine with PyTorch alone needs for it; SMALL=1 if it has OpenCV and the like"
	@echo "make clean   remove the virtual environments and everything that was generated"
	@echo "PYTHON=python3.12 chooses another Python (3.10 to 3.12; 3.13 without MXNet)"

# One process alone is faster with a thread for each core.
demo: export OMP_NUM_THREADS = 2
demo: $(STAMP)
	@echo "One net learns to find, segment and count the digits in generated scenes: 6 epochs of 1260 scenes."
	@echo "This takes 3 minutes on two slow cores, half of that on fast ones. Pictures: runs/scenes/*.png"
	$(BIN)/multifit train tasks/scenes.py --output runs/scenes

# From Python 3.12 on, coverage need not trace every line that runs.
test: export COVERAGE_CORE = $(if $(filter 3.12 3.13,$(VERSION)),sysmon,ctrace)
test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term-missing:skip-covered --durations=10

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open build/site/index.html"

# Run it while nothing else runs. nightly/benchmarks/README.md says what is measured, and how.
bench: $(STAMP) $(if $(filter others balance,$(or $(ONLY),others)),$(BENCH)/.installed)
bench: $(if $(filter distributed,$(ONLY)),$(DISTRIBUTED)/.installed) $(if $(filter engines,$(ONLY)),$(TORCHED)/.installed)
	$(if $(filter distributed,$(ONLY)),$(DISTRIBUTED)/bin,$(if $(filter engines,$(ONLY)),$(TORCHED)/bin,$(BIN)))/python -m nightly.benchmarks $(ONLY) $(if $(EPOCHS),--epochs $(EPOCHS))

# DEVICE=cuda and DEVICE=torch train with PyTorch, on a GPU and on the CPU.
ON_TORCH = $(filter cuda torch,$(DEVICE))
nightly: $(if $(ON_TORCH),$(TORCHED)/.installed,$(STAMP))
	$(if $(ON_TORCH),$(TORCHED)/bin/python -m pytest nightly/test_quality.py,$(BIN)/python -m pytest nightly) -n 2 \
		--device $(or $(DEVICE),cpu)

distributed: $(DISTRIBUTED)/.installed
	$(DISTRIBUTED)/bin/python -m pytest tests/distributed tests/torch/test_world.py nightly/test_distributed*.py

torch: $(TORCHED)/.installed
	$(TORCHED)/bin/python -m pytest tests/torch tests/nightly/test_engines.py -n 2 --cov=multifit/torch --cov-config=tests/torch/coverage.ini

torch-only: $(TORCH_ONLY)/.installed
	! $(TORCH_ONLY)/bin/python -c "import mxnet" 2>/dev/null
	$(TORCH_ONLY)/bin/python -m pytest $(WITHOUT_MXNET)

gpu:
	.ci/gpu $(GPU_PYTHON) $(ONLY) --device $(or $(DEVICE),cuda:0) $(if $(CASE),--case $(CASE)) \
		$(if $(EPOCHS),--epochs $(EPOCHS)) $(if $(ROWS),--rows "$(ROWS)") $(if $(JOBS),--jobs $(JOBS)) \
		$(if $(EAGER),--eager)

gpu-bundle: $(STAMP)
	.ci/gpu-bundle $(BIN)/python build/gpu-bundle.tar.xz

# Recreated when its requirements change. Everything is installed in one call, so that the pins hold for all of it.
$(STAMP): setup.py requirements/constraints.txt
	@python="$$(.ci/find-python $(PYTHON))" && rm -rf $(VENV) && "$$python" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[all,dev]" -c requirements/constraints.txt
	@touch $@

$(VENV)/.docs: $(STAMP) requirements/docs.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/docs.txt -c requirements/constraints.txt
	@touch $@

# PyTorch, Lightning, Keras and JAX need another numpy than mxnet does.
$(BENCH)/.installed: nightly/benchmarks/requirements.txt
	@python="$$(.ci/find-python $(PYTHON))" && rm -rf $(BENCH) && "$$python" -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# pip would build Horovod without seeing mxnet: so without isolation, when mxnet is there.
$(DISTRIBUTED)/.installed: setup.py requirements/constraints.txt
	@python="$$(.ci/find-python python3.11)" && rm -rf $(DISTRIBUTED) && "$$python" -m venv $(DISTRIBUTED)
	$(DISTRIBUTED)/bin/python -m pip install --quiet --disable-pip-version-check \
		-e ".[all,dev]" "setuptools<70" wheel cffi cloudpickle pyyaml -c requirements/constraints.txt
	PATH="$(CURDIR)/$(DISTRIBUTED)/bin:$$PATH" HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
		HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 $(DISTRIBUTED)/bin/python -m pip install \
		--quiet --disable-pip-version-check --no-build-isolation horovod==0.28.1
	.ci/install-torch $(DISTRIBUTED)/bin/python "$(TORCH)"
	@touch $@

$(TORCHED)/.installed: setup.py requirements/constraints.txt
	@python="$$(.ci/find-python $(PYTHON))" && rm -rf $(TORCHED) && "$$python" -m venv $(TORCHED)
	$(TORCHED)/bin/python -m pip install --quiet --disable-pip-version-check -e ".[all,dev]" \
		datasets wandb comet_ml -c requirements/constraints.txt
	.ci/install-torch $(TORCHED)/bin/python "$(TORCH)"
	@touch $@

# Without constraints, whose numpy is one for mxnet.
$(TORCH_ONLY)/.installed: setup.py .ci/install-torch
	@python="$$(.ci/find-python $(PYTHON))" && rm -rf $(TORCH_ONLY) && "$$python" -m venv $(TORCH_ONLY)
	.ci/install-torch $(TORCH_ONLY)/bin/python "$(TORCH)" /dev/null
	$(TORCH_ONLY)/bin/python -m pip install --quiet --disable-pip-version-check -e ".[torch,plot]" pytest scikit-learn hypothesis
	@touch $@

clean:
	rm -rf .venv .venv-* runs build *.egg-info .coverage* htmlcov .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
