# `make` lists what there is. Everything runs in .venv, which the first target makes and later ones reuse.
# PYTHON     which interpreter makes .venv (3.11 or newer)
# PIP_EXTRA  more arguments for pip, e.g. an index with CPU builds of torch; PyPI's Linux build is several GB
# PY         an interpreter that has everything already; skips .venv
PYTHON ?= python3
PIP_EXTRA ?=
PY ?= .venv/bin/python
READY := $(if $(filter .venv/bin/python,$(PY)),.venv/.ready)

.DEFAULT_GOAL := help
.PHONY: help demo test test-vllm lint format docs test-gpu memcheck bench-gpu bench-language protocol bench-offload clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(READY) ## make a small trace, replay it with four policies, and check every loaded byte
	@$(PY) examples/demo.py

test: $(READY) ## run the tests; with a GPU, also those that need one
	$(PY) -m pytest -q -n auto --maxprocesses 8
	@if $(PY) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then $(MAKE) --no-print-directory test-gpu; fi

# vLLM pins its own torch, so it has an environment of its own: 3.5 GB, two minutes, on any machine. vLLM's wheel asks
# for CUDA's libraries; without them its scheduler runs, which is what these tests drive.
VLLM_PY ?= .vllm/bin/python
test-vllm: $(if $(filter .vllm/bin/python,$(VLLM_PY)),.vllm/.ready) ## run the tests inside vLLM, in .vllm
	PYTHONPATH=. VLLM_LOGGING_LEVEL=ERROR $(VLLM_PY) -m pytest -q -p no:cacheprovider -o filterwarnings=default \
	  --show-capture=no tests/vllm

lint: $(READY) ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(READY) ## let ruff format and sort
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

docs: $(READY) ## write what is generated: the language's reference, the TextMate grammar
	$(PY) docs/write_generated.py

test-gpu: $(READY) ## run the tests that need a CUDA device (a process of their own: they compile the kernels)
	$(PY) -m pytest -q -m gpu

# Without torch's caching every tensor is an allocation of its own, so that a write beside it is seen. Calls that fail are
# tested on purpose, and not reported.
memcheck: $(READY) ## run the GPU tests of kernels and movers under compute-sanitizer, which comes with the CUDA toolkit
	PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 \
	  $(PY) -m pytest -q -m gpu tests/move

bench-gpu: $(READY) ## measure on this GPU and write benchmarks/results/
	$(PY) -m benchmarks.bench_decide
	$(PY) -m benchmarks.bench_direct
	$(PY) -m benchmarks.bench_gpu

bench-language: $(READY) ## measure the policy language (import, check, proofs) and write benchmarks/results/
	$(PY) -m benchmarks.bench_language

RULES ?= 100000
SEED ?= 0
protocol: $(READY) ## run the offload protocol's state machine: RULES=100000 rules from SEED=0 on
	$(PY) -m kvmove.testing.protocol_run --rules $(RULES) --seed $(SEED)

bench-offload: $(READY) ## measure the offload scheduler and replay a made-up trace through it
	$(PY) -m benchmarks.bench_offload --figure docs/offload-step-cost.svg
	$(PY) -m benchmarks.bench_offload_replay --output benchmarks/results/offload-replay-made-up.json

clean: ## remove .venv and caches
	rm -rf .venv .vllm .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info

.vllm/.ready: tests/vllm/requirements.txt
	@$(PYTHON) -m venv .vllm
	@echo "installing vLLM into .vllm"
	@.vllm/bin/python -m pip install -q --disable-pip-version-check $(PIP_EXTRA) torch==2.13.0
	@.vllm/bin/python -m pip install -q --disable-pip-version-check --no-deps -r tests/vllm/requirements.txt
	@touch $@

# Touched last, so that an interrupted installation is done again.
.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "kvmove needs Python 3.11 or newer as $(PYTHON); install it, or name one: make PYTHON=python3.12 ..."; exit 1; }
	@test -x .venv/bin/pip || $(PYTHON) -m venv .venv 2>/dev/null || { rm -rf .venv; \
	  $(PYTHON) -m venv --without-pip .venv && $(PYTHON) -m pip --python .venv/bin/python install -q pip; } || \
	  { echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "installing into .venv (torch is the largest part; see PIP_EXTRA in the Makefile)"
	@.venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt $(PIP_EXTRA) -e '.[dev]'
	@touch $@
