#!/bin/bash
# Predict the commands of commands.csv without a GPU: results/wild/predict.sh OUT [NAME...]   from the repository's root
# One after another, in the environment of measure.sh (its packages, here without a GPU). OUT/NAME is the run folder,
# OUT/logs/NAME.log what memlab printed, and OUT/seconds.csv how long it took.
# Variables: HALF (A, B or C): that half alone; HARDWARE (h100_x1); EACH (300): seconds of a command at most; MEMLAB.
set -u
out=$(realpath -m "$1"); shift
root=$PWD here=$(realpath "$(dirname "$0")") wild=$PWD/outputs/wild
each=${EACH:-300} memlab=${MEMLAB:-python3 -m memlab}
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME=$wild/hf TOKENIZERS_PARALLELISM=false WANDB_MODE=disabled
scripts=$wild/scripts
export PYTHONPATH=$root:$scripts/minGPT:$scripts/cleanrl:$scripts/open_clip/src${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$out/logs"
while IFS=$'\t' read -r name gpus steps words <&3; do
    folder=$wild/work/$name
    rm -rf "$folder" "${out:?}/$name"; mkdir -p "$folder"
    ln -s "$wild"/inputs/* "$scripts" "$scripts/nanoGPT/configurator.py" "$folder/"
    eval "words=($words)"
    steps=${steps#-} begin=$SECONDS
    (
        cd "$folder" || exit 1
        timeout --kill-after=10 $((each + 20)) $memlab predict --output "$out/$name" --timeout "$each" \
            ${steps:+--steps "$steps"} "hardware=${HARDWARE:-h100_x1}" "hardware.gpus=$gpus" -- "${words[@]}"
    ) > "$out/logs/$name.log" 2>&1 < /dev/null
    echo "$name,$?,$((SECONDS - begin))" | tee -a "$out/seconds.csv"
    rm -rf "$folder"
done 3< <(python3 - "$here/commands.csv" "${HALF:-ABC}" "$@" <<'P'
import csv, sys
file, half, *names = sys.argv[1:]
for row in csv.DictReader(open(file)):
    if row["half"] in half and (not names or row["name"] in names):
        print(row["name"], row["gpus"], row["steps"] or "-", row["words"], sep="\t")
P
)
