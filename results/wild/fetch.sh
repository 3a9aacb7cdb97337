#!/bin/bash
# Take the scripts of commands.csv from copies of their repositories: results/wild/fetch.sh MIRRORS [TARGET]
# MIRRORS/OWNER+NAME/repo is the git directory of a repository. TARGET: outputs/wild/scripts.
set -eu
mirrors=$1 target=${2:-outputs/wild/scripts}
here=$(dirname "$0")
take() {  # LIBRARY PATHS...: the commit is that of commands.csv
    local library=$1 line; shift
    line=$(python3 - "$here/commands.csv" "$library" <<'P'
import csv, sys
row = next(r for r in csv.DictReader(open(sys.argv[1])) if r["library"] == sys.argv[2])
print(row["repository"].replace("/", "+"), row["commit"])
P
)
    mkdir -p "$target/$library"
    git --git-dir="$mirrors/${line% *}/repo" archive "${line#* }" "$@" | tar --extract --directory "$target/$library"
}
rm -rf "$target"
take trl examples/scripts/{cpo,distillation,dpo_vlm,gkd,mpo_vlm}.py
take peft examples/conditional_generation/peft_adalora_seq2seq.py examples/{beft,deft,delora,eva}_finetuning
take accelerate examples/by_feature/deepspeed_with_config_support.py \
    examples/by_feature/gradient_accumulation_for_autoregressive_models.py examples/torch_native_parallelism \
    examples/deepspeed_config_templates
take lightning examples/fabric/language_model examples/pytorch/basics/transformer.py
take nanoGPT train.py model.py configurator.py config
take minGPT mingpt projects
take sentence-transformers examples/cross_encoder/training/{nli,quora_duplicate_questions,sts} \
    examples/sentence_transformer/training/{adaptive_layer,data_augmentation}
take pytorch-examples distributed/FSDP2 distributed/tensor_parallelism word_language_model/{main,data,model}.py
take diffusers examples/amused/train_amused.py examples/controlnet/train_controlnet.py \
    examples/dreambooth/train_dreambooth.py examples/custom_diffusion/train_custom_diffusion.py \
    examples/instruct_pix2pix/train_instruct_pix2pix.py
take open_clip src
take DeepSpeedExamples training/DeepSpeed-ZenFlow/finetuning training/HelloDeepSpeed/train_bert{,_ds}.py \
    training/bf16_master_weight/train.py training/bf16_master_weight/configs
take x-transformers train_{belief_state,copy,entropy_tokenizer,gpt_vae,length_extrapolate}.py
take timm train.py
take pytorch_geometric examples/{agnn,ar_link_pred,argva_node_clustering,arma}.py
take cleanrl cleanrl/{c51,dqn}.py cleanrl_utils
du -sh "$target"
