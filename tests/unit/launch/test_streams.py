"""Output of a measured script: all of it arrives, in the terminal and in the log, and memlab keeps little of it."""

import os
import re
import subprocess
import sys

import pytest

SIZE = 50_000_000
SECRET = "hf_" + "a1" * 17

SCRIPTS = {
    "lines": f"line = 'x' * 79 + '\\n'\nfor _ in range({SIZE // 80}): print(line, end='')",
    "one line": f"import sys\nfor _ in range({SIZE // 1000}): sys.stdout.write('x' * 1000)",
}

MEMLAB = """
import atexit, pathlib
from memlab.cli.main import main
atexit.register(lambda: pathlib.Path("status").write_text(pathlib.Path("/proc/self/status").read_text()))
main()
"""


@pytest.mark.parametrize("kind", SCRIPTS)
def test_long_output_is_copied_whole_without_secrets_in_little_memory(tmp_path, kind):
    token, run, output = f"print(' {SECRET} my-own-secret', flush=True)\n", tmp_path / "run", tmp_path / "output"
    script = f"{token}{SCRIPTS[kind]}\n{token}{SCRIPTS[kind]}\n{token}"
    words = [sys.executable, "-c", MEMLAB, "measure", "--output", str(run), "--", sys.executable, "-c", script]
    with output.open("wb") as target:
        subprocess.run(words, stdout=target, cwd=tmp_path, env={**os.environ, "MY_SECRET": "my-own-secret"})
    seen, log = output.read_bytes(), (run / "logs" / "launcher.log").read_bytes()
    assert seen.count(b"x" * 79) == log.count(b"x" * 79) >= 2 * (SIZE // 80)
    assert log == seen.replace(SECRET.encode(), b"<redacted>").replace(b"my-own-secret", b"<redacted>")
    assert log.count(b" <redacted> <redacted>\n") == 3
    most = re.search(r"VmHWM:\s+(\d+) kB", (tmp_path / "status").read_text())
    assert int(most[1]) * 1024 < 120e6  # 55 MB without any output; kept whole, the output would take 100 MB
