#!/bin/bash
# Predict or measure the runs of runs.txt: OUT/NAME is the run folder of each, a measured one with its memory history.
# Usage: results/explain/make.sh predict|measure OUT [GPUS]   from the repository's root; GPUS: only runs on these
# Runs on different GPUs can be measured side by side: one call with GPUS=0 and one with GPUS=1, then one with 0,1.
# Needs outputs/models: python3 tests/scripts/make_model_and_data.py outputs/models --size 1b
# Variables: NAMES (only these runs, separated by spaces), STEPS (4: recorded steps of a command), SECONDS_IN_ALL (540: no
# run begins later), ARCHIVE (a .tgz that is written again after each run), MEMLAB and PYTHON (how they are called).
set -u
mode=$1 out=$(realpath -m "$2") wanted=${3:-}
here=$(dirname "$0") python=${PYTHON:-python3}
memlab=${MEMLAB:-$python -m memlab}
export HF_HUB_OFFLINE=1 HF_HOME=$PWD/outputs/hf TOKENIZERS_PARALLELISM=false
mkdir -p "$out/logs"

words_of() {  # NAME RANKS: the words of a command of results/commands/
    sed -nE "s/^$1 //; T; s/--(num_gpus|nproc_per_node|num_processes) 1/--\1 $2/; p" "$here/../commands/commands.txt"
}

one() {  # NAME RANKS WORDS...
    local name=$1 ranks=$2 folder=$out/$1; shift 2
    local hardware="hardware=h200_x8 hardware.gpus=$ranks"
    case "$mode $1" in
        'predict --') shift; $memlab predict --output "$folder" $hardware -- "$@" ;;
        'measure --') shift; $memlab measure --explain ${STEPS:-4} --output "$folder" --timeout 100 -- "$@" ;;
        predict*) $python launch.py mode=predict hydra.run.dir="$folder" $hardware measure=quick "$@" ;;
        measure*) $python launch.py hydra.run.dir="$folder" $hardware measure=quick measure.snapshot=true "$@" ;;
    esac
}

while read -r name gpus words; do
    case $name in '#'* | '') continue ;; esac
    [[ -z $wanted || $gpus == "$wanted" ]] && [[ -z ${NAMES:-} || " $NAMES " == *" $name "* ]] || continue
    test ! -e "$out/$name/record.json" || continue
    test $SECONDS -lt "${SECONDS_IN_ALL:-540}" || { echo "$name: left out, no time"; continue; }
    ranks=$(tr ',' '\n' <<< "$gpus" | wc -l) begin=$SECONDS
    test "$words" != 'as in commands.txt' || words="-- $(words_of "$name" "$ranks")"
    test "$mode" = predict || export CUDA_VISIBLE_DEVICES=$gpus
    one "$name" "$ranks" $words > "$out/logs/$name.log" 2>&1 < /dev/null
    echo "$name: exit code $?, $((SECONDS - begin)) s, $SECONDS s in all"
    test -z "${ARCHIVE:-}" || tar --create --gzip --file "$ARCHIVE" --directory "$out" .
done < "$here/runs.txt"
