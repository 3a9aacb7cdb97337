# Where the driver places segments in trainings: sh trainings.sh OUT, from the repository's root, on one H100
# OUT/NAME.json: the actions of torch's memory history that take or give back a segment, of the sweep's last launch.
# trainings.csv has all of them: segment_alloc as allocate, segment_free as free, and the sizes in MiB.
set -u
out=$(realpath -m "$1"); mkdir -p "$out/hook"
cat > "$out/hook/sitecustomize.py" <<'P'
import json
import os

if "LOCAL_RANK" in os.environ:
    import torch

    def leave(code, end=os._exit):
        (actions,) = torch._C._cuda_memorySnapshot(None)["device_traces"]
        segments = [(each["action"], each["addr"], each["size"]) for each in actions if "segment" in each["action"]]
        with open(os.environ["SEGMENTS"], "w") as file:
            json.dump(segments, file)
        end(code)

    torch.cuda._lazy_call(lambda: torch.cuda.memory._record_memory_history(context=None, max_entries=50_000_000))
    os._exit = leave
P
export PYTHONPATH=$out/hook${PYTHONPATH:+:$PYTHONPATH}
record() {
    name=$1; shift
    SEGMENTS=$out/$name.json python3 launch.py -m hardware=h100_x1 measure=quick hydra.sweep.dir="$out/$name" "$@"
}
record smollm2 model=smollm2_135m zero_stage=zero0 checkpointing=none,full seq_len.tokens=512,2048 batch.micro=4
record tinyllama model=tinyllama_1b zero_stage=zero0 seq_len.tokens=128,1024
record gpt2_xl model=gpt2_xl zero_stage=zero1 checkpointing=full seq_len.tokens=1024 batch.micro=1,4
record llama31_8b model=llama31_8b zero_stage=zero2 adapter=lora checkpointing=full seq_len.tokens=1024 batch.micro=1,2,3,4
record gemma2_2b model=gemma2_2b zero_stage=zero2 adapter=lora attention=eager seq_len.tokens=512,1024
record llama32_1b model=llama32_1b zero_stage=zero3 adapter=lora seq_len.tokens=1024 batch.micro=1,2,3
