"""No secret stays: tokens, credentials in URLs, secret variables; in texts and in files of any length."""

import tracemalloc

import pytest

from memlab.files import redact_file as files
from memlab.files.redact_file import redact_file
from memlab.files.redaction import has_credentials, is_secret_name, redact

TOKENS = [
    *("hf_" + "Ab3" * 10, "ghp_" + "a1" * 12, "sk-" + "proj-9" * 5, "AKIA" + "ABCD" * 4),
    *("github_pat_" + "11AB_c" * 8, "glpat-" + "x-Y_9" * 4, "xoxb-" + "123456789012-abcDEF", "nvapi-" + "a_B-9" * 8),
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
]


@pytest.mark.parametrize("token", TOKENS)
def test_well_known_tokens_are_blanked_wherever_they_come_from(token):
    assert redact(f"a {token}, b", []) == "a <redacted>, b"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://me:sesame@host/x", "https://<redacted>@host/x"),
        ("'s3://key:pass@bucket'", "'s3://<redacted>@bucket'"),
        ("git clone https://sesame@host/x.git", "git clone https://<redacted>@host/x.git"),
        ("https://me:@host", "https://<redacted>@host"),
        ("https://me:p@ss@host/x", "https://<redacted>@host/x"),
        ("https://me:pa/ss@host/x", "https://<redacted>@host/x"),
        ("https://me:p@s/s@host", "https://<redacted>@host"),
        ("postgres://me:1a/2@host:5432/db", "postgres://<redacted>@host:5432/db"),
        ("https://a:b@host https://c:d/e@host", "https://<redacted>@host https://<redacted>@host"),
        ("https://host/x?token=sesame&y=1", "https://host/x?token=<redacted>&y=1"),
        ("https://host/x?y=1&access_token=sesame#z", "https://host/x?y=1&access_token=<redacted>#z"),
        ("'https://host/x?X-Amz-Signature=abc'", "'https://host/x?X-Amz-Signature=<redacted>'"),
        ("https://host/x?sv=2024&sig=a%2Bb", "https://host/x?sv=2024&sig=<redacted>"),
    ],
)
def test_credentials_in_urls_are_blanked(text, clean):
    assert redact(text, []) == clean
    assert has_credentials(text) == ("@" in text)


@pytest.mark.parametrize(
    "text",
    [
        *("https://host:8080/a@b", "https://host/a@b", "file:///home/me/a@b", "https://[::1]:8080/a@b", "a@b://c"),
        *("meta-llama/Meta-Llama-3-8B", "hf_model", "https://host/x?tokens=512&seed=1", "tokenizer=x?", "max_tokens=5"),
    ],
)
def test_nothing_else_is_blanked(text):
    assert redact(text, []) == text


@pytest.mark.parametrize(
    "name", [*("HOME", "PATH", "PWD", "OLDPWD", "CUDA_VISIBLE_DEVICES", "KEYBOARD", "NCCL_DEBUG", "PASSES", "KEY_FILE")]
)
def test_ordinary_variables_are_not_secrets(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize("secret", [TOKENS[0], "two\nlines of it", "open sesame"])
def test_a_secret_is_found_wherever_a_file_is_cut(tmp_path, monkeypatch, secret):
    monkeypatch.setenv("MY_SECRET", secret)
    monkeypatch.setattr(files, "PIECE", 64)
    path = tmp_path / "log"
    for before in range(70):
        path.write_bytes(b"." * before + b" \r\n\xff" + secret.encode() + b"\nthe rest\n" * 20)
        redact_file(path)
        assert path.read_bytes() == b"." * before + b" \r\n\xff<redacted>" + b"\nthe rest\n" * 20


@pytest.mark.parametrize("secret", [b"A" * 50 + b"\n" + b"B" * 50, b"C" * 100_000], ids=["of two lines", "long"])
def test_no_part_of_a_secret_leaves_before_the_whole_secret_is_there(monkeypatch, secret):
    monkeypatch.setattr(files, "known_secrets", lambda: [secret.decode()])
    for here in (10, 51, 80, 100, 70_000):
        redactor = files.Redactor()
        seen = redactor.feed(secret[:here]) + redactor.feed(secret[here:] + b" the rest\n") + redactor.end()
        assert seen == b"<redacted> the rest\n"


def test_a_long_log_takes_little_memory(tmp_path):
    path = tmp_path / "log"
    with path.open("w") as file:
        for _ in range(64):
            file.write(("x" * 1000 + "\n") * 1000)
        file.write(TOKENS[0])
    tracemalloc.start()
    redact_file(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size == 64 * 1_001_000 + len("<redacted>")
    assert peak < 16 * 2**20


def test_a_file_without_secrets_is_not_written_again(tmp_path):
    path = tmp_path / "log"
    path.write_text("nothing\n")
    before = path.stat().st_ino
    redact_file(path)
    assert path.stat().st_ino == before


@pytest.mark.parametrize(
    ("words", "secret"),
    [
        (["--hub_token", "sesame-open"], "sesame-open"),
        (["--wandb-api-key=sesame-open"], "sesame-open"),
        (["trainer.password=sesame-open"], "sesame-open"),
        (["--pw", "SECRET"], "SECRET"),
        (["--db-pwd=hunter2"], "hunter2"),
        (["training.command='train.py --password sesame-open --seed 1'"], "sesame-open"),
        (["--tokenizer", "meta-llama/Llama-3.2-1B"], None),
        (["--max_tokens", "1000000000"], None),
        (["--pad_token", "<|im_end|>"], None),
        (["--use_auth_token", "--learning_rate=0.1"], None),
    ],
)
def test_the_value_of_a_secret_option_is_blanked_wherever_it_appears(words, secret, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", *words])
    text = f"{words[-1]} and sesame-open"
    assert redact(text) == (text.replace(secret, "<redacted>") if secret else text)
