#!/bin/sh
# Train three steps with Axolotl and with LLaMA-Factory (two ranks), each by its own command line in its own environment.
# Usage: run.sh ENVIRONMENTS [MEASURE WORDS...]
# ENVIRONMENTS: the folder that make_environments.sh made. Words after it stand before each command, where {tool} is the
# tool's name: run.sh envs memlab measure --output 'runs/{tool}' --
# The working folder gets models/ (with the data), the YAML files and output/.
set -eu
environments=$(realpath "$1"); shift
here=$(dirname "$(realpath "$0")")
cp "$here"/*.yaml .
test -d models || "${PYTHON:-python3}" "$here/../make_model_and_data.py" models --size tiny
cp "$here/dataset_info.json" models/chat/
export HF_HUB_OFFLINE=1 AXOLOTL_DO_NOT_TRACK=1 OMP_NUM_THREADS=1

train() {
    tool=$1; shift
    before=$(printf '%s\n' $words | sed "s/{tool}/$tool/")
    echo "$tool: $*"
    PATH=$environments/$tool/bin:$PATH $before "$@"
}

words=$*
train axolotl axolotl train axolotl.yaml --launcher python
export FORCE_TORCHRUN=1 NPROC_PER_NODE=2
train llamafactory llamafactory-cli train llamafactory.yaml
