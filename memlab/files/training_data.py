"""Data sets in the form that trainers read: a folder with ``train.json``, which has one JSON object a line."""

import hashlib
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from string import ascii_lowercase

import memlab
from memlab.core.command_template import DATA_DIR, PAIRS_DIR, template
from memlab.core.config import Config
from memlab.core.errors import ConfigError
from memlab.files.disk import cache_folder, write_whole

SAMPLE = Path(memlab.__file__).parent / "training" / "sample" / "instructions.jsonl"

MOST_WORDS = 2**20
"""Words of a random data set, unless one optimizer step needs more. Trainers read it again from its beginning."""


def check_data(config: Config) -> None:
    """Raise :class:`ConfigError` if a command has a place for a file that is not there."""
    file = _file(config)
    if _places(config) and file and not file.is_file():
        raise ConfigError(f"data={config.data.source} needs a file: data.path=<file with one JSON object a line>.")


def training_data(config: Config) -> Path:
    """Return the folder of the data set that a command has a place for. It is made once, in the user's cache."""
    if not (places := _places(config)):
        return Path()
    data, file, pairs = config.data, _file(config), PAIRS_DIR in places
    rows = _rows(config)
    identity = str(file or (pairs, data.text_field, rows, config.seq_len.tokens, config.seed))
    folder = cache_folder("data") / hashlib.sha256(identity.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "train.json"
    if file:
        with suppress(FileExistsError):
            made.symlink_to(file)
    elif not made.is_file():
        write_whole(made, "".join(_random_rows(config, rows, pairs)).encode())
    return folder


def _places(config: Config) -> set[str]:
    return {DATA_DIR, PAIRS_DIR} & template(config).places


def _file(config: Config) -> Path | None:
    """Return the file of a data set; ``None`` if memlab makes its rows."""
    return {"sample": SAMPLE, "jsonl": Path(config.data.path or "").resolve()}.get(config.data.source)


def _rows(config: Config) -> int:
    """Return a power of two, so that many points share a data set: enough for all steps, and always for one."""
    batch = config.batch.micro * config.batch.accumulation * config.hardware.world_size
    wanted = min(batch * (config.measure.warmup + config.measure.steps), MOST_WORDS // config.seq_len.tokens)
    return 1 << (max(batch, wanted) - 1).bit_length()


def _random_rows(config: Config, rows: int, pairs: bool) -> Iterator[str]:
    """Yield lines of random words, each of at least one token: as many as the trainer cuts a sample to."""
    chance, tokens = random.Random(config.seed), config.seq_len.tokens

    def words(count: int) -> str:
        return " ".join("".join(chance.choices(ascii_lowercase, k=chance.randint(1, 9))) for _ in range(count))

    for _ in range(rows):
        row = {config.data.text_field: words(tokens)}
        if pairs:
            row = {"prompt": words(max(1, tokens // 8)), "chosen": words(tokens), "rejected": words(tokens)}
        yield json.dumps(row) + "\n"
