"""Models of commands.csv: configurations, tokenizers of the recipe's words, and random weights."""

import json
import string
from pathlib import Path

import torch
import transformers as tf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from words import OUT, WORDS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
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
