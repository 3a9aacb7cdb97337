# The commands of records.tgz, on one GPU: each sweep was predicted, then measured; memlab was killed after the first
# record or two (kill -9), and the same command went on. Run from the root of a checkout:
python3 tests/scripts/make_model_and_data.py outputs/models --size 1b
OWN="model=qwen25_05b zero_stage=zero1,zero3 batch.micro=1,4 seq_len.tokens=1024 measure=quick"
TRL="training=trl_sft model=hf model.path=$PWD/outputs/models/llama model.weights=pretrained data=sample \
    zero_stage=zero2,zero3 seq_len.tokens=512,1024 batch.micro=2 measure.warmup=2 measure.steps=8"
SHARED="torchrun --nproc_per_node 2 tests/scripts/plain.py --steps 4" # both ranks use the only GPU
python3 launch.py -m $OWN mode=predict hardware=h200_x1 name=own_predicted
python3 launch.py -m $TRL mode=predict hardware=h200_x1 name=trl_predicted
for name in own trl; do
    [ $name = own ] && words=$OWN || words=$TRL
    python3 launch.py -m $words name=${name}_measured &
    until ls outputs/${name}_measured/*/record.json 2>/dev/null; do sleep 1; done
    sleep 4
    kill -9 $!
    python3 launch.py -m $words name=${name}_measured
    memlab diff outputs/${name}_predicted outputs/${name}_measured --fail-over 5%
done
memlab predict hardware=h200_x1 --output outputs/shared_predicted -- $SHARED
memlab measure --output outputs/shared_measured -- $SHARED
