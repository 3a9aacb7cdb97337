#!/bin/sh
# Make environments of their own for Axolotl and LLaMA-Factory, without CUDA: FOLDER/axolotl and FOLDER/llamafactory.
# Usage: make_environments.sh FOLDER
# Both tools require more than training on text needs (servers, clouds, evaluation, CUDA kernels: several GB), so each is
# installed with --no-deps, and beside it what `train` imports.
set -eu
folder=$1
torch=torch==2.13.0+cpu   # on a machine without PyTorch's index of CPU wheels: torch==2.13.0

python3 -m venv "$folder/axolotl"
pip=$folder/axolotl/bin/pip
"$pip" install -q $torch setuptools wheel
"$pip" install -q $torch transformers==5.16.1 tokenizers==0.23.1 trl==1.9.0 peft==0.20.0 accelerate==1.13.0 \
    datasets==4.8.4 huggingface_hub==1.17.0 pydantic==2.12.5 packaging==26.0 typer==0.25.1 typing-extensions==4.15.0 \
    schedulefree==1.4.1 python-dotenv==1.0.1 PyYAML==6.0.3 'numba>=0.63.1,<1' 'numpy>=2.1,<3' \
    addict art backoff colorama distro einops fastcore fire pillow python-dateutil requests scipy sentencepiece six wandb
"$pip" install -q --no-deps axolotl==0.19.0 axolotl-contribs-lgpl==0.0.7 axolotl-contribs-mit==0.0.6 \
    bitsandbytes==0.50.2 evaluate==0.4.1 optimum==1.16.2 posthog==6.7.11 triton==3.7.1

python3 -m venv "$folder/llamafactory"
pip=$folder/llamafactory/bin/pip
"$pip" install -q $torch setuptools wheel
"$pip" install -q $torch 'transformers<=5.6.0' trl==0.24.0 peft==0.18.1 accelerate==1.11.0 datasets==4.0.0 \
    'tyro<0.9.0' einops fire matplotlib numpy omegaconf packaging pandas protobuf pydantic pyyaml scipy sentencepiece tiktoken
"$pip" install -q --no-deps llamafactory==0.9.5 torchaudio==2.11.0
# LLaMA-Factory imports torchaudio for every model. Its only wheel for Linux needs libtorch_cuda.so, which torch's build
# for CPUs lacks; without its extensions it imports, and fine-tuning on text calls none of them.
rm "$folder"/llamafactory/lib/python3*/site-packages/torchaudio/lib/*.so
