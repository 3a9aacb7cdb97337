# The commands of records.tgz, on one GPU, each sweep predicted, then measured. SCRIPT is the training part of transformers'
# examples/pytorch/language-modeling/run_clm.py (commit 00d481d), without its evaluation. Run from the root of a checkout:
python3 tests/scripts/make_model_and_data.py outputs/models --size 1b
WORDS="training=hf_run_clm training.script=$SCRIPT model=hf model.path=outputs/models/llama zero_stage=zero2,zero3 \
    seq_len.tokens=1024 batch.micro=4 data=random measure=quick hardware=h100_x1"
python3 launch.py -m $WORDS mode=predict name=clm_predicted
python3 launch.py -m $WORDS name=clm_measured
