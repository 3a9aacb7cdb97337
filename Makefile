# make demo: set up and measure one experiment on this machine.  make test: set up and run the tests.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin

.PHONY: help setup demo test test-rest test-short fuzz cluster faults lint oldest optuna hydra-next architecture study accuracy same protections families unanswered calibration outside results-report clean

help:            ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

setup: $(VENV)/.ready  ## a virtual environment with the exact versions of constraints.txt

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup      ## one measured experiment: the GPUs, or two CPU ranks where there is none
	$(BIN)/python launch.py model=tiny name=demo force=true

PYTEST = $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 10 --durations-min 20

test: setup      ## all short tests and those long ones that are marked core: at most 10 minutes on two cores
	$(PYTEST) -m "not long or core"

test-rest: setup ## the long tests that make test leaves out. CI runs both
	$(PYTEST) -m "long and not core"

test-short: setup  ## the short tests alone. CI runs them with Debian's Python
	$(PYTEST) -m "not long"

fuzz: setup      ## 1,000 mutated records, traces, rows and histories x the commands that read them (docs/reliability.md)
	MEMLAB_MUTATIONS=$(or $(MEMLAB_MUTATIONS),500) $(BIN)/python -m pytest -n 2 tests/hostile/test_records.py

cluster: setup   ## the tests of Slurm and of several nodes, which start daemons of their own (docs/cluster.md)
	$(BIN)/python -m pytest tests/cluster

TRIES ?= 100

faults: setup    ## a sweep killed at TRIES random moments and resumed: docs/reliability.md (goes on where it was; 1 hour)
	PYTHONPATH=tests/cpu $(BIN)/python tests/hostile/kills.py --tries $(TRIES)

lint: setup      ## style and types
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 --package memlab.meters  # the ranks of commands have interpreters of their own

OLDEST_PYTHON ?= python3.10
OLDEST        ?= outputs/oldest

oldest: setup    ## the meters of commands with Python 3.10, torch 2.4 and transformers 4.45, in an environment of 5 GB
	$(OLDEST_PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --requirement tests/meters/oldest.txt
	MEMLAB_TEST_PYTHON=$$PWD/$(OLDEST)/bin/python $(BIN)/python -m pytest tests/meters/test_plain_loop.py \
		tests/meters/test_compile.py tests/meters/test_oldest_versions.py

define beside  # an environment $(1) with the packages $(2) before those of memlab's own environment
$(PYTHON) -m venv $(1)
packages=$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])') && \
	echo "import site; site.addsitedir('$$packages')" > $$($(1)/bin/python -c 'import site; print(site.getsitepackages()[0])')/memlab.pth
$(1)/bin/python -m pip install --quiet $(2)
endef

OPTUNA ?= outputs/optuna

$(OPTUNA)/.ready: $(VENV)/.ready
	$(call beside,$(OPTUNA),--constraint constraints.txt hydra-optuna-sweeper==1.3.0)
	touch $@

optuna: setup $(OPTUNA)/.ready  ## Optuna's sweeper, in an environment of its own beside memlab's: 20 trials against the whole grid
	MEMLAB_OPTUNA_PYTHON=$$PWD/$(OPTUNA)/bin/python $(BIN)/python -m pytest tests/unit/cli/test_other_sweepers.py

HYDRA_NEXT ?= outputs/hydra_next

$(HYDRA_NEXT)/.ready: $(VENV)/.ready
	$(call beside,$(HYDRA_NEXT),hydra-core==1.4.0rc3)
	touch $@

# Left out: two tests of all that is printed, where 1.4 adds its own warnings, and one of values after a study (docs/sweeps.md).
hydra-next: setup $(HYDRA_NEXT)/.ready  ## Hydra's next version, in an environment of its own beside memlab's
	$(HYDRA_NEXT)/bin/python -m pytest tests/unit/cli -m "not long" -k "not the_script_itself_is_one_line and \
		not neither_torch_nor_what_runs and not a_study_is_a_sweep_without_a_word_of_hydras"
	$(HYDRA_NEXT)/bin/python launch.py -m hardware=cpu model=tiny mode=predict offload=param seed=1,2 name=with_hydra_next

architecture: setup  ## the picture of the imports and the list of modules, from the code
	PYTHONPATH=tests $(BIN)/python docs/architecture/make.py

STUDY ?= ../shared/reference/gpjt
RUNS   = outputs/study

study: setup     ## docs/study: the page and figures of the public study, where its data is (STUDY=folder of the CSV files)
	sh docs/study/make.sh $(BIN)/memlab $(STUDY) $(RUNS)

MEASURED ?= outputs/measured_versions

$(MEASURED)/.ready: results/commands/requirements.txt
	$(PYTHON) -m venv $(MEASURED)
	$(MEASURED)/bin/python -m pip install --quiet --requirement $<
	touch $@

# Commands run in an environment with the versions that measured them, memlab's own points in memlab's.
accuracy: setup $(MEASURED)/.ready  ## docs/accuracy.md: every record of results/ predicted; with the study's points where make study was run
	$(MEASURED)/bin/python tests/scripts/make_model_and_data.py outputs/models --size 1b --without-weights
	PATH="$(abspath $(MEASURED)/bin):$$PATH" $(BIN)/python results/commands/checkpoint.py
	PATH="$(abspath $(MEASURED)/bin):$$PATH" $(BIN)/python -m tools.accuracy results --note results/SEEN.md --section results/wild/ACCURACY.md --output docs --ratios memlab/prediction/memory/ratios.json --records outputs/accuracy \
		$(if $(wildcard $(RUNS)),--imported $(RUNS))

POINTS ?=
SEED   ?= $(shell git rev-parse --short HEAD 2>/dev/null || echo 0)
BEFORE ?= outputs/accuracy

# All of results/ takes hours; POINTS=40 draws a sample without commands, for every day.
same: setup $(MEASURED)/.ready  ## predictions compared, bit for bit, with those of BEFORE: make accuracy with the code before a change
	PATH="$(abspath $(MEASURED)/bin):$$PATH" PYTHONPATH=. $(BIN)/python tests/shadow/same_predictions.py results $(BEFORE) \
		$(if $(POINTS),--points $(POINTS)) --seed $(SEED)

protections: setup $(MEASURED)/.ready  ## the measured commands, predicted with each protection of the sandbox, compared to the byte
	$(MEASURED)/bin/python tests/scripts/make_model_and_data.py outputs/models --size 1b --without-weights
	PATH="$(abspath $(MEASURED)/bin):$$PATH" $(BIN)/python results/commands/checkpoint.py
	PATH="$(abspath $(MEASURED)/bin):$$PATH" $(BIN)/python -m tools.protections $(wildcard results/*commands_*)

families: setup  ## docs/families.md: a small model of every family that transformers knows, predicted
	$(BIN)/python -m tools.families --output docs/families.md

unanswered: setup  ## docs/unanswered.md: what of the installed torch ends a prediction
	$(BIN)/python -m tools.unanswered --output docs/unanswered.md

DRAWN = llama3_8b_zero3_21_lengths_4xH200 llama3_8b_zero3_fresh_4xH200 qwen15_05b_1xH200 tinyllama_1b_1xH200

results-report: setup  ## docs/results: the page of results/, and figures of the sweeps over lengths and batches
	$(BIN)/memlab report $(wildcard results/*xH200) --title "memlab's own measurements" --output docs/results/report.html
	$(BIN)/memlab figures $(addprefix results/,$(DRAWN)) --output docs/results
	$(BIN)/memlab figures results/commands_2xH200 --output docs/results --kind phases

# Left to judge step times by: two_and_four_gpus_4xH200, offload_unseen_4xH200 and unseen_families_4xH200.
FITTED = adapters_and_kernels_1xH200 capped_1xH200 four_gpus_4xH200 llama3_8b_zero3_21_lengths_4xH200 \
	llama3_8b_zero3_fresh_4xH200 offload_1xH200 offload_4xH200 one_gpu_grid_1xH200 qwen15_05b_1xH200 tinyllama_1b_1xH200

calibration: setup  ## memlab/prediction/time/calibration.json, the step time's costs, from the measurements in results/
	$(BIN)/python -m tools.calibration $(addprefix results/,$(FITTED))

# Versions: those of results/explain/records.tgz.
outside: setup   ## memlab/simulator/outside/sizes.json, sizes outside torch's allocator, from the readings in results/explain
	$(BIN)/python -m tools.outside_sizes results/explain/readings.csv --gpu "NVIDIA H200" \
		--versions "driver 580.159.04, torch 2.11.0+cu130, NCCL 2.28.9 with NCCL_NVLS_ENABLE=0"

clean:           ## remove the environment
	rm -rf $(VENV)
