#!/bin/bash
# results/more_commands_1xH100/predict_and_measure.sh predict|measure OUT [NAME...]   from the repository's root
# Each command of commands.txt, in the inputs of results/wild (make_inputs.py): OUT/NAME is its run folder.
set -u
verb=$1 out=$(realpath -m "$2"); shift 2
root=$PWD here=$(realpath "$(dirname "$0")") wild=$PWD/outputs/wild each=${EACH:-300}
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME=$wild/hf TOKENIZERS_PARALLELISM=false WANDB_MODE=disabled
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$out/logs"
[ "$verb" = predict ] && options=(--timeout "$each" "hardware=${HARDWARE:-h100_x1}" hardware.gpus=1) || options=()
grep -v '^#' "$here/commands.txt" | while read -r name words; do
    [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
    folder=$wild/work/more_$name
    rm -rf "$folder" "${out:?}/$name"; mkdir -p "$folder"
    ln -s "$wild"/inputs/* "$folder/"; ln -s "$here" "$folder/more"
    begin=$SECONDS
    (cd "$folder" && timeout --kill-after=10 "$each" python3 -m memlab "$verb" --output "$out/$name" \
        "${options[@]}" -- $words) > "$out/logs/$name.log" 2>&1 < /dev/null
    echo "$name,$?,$((SECONDS - begin))" | tee -a "$out/seconds.csv"
    rm -rf "$folder"
done
