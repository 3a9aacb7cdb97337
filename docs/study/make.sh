#!/bin/sh
# make study: from the study's CSV files (gpjt/fine-tune-2024-04) to the page, the figures and the findings beside this file.
# Usage: make.sh MEMLAB STUDY RUNS
set -eu
memlab=$1 study=$2 runs=$3
here=$(dirname "$0")
test -d "$study" || { echo "$study: not there. Give the folder of the study's CSV files: make study STUDY=DIR"; exit 1; }

for file in "$study"/*.csv; do
    name=$(basename "$file" .csv)
    test -d "$runs/${name%%-*}/$name" || "$memlab" import gpjt "$file" --output "$runs/${name%%-*}/$name"
done
large=$runs/8b small=$runs/0.5b

"$memlab" report "$large" --title "Llama-3-8B on 8 x A100-80GB: the public study" --output "$here/report.html"
"$memlab" figures "$large" --output "$here"
"$memlab" figures "$large" --output "$here" --slices \
    zero_stage=zero3,allocator=expandable,checkpointing=none,batch.micro=1 \
    offload=optimizer,allocator=expandable,batch.micro=1
"$memlab" figures "$small" --output "$here/qwen15_05b" --kind memory_over_seq_len fit

{
    echo "# Expandable segments, ZeRO-3, batch 1"
    "$memlab" diff --all --by allocator "$large" --where zero_stage=zero3 checkpointing=none batch.micro=1
    echo; echo "# ZeRO-3 against ZeRO-2 with offload and checkpointing"
    "$memlab" diff "$large/8b-zero3-seq-expandable" "$large/8b-zero2-offload-ckpt-seq-expandable" | head -n 12
    echo; echo "# ZeRO-3, checkpointing, expandable segments: from batch 13 to 14"
    "$memlab" diff "$large"/8b-zero3-ckpt-batch-expandable/*-b13-* "$large"/8b-zero3-ckpt-batch-expandable/*-b14-*
    echo; echo "# The small model: flat, then linear"
    "$memlab" fit "$small" --figure peak_active_bytes --gpu-memory 24
    echo; echo "# Two epochs of 9,846 samples of 2,048 tokens"
    "$memlab" advise "$large" --samples 9846 --epochs 2 --seq-len 2048
} > "$here/findings.txt"
