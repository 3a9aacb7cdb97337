#!/bin/bash
# Measure the commands of commands.csv: results/wild/measure.sh OUT GPUS [NAME...]   from the repository's root
# GPUS 1: the one-GPU commands, three side by side; 2: the two-GPU commands, one after another. OUT/wild_GPUS.tgz has
# the run folders and logs, and is written again after every command. Before: fetch.sh and make_inputs.py; and the
# wheels of requirements.txt on PYTHONPATH, their programs (litgpt, deepspeed) on PATH.
# Variables: SECONDS_IN_ALL (560): no command begins after that less 60; EACH (90): seconds of a command at most;
# HALF (A, B or C): that half alone; MEMLAB (how memlab is called).
set -u
out=$(realpath -m "$1") gpus=$2; shift 2
root=$PWD here=$(realpath "$(dirname "$0")") wild=$PWD/outputs/wild
runs=$wild/runs_$gpus
limit=${SECONDS_IN_ALL:-560} each=${EACH:-90} memlab=${MEMLAB:-python3 -m memlab}
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME=$wild/hf TOKENIZERS_PARALLELISM=false WANDB_MODE=disabled
export TORCH_EXTENSIONS_DIR=$wild/extensions
scripts=$wild/scripts
export PYTHONPATH=$root:$scripts/minGPT:$scripts/cleanrl:$scripts/open_clip/src${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$out" "$runs/logs"

measure() {  # NAME STEPS WORDS: in a folder of links to the inputs, so that outputs go with it
    local name=$1 steps=$2 words=$3 begin=$SECONDS folder=$wild/work/$1
    rm -rf "$folder"; mkdir -p "$folder"
    ln -s "$wild"/inputs/* "$scripts" "$scripts/nanoGPT/configurator.py" "$folder/"
    eval "words=($words)"
    (
        cd "$folder" || exit 1
        timeout --kill-after=10 $((each + 20)) $memlab measure --output "$runs/$name" --timeout "$each" \
            ${steps:+--steps "$steps"} -- "${words[@]}"
    ) > "$runs/logs/$name.log" 2>&1 < /dev/null
    echo "$name: exit code $?, $((SECONDS - begin)) s, $SECONDS s in all"
    rm -rf "$folder"
    (
        flock 9
        tar --create --gzip --file "$out/wild_$gpus.tgz.part" --directory "$runs" . \
            && mv "$out/wild_$gpus.tgz.part" "$out/wild_$gpus.tgz"
    ) 9> "$wild/lock_$gpus"
}

list() {  # NAME, STEPS and WORDS, by tabs
    python3 - "$here/commands.csv" "$gpus" "${HALF:-ABC}" "$@" <<'P'
import csv, sys
file, gpus, half, *names = sys.argv[1:]
for row in csv.DictReader(open(file)):
    if row["gpus"] == gpus and row["half"] in half and (not names or row["name"] in names):
        print(row["name"], row["steps"] or "-", row["words"], sep="\t")
P
}

side=3
if test "$gpus" = 1; then export CUDA_VISIBLE_DEVICES=0; else side=1; fi  # a script may take all GPUs that it sees
while IFS=$'\t' read -r name steps words <&3; do
    while test "$(jobs -rp | wc -l)" -ge $side; do wait -n; done
    test $((SECONDS + 60)) -lt "$limit" || { echo "$name: left out, no time"; continue; }
    measure "$name" "${steps#-}" "$words" &
done 3< <(list "$@")
wait
