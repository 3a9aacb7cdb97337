#!/bin/bash
# Measure the commands of a list one after another: OUT/NAME is the run folder of each, OUT/own_counters/NAME what
# torch counted in the same processes, read without memlab, and OUT/own_counters.csv compares the two.
# Usage: results/commands/make.sh OUT [NAME...]     from the repository's root; without names: all, as long as time lasts
# Variables: LIST (commands.txt beside this file), GPUS (1: ranks of the commands that have a launcher), SIZE (1b; tiny:
# the same commands with small models, also on CPUs), SECONDS_IN_ALL (540), ARCHIVE (a .tgz that is written again after
# every command), MEMLAB (how memlab is called).
set -u
out=$(realpath -m "$1"); shift
here=$(dirname "$0")
size=${SIZE:-1b} memlab=${MEMLAB:-python3 -m memlab}
limit=${SECONDS_IN_ALL:-540} each=80
scratch=outputs
export HF_HUB_OFFLINE=1 HF_HOME=$PWD/$scratch/hf TOKENIZERS_PARALLELISM=false
export PYTHONPATH=$PWD/tests/scripts/own_counters${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$out/own_counters" "$out/logs"

on_gpu() { python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; }

smaller() {  # the same words with tiny shapes
    sed -E 's/--hidden [0-9]+/--hidden 64/; s/--layers [0-9]+/--layers 2/; s/--heads [0-9]+/--heads 4/
            s/--vocab [0-9]+/--vocab 1000/; s/--(max_)?length [0-9]+/--\1length 64/'
}

on_gpus() { sed -E "s/--(num_gpus|nproc_per_node|num_processes) 1/--\1 ${GPUS:-1}/"; }

on_cpus() { sed 's/--bf16 true/& --use_cpu true/'; }

end_all_of() {  # processes of a command that outlived it, known by the folder in their environment
    for process in $(grep -lsz "^OWN_COUNTERS=$1\$" /proc/[0-9]*/environ); do
        kill -9 "$(echo "$process" | cut -d/ -f3)" 2> /dev/null
    done
}

measure() {  # NAME WORDS...
    local name=$1 begin=$SECONDS; shift
    export OWN_COUNTERS=$out/own_counters/$name
    mkdir -p "$OWN_COUNTERS"
    timeout --kill-after=10 $((each + 15)) $memlab measure --output "$out/$name" --timeout $each -- "$@" > "$out/logs/$name.log" 2>&1 < /dev/null
    echo "$name: exit code $?, $((SECONDS - begin)) s, $SECONDS s in all"
    end_all_of "$OWN_COUNTERS"
    python3 "$here/compare.py" "$out" > "$out/own_counters.csv"
    test -z "${ARCHIVE:-}" || tar --create --gzip --file "$ARCHIVE" --directory "$out" .
}

rm -rf $scratch/models $scratch/out
python3 tests/scripts/make_model_and_data.py $scratch/models --size "$size" > "$out/logs/models.log" 2>&1 \
    || { tail -n 5 "$out/logs/models.log"; exit 1; }
change=on_gpus
test "$size" = 1b || change="$change | smaller"
on_gpu || change="$change | on_cpus"
wanted=" $* "
while read -r name words; do
    case $name in '#'* | '') continue ;; esac
    test $# -eq 0 || [[ $wanted == *" $name "* ]] || continue
    test $((SECONDS + 30)) -lt "$limit" || { echo "$name: left out, no time"; continue; }
    measure "$name" $(echo "$words" | eval "$change")
    [[ $name == trainer_zero3_save ]] || rm -rf $scratch/out
done < "${LIST:-$here/commands.txt}"
