# Memory histories of commands of commands.csv, on one GPU: bash results/wild/histories.sh OUT NAME...   from the root
# OUT/NAME.PID.pkl.gz: each action of torch's allocator (action, address, bytes, stream) and the peaks. No memlab runs in
# these processes. Before: fetch.sh and make_inputs.py, and the wheels of requirements.txt on PYTHONPATH, as for measure.sh.
set -u
out=$(realpath -m "$1") root=$PWD wild=$PWD/outputs/wild; shift
mkdir -p "$out/hook"
cat > "$out/hook/sitecustomize.py" <<'P'
import atexit
import gzip
import importlib.abc
import importlib.util
import os
import pickle
import sys


def record():
    import torch

    def write():
        if torch.cuda.is_initialized():
            (actions,) = torch._C._cuda_memorySnapshot(None)["device_traces"]
            rows = [(each["action"], each["addr"], each["size"], each.get("stream", 0)) for each in actions]
            stats = torch.cuda.memory_stats()
            peaks = {name: stats[f"{name}_bytes.all.peak"] for name in ("allocated", "active", "reserved")}
            with gzip.open(f"{os.environ['HISTORY']}.{os.getpid()}.pkl.gz", "wb", 3) as file:
                pickle.dump({"rows": rows, **peaks}, file)

    torch.cuda._lazy_call(lambda: torch.cuda.memory._record_memory_history(context=None, max_entries=20_000_000))
    atexit.register(write)


class AfterTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        execute = spec.loader.exec_module

        def then_record(module):
            execute(module)
            record()

        spec.loader.exec_module = then_record
        return spec


if "HISTORY" in os.environ:
    sys.meta_path.insert(0, AfterTorch())
P
scripts=$wild/scripts
export PYTHONPATH=$out/hook:$root${PYTHONPATH:+:$PYTHONPATH}:$scripts/open_clip/src CUDA_VISIBLE_DEVICES=0
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME=$wild/hf TOKENIZERS_PARALLELISM=false WANDB_MODE=disabled
record() {
    local folder=$wild/work/$1 words
    mkdir -p "$folder"; ln -s "$wild"/inputs/* "$scripts" "$folder/"
    eval "words=($2)"
    (cd "$folder" && HISTORY=$out/$1 timeout 200 "${words[@]}" > "$out/$1.log" 2>&1 < /dev/null; echo "$1: exit code $?")
    rm -rf "$folder"
}
while IFS=$'\t' read -r name words <&3; do record "$name" "$words" & done 3< <(python3 - "$@" <<'P'
import csv, sys
for row in csv.DictReader(open("results/wild/commands.csv")):
    if row["name"] in sys.argv[1:]:
        print(row["name"], row["words"], sep="\t")
P
)
wait
