"""Cost of a script's output: 200 MB into ``cat`` alone and through ``memlab measure``, in lines and as one line.

    python -m benchmarks.output

Prints for each kind of output the seconds of both, their ratio, and the most memory of memlab's own process. The time
of a measured command without output is taken off.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZE = 200_000_000

KINDS = {
    "lines of one letter": "print('x' * 79, end='\\n')",
    "lines of words": "print(('loss 0.%06d after step %d of an epoch ' % (i, i))[:39] * 2)",
    "lines of long names": "print('per_device_train_batch_size: 8, gradient_accumulation_steps: %9d, decay' % i)",
}
ONE_LINE = f"import sys\nfor _ in range({SIZE // 1000}): sys.stdout.write('x' * 1000)"


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        nothing = measured("pass")[0]
        for kind, line in KINDS.items():
            report(kind, f"for i in range({SIZE // 80}): {line}", nothing)
        report("one line", ONE_LINE, nothing)


def report(kind: str, script: str, nothing: float) -> None:
    began = time.perf_counter()
    with Path("alone").open("wb") as target:
        words = [sys.executable, "-c", script]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            subprocess.run(["cat"], stdin=process.stdout, stdout=target, check=True)
    alone = time.perf_counter() - began
    seconds, peak = measured(script)
    more = seconds - nothing - alone
    print(
        f"{kind}: {alone:.1f} s, measured {more:+.1f} s ({1 + more / alone:.2f} times), {peak / 1e6:.0f} MB", flush=True
    )


def measured(script: str) -> tuple[float, int]:
    """Return the seconds of a measured script, and the bytes of the largest resident set of memlab's process."""
    command = [sys.executable, "-c", script]
    words = [sys.executable, "-m", "memlab", "measure", "--force", "--output", "run", "--", *command]
    began = time.perf_counter()
    with Path("output").open("wb") as target:
        process = subprocess.Popen(words, stdout=target, stderr=subprocess.STDOUT)
        peak = 0
        while process.poll() is None:
            peak = max(peak, resident_peak(process.pid))
            time.sleep(0.05)
    return time.perf_counter() - began, peak


def resident_peak(pid: int) -> int:
    """Return VmHWM of a process (proc_pid_status(5)), 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)


if __name__ == "__main__":
    main()
