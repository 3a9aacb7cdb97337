"""Make the models and data sets of commands.csv: ``python3 make_inputs.py [FOLDER]`` (default: outputs/wild/inputs).

Every folder has the name that a script asks for. Models have random weights; data come from fixed seeds, so two
machines make equal ones. The Planetoid graph is written beside the scripts, where the scripts look for it.
"""

import gzip
import json
import pickle
import random
import string
import sys
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import transformers as tf
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

OUT = Path(sys.argv[1] if len(sys.argv) > 1 else "outputs/wild/inputs")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CHANCE = random.Random(11)
WORDS = ["".join(CHANCE.choices(string.ascii_lowercase, k=CHANCE.randint(2, 8))) for _ in range(4000)]
SPECIAL = {
    "pad_token": "<pad>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "cls_token": "<cls>",
    "sep_token": "<sep>",
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}"
    "{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VISION = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]


def text(words: int) -> str:
    """Return a text of about this many words."""
    return " ".join(CHANCE.choices(WORDS, k=max(2, round(words * CHANCE.lognormvariate(0, 0.5)))))


def tokenizer(folder: Path, max_length: int = 1024) -> tf.PreTrainedTokenizerFast:
    """Write a tokenizer with one token for each byte and each of the recipe's words."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f" {word}" for word in WORDS]
    vocabulary = {t: i for i, t in enumerate(dict.fromkeys([*SPECIAL.values(), *VISION, *letters, *words]))}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(t, special=True) for t in [*SPECIAL.values(), *VISION]])
    core.add_tokens(words)
    made = tf.PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=max_length, **SPECIAL)
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)
    return made


def model(name: str, config: tf.PretrainedConfig, kind: type, dtype: torch.dtype = torch.float32) -> None:
    """Write a model with random weights, and its tokenizer, under the name that scripts ask for."""
    torch.manual_seed(0)
    with torch.device(DEVICE):
        made = kind.from_config(config, dtype=dtype)
    made.save_pretrained(OUT / name)
    tokenizer(OUT / name)


def link(name: str, other: Path) -> None:
    """Give a folder a second name."""
    place = OUT / name
    place.parent.mkdir(exist_ok=True)
    place.exists() or place.symlink_to(other.resolve())


def make_models() -> None:
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    causal, bf16 = tf.AutoModelForCausalLM, torch.bfloat16
    model("gpt2", tf.GPT2Config(bos_token_id=1, eos_token_id=2), causal)
    config = tf.GPT2Config(n_embd=1280, n_layer=36, n_head=20, bos_token_id=1, eos_token_id=2)
    config.save_pretrained(OUT / "gpt2-large")
    tokenizer(OUT / "gpt2-large")
    qwen = {"vocab_size": 151936, "num_key_value_heads": 2, "tie_word_embeddings": True, **ids}
    small = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
    large = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12}
    model("Qwen/Qwen2.5-0.5B-Instruct", tf.Qwen2Config(**small, **qwen), causal, bf16)
    model("Qwen/Qwen2.5-1.5B-Instruct", tf.Qwen2Config(**large, **qwen), causal, bf16)
    llama = {"hidden_size": 2048, "num_attention_heads": 32, "vocab_size": 32000, **ids}
    tiny = tf.LlamaConfig(intermediate_size=5632, num_hidden_layers=22, num_key_value_heads=4, **llama)
    for name in ("meta-llama/Llama-2-7b-hf", "NousResearch/Hermes-3-Llama-3.1-8B"):  # TinyLlama's shape
        model(name, tiny, causal, bf16)
    smol = tf.LlamaConfig(
        hidden_size=960,
        intermediate_size=2560,
        num_hidden_layers=32,
        num_attention_heads=15,
        num_key_value_heads=5,
        vocab_size=49152,
        tie_word_embeddings=True,
        **ids,
    )
    model("HuggingFaceTB/SmolLM-360M", smol, causal, bf16)
    mt5 = tf.MT5Config(
        d_model=512,
        d_kv=64,
        d_ff=1024,
        num_layers=8,
        num_heads=6,
        vocab_size=250112,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=0,
    )
    model("bigscience/mt0-small", mt5, tf.AutoModelForSeq2SeqLM)
    bart = tf.BartConfig(
        d_model=768,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        decoder_start_token_id=2,
        **ids,
    )
    model("facebook/bart-base", bart, tf.AutoModelForSeq2SeqLM)
    roberta = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, **ids}
    model("distilroberta-base", tf.RobertaConfig(num_hidden_layers=6, **roberta), tf.AutoModelForMaskedLM)
    tokenizer(OUT / "distilroberta-base", 512)
    tokenizer(OUT / "roberta-base", 512)
    model("bert-base-uncased", tf.BertConfig(pad_token_id=0), tf.AutoModelForMaskedLM)
    tokenizer(OUT / "bert-base-uncased", 512)
    for name, other in {
        "Qwen/Qwen2-0.5B-Instruct": "Qwen/Qwen2.5-0.5B-Instruct",
        "Qwen/Qwen2-1.5B-Instruct": "Qwen/Qwen2.5-1.5B-Instruct",
        "meta-llama/Llama-3.1-8B": "meta-llama/Llama-2-7b-hf",
    }.items():
        link(name, OUT / other)
    make_vision_language(small)
    make_diffusion()
    make_litgpt()


def make_vision_language(text_shape: dict) -> None:
    """Write a Qwen2.5-VL with the vision tower of the 3B model and the text model of Qwen2.5-0.5B."""
    folder = OUT / "Qwen/Qwen2.5-VL-3B-Instruct"
    made = tokenizer(folder)
    token = {
        f"{k}_token_id": made.convert_tokens_to_ids(f"<|{v}|>")
        for k, v in {
            "image": "image_pad",
            "video": "video_pad",
            "vision_start": "vision_start",
            "vision_end": "vision_end",
        }.items()
    }
    rope = {"rope_type": "default", "type": "default", "mrope_section": [8, 12, 12], "rope_theta": 1000000.0}
    config = tf.Qwen2_5_VLConfig(
        text_config={
            **text_shape,
            "vocab_size": 151936,
            "num_key_value_heads": 2,
            "rope_parameters": rope,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        vision_config={
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 896,
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
        tie_word_embeddings=True,
        **token,
    )
    model("Qwen/Qwen2.5-VL-3B-Instruct", config, tf.AutoModelForImageTextToText, torch.bfloat16)
    images = tf.Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=512 * 512)
    for special, name in (("image_token", "<|image_pad|>"), ("video_token", "<|video_pad|>")):
        setattr(made, special, name)
    tf.Qwen2_5_VLProcessor(images, made, tf.Qwen2VLVideoProcessor(), chat_template=TEMPLATE).save_pretrained(folder)


def clip_tokenizer(folder: Path) -> None:
    """Write a CLIP tokenizer that knows letters only."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    tokens = [*letters, *(c + "</w>" for c in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tf.CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=77).save_pretrained(
        folder
    )


def make_diffusion() -> None:
    import diffusers as df

    torch.manual_seed(0)
    text_shape = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "projection_dim": 768,
        "vocab_size": 49408,
        "bos_token_id": 134,
        "eos_token_id": 135,
    }
    stable = OUT / "CompVis/stable-diffusion-v1-4"
    with torch.device(DEVICE):
        parts = {
            "unet": df.UNet2DConditionModel(
                sample_size=64, cross_attention_dim=768, attention_head_dim=8, block_out_channels=(320, 640, 1280, 1280)
            ),
            "vae": df.AutoencoderKL(
                down_block_types=["DownEncoderBlock2D"] * 4,
                up_block_types=["UpDecoderBlock2D"] * 4,
                block_out_channels=(128, 256, 512, 512),
                layers_per_block=2,
                sample_size=512,
            ),
            "text_encoder": tf.CLIPTextModel(tf.CLIPTextConfig(**text_shape)),
        }
        for name, part in parts.items():
            part.half().save_pretrained(stable / name)
        amused = OUT / "amused/amused-256"
        parts = {
            "transformer": df.UVit2DModel(),
            "vqvae": df.VQModel(
                block_out_channels=(128, 256, 256, 512, 768),
                latent_channels=64,
                layers_per_block=2,
                down_block_types=["DownEncoderBlock2D"] * 5,
                up_block_types=["UpDecoderBlock2D"] * 5,
                num_vq_embeddings=8192,
                vq_embed_dim=64,
                norm_num_groups=32,
                lookup_from_codebook=True,
                mid_block_add_attention=False,
                force_upcast=True,
            ),
            "text_encoder": tf.CLIPTextModelWithProjection(tf.CLIPTextConfig(**text_shape)),
        }
        for name, part in parts.items():
            part.save_pretrained(amused / name)
    for folder in (stable, amused):
        clip_tokenizer(folder / "tokenizer")
    scheduler = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "clip_sample": False}
    df.DDPMScheduler(**scheduler).save_pretrained(stable / "scheduler")
    df.AmusedScheduler(mask_token_id=8255).save_pretrained(amused / "scheduler")
    index = {
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "scheduler": ["diffusers", "DDPMScheduler"],
        "safety_checker": [None, None],
        "feature_extractor": [None, None],
        "requires_safety_checker": False,
    }
    (stable / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline", **index}))
    index = {
        "transformer": ["diffusers", "UVit2DModel"],
        "vqvae": ["diffusers", "VQModel"],
        "text_encoder": ["transformers", "CLIPTextModelWithProjection"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "scheduler": ["diffusers", "AmusedScheduler"],
    }
    (amused / "model_index.json").write_text(json.dumps({"_class_name": "AmusedPipeline", **index}))
    link("stable-diffusion-v1-5/stable-diffusion-v1-5", stable)


def make_litgpt() -> None:
    from litgpt import GPT, Config
    from litgpt.utils import save_config

    folder = OUT / "checkpoints/stabilityai/stablelm-base-alpha-3b"
    tokenizer(folder)
    config = Config.from_name("pythia-410m")
    torch.manual_seed(0)
    torch.save(GPT(config).to(torch.bfloat16).state_dict(), folder / "lit_model.pth")
    save_config(config, folder)


def table(name: str, rows: dict[str, list], config: str = "default") -> None:
    """Write a data set of parquet files that ``load_dataset(name, config)`` reads."""
    folder = OUT / name
    (folder / config).mkdir(parents=True, exist_ok=True)
    for split, values in rows.items():
        pd.DataFrame(values).to_parquet(folder / config / f"{split}.parquet")
    known = sorted(p.name for p in folder.iterdir() if p.is_dir())
    lines = ["---", "configs:"]
    for one in known:
        lines += [f'- config_name: "{one}"', "  data_files:"]
        lines += [f'  - split: {p.stem}\n    path: "{one}/{p.name}"' for p in sorted((folder / one).glob("*.parquet"))]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))


def picture(side: int = 256) -> Image.Image:
    """Return a smooth random image."""
    pixels = np.array([[[CHANCE.randrange(256) for _ in range(3)] for _ in range(4)] for _ in range(4)], dtype=np.uint8)
    return Image.fromarray(pixels).resize((side, side), Image.BICUBIC)


def picture_table(name: str, rows: list[dict]) -> None:
    from datasets import Dataset

    (OUT / name).mkdir(parents=True, exist_ok=True)
    Dataset.from_list(rows).to_parquet(OUT / name / "train.parquet")


def make_data() -> None:
    def say(role: str, words: int) -> dict:
        return {"role": role, "content": text(words)}

    def pair(count: int) -> list[dict]:
        prompts = [say("user", 30) for _ in range(count)]
        return [{"chosen": [p, say("assistant", 100)], "rejected": [p, say("assistant", 100)]} for p in prompts]

    def alpaca(count: int) -> list[dict]:
        return [{"instruction": text(15), "input": text(10) if i % 2 else "", "output": text(60)} for i in range(count)]

    def lines(count: int, words: int = 80) -> list[dict]:
        return [{"text": text(words)} for _ in range(count)]

    table("trl-lib/ultrafeedback_binarized", {"train": pair(64), "test": pair(8)})
    table("trl-lib/ultrafeedback-prompt", {"train": [{"prompt": [say("user", 30)]} for _ in range(64)]})
    phrases = [{"sentence": text(20), "label": CHANCE.randrange(3)} for _ in range(600)]
    table("gtfintechlab/financial_phrasebank_sentences_allagree", {"train": phrases}, "5768")
    sentiments = [{"text": text(15), "label": CHANCE.randrange(3)} for _ in range(1400)]
    table("zeroshot/twitter-financial-news-sentiment", {"train": sentiments})
    table("timdettmers/openassistant-guanaco", {"train": lines(128, 200), "test": lines(16, 200)})
    for name in ("wikitext", "Salesforce/wikitext"):
        for config in ("wikitext-2-v1", "wikitext-2-raw-v1"):
            table(name, {"train": lines(1200), "validation": lines(100), "test": lines(100)}, config)
    table("wikitext", {"train": lines(4000)}, "wikitext-103-raw-v1")
    table("roneneldan/TinyStories", {"train": lines(1000, 150)})
    table("tatsu-lab/alpaca", {"train": alpaca(256)})
    sentences = [text(10) for _ in range(2000)]

    def two(first: str, second: str, label: str, count: int, draw) -> pd.DataFrame:
        return pd.DataFrame(
            {
                first: CHANCE.choices(sentences, k=count),
                second: CHANCE.choices(sentences, k=count),
                label: [draw() for _ in range(count)],
            }
        )

    nli = {
        s: two("premise", "hypothesis", "label", n, lambda: CHANCE.randrange(3))
        for s, n in {"train": 100_000, "dev": 1000, "test": 500}.items()
    }
    table("sentence-transformers/all-nli", nli, "pair-class")
    quora = two("sentence1", "sentence2", "label", 22_000, lambda: CHANCE.randrange(2))
    table("sentence-transformers/quora-duplicates", {"train": quora}, "pair-class")
    sts = {s: two("sentence1", "sentence2", "score", 640, CHANCE.random) for s in ("train", "validation", "test")}
    table("sentence-transformers/stsb", sts)

    for folder in (
        "data/alpaca",
        "data/wikitext-2",
        "clip",
        "dog",
        "imagenet/train/a",
        "imagenet/train/b",
        "imagenet/validation/a",
        "imagenet/validation/b",
    ):
        (OUT / folder).mkdir(parents=True, exist_ok=True)
    (OUT / "data/alpaca/alpaca_data_cleaned_archive.json").write_text(json.dumps(alpaca(400)))
    (OUT / "data/wikitext-2.txt").write_text("\n".join(text(60) for _ in range(4000)))
    for split, count in {"train": 120, "valid": 30, "test": 30}.items():
        (OUT / f"data/wikitext-2/{split}.txt").write_text("\n".join(text(60) for _ in range(count)) + "\n")
    (OUT / "input.txt").write_text("O God, O God!\n" + "\n".join(text(60).capitalize() for _ in range(2000)))
    block = "\n".join(text(60) for _ in range(2500)).encode()
    with gzip.open(OUT / "data/enwik8.gz", "wb", compresslevel=1) as file:
        for _ in range(96_000_000 // len(block) + 1):
            file.write(block)
    numbers = np.random.default_rng(11)
    for name, vocabulary in {"shakespeare": 50257, "openwebtext": 50257, "shakespeare_char": 65}.items():
        (OUT / "data" / name).mkdir(exist_ok=True)
        for split in ("train", "val"):
            numbers.integers(0, vocabulary, 300_000, dtype=np.uint16).tofile(OUT / "data" / name / f"{split}.bin")
    letters = string.printable[:65]
    meta = {"vocab_size": 65, "itos": dict(enumerate(letters)), "stoi": {c: i for i, c in enumerate(letters)}}
    (OUT / "data/shakespeare_char/meta.pkl").write_bytes(pickle.dumps(meta))
    make_pictures()
    make_graph(numbers)
    make_data_of_half_c(sentences)
    (OUT / "zero2.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndeepspeed_config:\n deepspeed_config_file: scripts/accelerate/examples/"
        "deepspeed_config_templates/zero_stage2_config.json\n zero3_init_flag: true\ndistributed_type: DEEPSPEED\n"
        "fsdp_config: {}\nmachine_rank: 0\nmain_training_function: main\nnum_machines: 1\n"
        "num_processes: 1\nuse_cpu: false\n"
    )


def make_pictures() -> None:
    for i in range(8):
        picture(512).save(OUT / f"dog/{i}.png")
    for i in (1, 2):
        picture(512).save(OUT / f"conditioning_image_{i}.png")
    picture_table("m1guelpf/nouns", [{"image": picture(), "text": text(10)} for _ in range(96)])
    circles = [{"image": picture(512), "conditioning_image": picture(512), "text": text(6)} for _ in range(48)]
    picture_table("fusing/fill50k", circles)

    def part(words: int) -> list[dict]:
        return [{"type": "text", "text": text(words)}]

    rows = [
        {
            "images": [picture(448)],
            "prompt": [{"role": "user", "content": [{"type": "image", "text": None}, *part(15)]}],
            "chosen": [{"role": "assistant", "content": part(60)}],
            "rejected": [{"role": "assistant", "content": part(60)}],
        }
        for _ in range(160)
    ]
    picture_table("HuggingFaceH4/rlaif-v_formatted", rows)
    for split, count in {"train": 1024, "val": 128}.items():
        lines = ["filepath\ttitle"]
        for i in range(count):
            path = OUT / f"clip/{split}{i}.jpg"
            picture(128).save(path)
            lines.append(f"clip/{path.name}\t{text(10)}")
        (OUT / f"clip/{split}.csv").write_text("\n".join(lines) + "\n")
    for shard in range(8):
        with tarfile.open(OUT / f"clip/train-{shard:04}.tar", "w") as file:
            for i in range(400):
                for suffix, content in (("jpg", (OUT / f"clip/train{i}.jpg").read_bytes()), ("txt", text(10).encode())):
                    path = OUT / "clip/one"
                    path.write_bytes(content)
                    file.add(path, f"{shard}_{i:05}.{suffix}")
    for split, count in {"train": 1024, "validation": 128}.items():
        for label in "ab":
            for i in range(count):
                picture(128).save(OUT / f"imagenet/{split}/{label}/{i}.jpg")


def make_data_of_half_c(sentences: list[str]) -> None:
    """Write what half C needs beside the others. It draws after them, so that theirs stay what they were."""
    chats = [[{"role": r, "content": text(n)} for r, n in (("user", 30), ("assistant", 100))] for _ in range(64)]
    table("trl-lib/chatbot_arena_completions", {"train": [{"messages": chat} for chat in chats]})
    questions = [{"query": text(40), "response": text(100)} for _ in range(400)]
    table("meta-math/MetaMathQA", {"train": questions})
    names = ("anchor", "positive", "negative")
    triplets = {
        split: pd.DataFrame({name: CHANCE.choices(sentences, k=count) for name in names})
        for split, count in {"train": 20_000, "dev": 1000}.items()
    }
    table("sentence-transformers/all-nli", triplets, "triplet")
    edits = [{"input_image": picture(), "edit_prompt": text(8), "edited_image": picture()} for _ in range(160)]
    picture_table("fusing/instructpix2pix-1000-samples", edits)
    cats = OUT / "real_reg/samples_cat"
    (cats / "images").mkdir(parents=True, exist_ok=True)
    paths = [f"real_reg/samples_cat/images/{i}.jpg" for i in range(200)]
    for path in paths:
        picture(512).save(OUT / path)
    (cats / "images.txt").write_text("\n".join(paths) + "\n")
    (cats / "caption.txt").write_text("".join(text(8) + "\n" for _ in paths))
    (OUT / "cp.yaml").write_text(
        (OUT.parent / "scripts/accelerate/examples/torch_native_parallelism/configs/cp.yaml")
        .read_text()
        .replace("num_processes: 8", "num_processes: 2")
        .replace("cp_size: 8", "cp_size: 2")
    )


def make_graph(numbers: np.random.Generator) -> None:
    """Write Planetoid's raw files with Cora's sizes: 2,708 nodes, 1,433 features, 7 classes."""
    import scipy.sparse as sp

    folder = OUT.parent / "scripts/pytorch_geometric/data/Cora/Cora/raw"
    folder.mkdir(parents=True, exist_ok=True)
    planetoid = folder.parents[2] / "Planetoid"  # argva_node_clustering.py looks there
    planetoid.exists() or planetoid.symlink_to("Cora")
    features = sp.csr_matrix((numbers.random((2708, 1433)) < 0.0127).astype(np.float32))
    labels = np.eye(7, dtype=np.int32)[numbers.integers(0, 7, 2708)]
    graph = {i: [] for i in range(2708)}
    for a, b in numbers.integers(0, 2708, (5278, 2)).tolist():
        graph[a].append(b)
        graph[b].append(a)
    parts = {
        "x": features[:140],
        "y": labels[:140],
        "allx": features[:1708],
        "ally": labels[:1708],
        "tx": features[1708:],
        "ty": labels[1708:],
        "graph": graph,
    }
    for name, value in parts.items():
        (folder / f"ind.cora.{name}").write_bytes(pickle.dumps(value))
    (folder / "ind.cora.test.index").write_text("\n".join(map(str, range(1708, 2708))) + "\n")


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    make_data()  # before the models: equal on both machines whatever a model draws
    make_models()
