# On a machine with Python 3.11+, pip and make:
#   make demo        run a small study and watch it
#   make test        check and test a change, without the slow tests
#   make test-all    run all tests and check the coverage
#   make search      run the property tests with new random examples
PYTHON ?= python3
BIN := .venv/bin
TORCH ?= torch==2.13.0
# Two more than there are cores: tests on Ray clusters mostly wait.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)

.PHONY: setup demo test test-all search check bench bench-allocation bench-curves bench-early-term bench-fidelity bench-local bench-peers \
	bench-branching bench-deadline bench-planner bench-policies bench-quality bench-ray bench-score-only bench-several bench-stages bench-stores golden pictures stores train-pfn train-planner

setup: .venv/ready

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# For tests and examples only. Not among the dev dependencies, since that would install gigabytes of
# CUDA on other machines.
.venv/torch: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	touch $@

# For tests of the Ray engine and of the Ray Tune integration: a quarter of a gigabyte.
.venv/ray: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[ray,tune]'
	touch $@

# For the tests of scripts that were written for Keras, LightGBM and XGBoost: 15 MB of downloads.
.venv/frameworks: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[frameworks]'
	touch $@

demo: setup
	$(BIN)/paceline demo

check: .venv/torch .venv/ray .venv/frameworks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell src tests docs benchmarks examples training README.md CHANGELOG.md CONTRIBUTING.md

# Without coverage: tracing about doubles the time.
test: check
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS) --dist loadgroup

test-all: export HYPOTHESIS_PROFILE := $(or $(HYPOTHESIS_PROFILE),all)
test-all: check
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(JOBS) --dist loadgroup
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

search: export HYPOTHESIS_PROFILE := $(or $(HYPOTHESIS_PROFILE),search)
search: setup .venv/torch .venv/ray
	$(BIN)/python -m pytest -m hypothesis -n $(JOBS)

bench: setup
	$(BIN)/python -m benchmarks.run

bench-fidelity: setup
	$(BIN)/python -m benchmarks.fidelity

bench-peers: setup
	$(BIN)/python -m benchmarks.peers

bench-early-term: setup
	$(BIN)/python -m benchmarks.early_term --ensemble cifar10_cnn14

bench-allocation: setup
	$(BIN)/python -m benchmarks.allocation

# Half an hour of two cores.
bench-quality: setup
	$(BIN)/python -m benchmarks.quality

bench-branching: setup
	$(BIN)/python -m benchmarks.branching

bench-stages: setup
	$(BIN)/python -m benchmarks.stages
	$(BIN)/python -m benchmarks.trees

bench-deadline: setup
	$(BIN)/python -m benchmarks.deadline

bench-several: setup
	$(BIN)/python -m benchmarks.several

bench-score-only: setup
	$(BIN)/python -m benchmarks.score_only

bench-stores: setup
	$(BIN)/python -m benchmarks.stores

bench-curves: setup
	$(BIN)/python -m benchmarks.curves
	$(BIN)/python -m benchmarks.curves.reference

bench-local: setup
	$(BIN)/python -m benchmarks.peers_local

# A quarter of an hour, most of it Ray Tune's.
bench-ray: .venv/ray
	$(BIN)/python -m benchmarks.ray

# An hour of two cores. Needs the recorded traces.
bench-planner: setup
	$(BIN)/python -m benchmarks.planner

bench-policies: setup
	$(BIN)/python -m benchmarks.policies

# Once for each version of the tables.
stores: setup
	PYTHONPATH=.:tests/support $(BIN)/python tests/support/store_files.py

pictures: setup
	$(BIN)/python -m benchmarks.pictures
	$(BIN)/python -m benchmarks.screens

# Minutes on one GPU, a day on a CPU. Resumes an interrupted training.
train-pfn: .venv/torch
	$(BIN)/python -m training.pfn.train --out build/pfn
	$(BIN)/python -m training.pfn.export build/pfn/checkpoint.pt src/paceline/curves/pfn/pfn.onnx

# A quarter of an hour on a machine with a GPU and 16 cores. Needs the recorded traces.
train-planner: .venv/torch
	$(BIN)/python -m training.planner.workloads --out build/workloads
	$(BIN)/python -m training.planner.train --traces "$(PACELINE_TRACES)" --trained build/workloads --out build/planner
	cp build/planner/all.npz src/paceline/policies/planner/planner.npz

golden: setup
	PACELINE_GOLDEN=write $(BIN)/python -m pytest tests/machine/test_golden_logs.py tests/api/test_mistakes.py tests/cli tests/analysis tests/live
