#!/bin/sh
# The tables beside this file as run folders. Usage: import.sh MEMLAB DIR
set -eu
memlab=$1 output=$2
here=$(dirname "$0")
for table in alone beside_others beside_others_fresh; do
    keys=""
    for key in model zero_stage offload checkpointing allocator attention precision optimizer adapter kernels \
        seq_len.tokens batch.micro batch.accumulation isolation; do keys="$keys $key=$key"; done
    test $table != alone || keys="$keys step_seconds=step_seconds"
    "$memlab" import csv "$here/$table.csv" --output "$output/$table" --set hardware=h200_x1 measure=quick \
        --map $keys peak_reserved_bytes=peak_reserved_gib:GiB
done
