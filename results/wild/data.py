"""Data sets of commands.csv: texts, pictures, tokens and a graph, from fixed seeds."""

import gzip
import json
import pickle
import string
import tarfile

import numpy as np
import pandas as pd
from PIL import Image
from words import CHANCE, OUT, text


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
