#!/bin/bash
# Predict or measure the runs of runs.txt: OUT/NAME is the run folder of each, a measured one with a profile of its steps.
# Usage: results/profile/make.sh predict|measure OUT [GPUS]   from the repository's root; GPUS: only runs on these
# Needs outputs/models: python3 tests/scripts/make_model_and_data.py outputs/models --size 1b
# Variables: NAMES (only these runs, separated by spaces), MEMLAB and PYTHON (how they are called).
# Afterwards: python results/profile/by_kind.py MEASURED PREDICTED > results/profile/by_kind.csv
set -u
mode=$1 out=$(realpath -m "$2") wanted=${3:-}
here=$(dirname "$0") python=${PYTHON:-python3}
memlab=${MEMLAB:-$python -m memlab}
export HF_HUB_OFFLINE=1 HF_HOME=$PWD/outputs/hf TOKENIZERS_PARALLELISM=false
mkdir -p "$out/logs"

one() {  # NAME RANKS WORDS...
    local name=$1 ranks=$2 folder=$out/$1; shift 2
    local hardware="hardware=h200_x8 hardware.gpus=$ranks"
    case "$mode $1" in
        'predict --') shift; $memlab predict --output "$folder" $hardware -- "$@" ;;
        'measure --') shift; $memlab measure --profile --output "$folder" --timeout 100 -- "$@" ;;
        predict*) $python launch.py mode=predict hydra.run.dir="$folder" $hardware measure=quick "$@" ;;
        measure*) $python launch.py hydra.run.dir="$folder" $hardware measure=quick measure.profile=true "$@" ;;
    esac
}

while read -r name gpus words; do
    case $name in '#'* | '') continue ;; esac
    [[ -z $wanted || $gpus == "$wanted" ]] && [[ -z ${NAMES:-} || " $NAMES " == *" $name "* ]] || continue
    test ! -e "$out/$name/record.json" || continue
    begin=$SECONDS
    test "$mode" = predict || export CUDA_VISIBLE_DEVICES=$gpus
    one "$name" "$(tr ',' '\n' <<< "$gpus" | wc -l)" $words > "$out/logs/$name.log" 2>&1 < /dev/null
    echo "$name: exit code $?, $((SECONDS - begin)) s, $SECONDS s in all"
done < "$here/runs.txt"
