"""What computed decoding steps save: python benchmarks/generation.py [--layers 24] [--tokens 128] [--generations 2]

The same generations of a model (of Qwen2 0.5B's shape, unless there are other layers) are simulated twice, in a process
each: with every decoding step traced, and with those computed that are like the ones before them. Each row has the CPU
seconds of each generation; the last column is how many times as fast the computed steps are. Both traces must have
equal events.
"""

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

from memlab.prediction.run_command import LOG, simulate
from memlab.simulator.simulation import Node

SCRIPT = """
import sys, time
import torch
from transformers import GenerationMixin, Qwen2Config, Qwen2ForCausalLM

way, layers, tokens, generations = sys.argv[1], *map(int, sys.argv[2:])
if way == "traced":
    GenerationMixin._sample = GenerationMixin._sample.__wrapped__
model = Qwen2ForCausalLM(Qwen2Config(vocab_size=151936, hidden_size=896, intermediate_size=4864,
    num_hidden_layers=layers, num_attention_heads=14, num_key_value_heads=2, eos_token_id=2, pad_token_id=0))
model = model.to(torch.bfloat16).cuda()
prompts = torch.ones(4, 64, dtype=torch.long, device="cuda")
for _ in range(generations):
    began = time.process_time()
    model.generate(prompts, max_new_tokens=tokens, do_sample=True)
    print("- CPU seconds:", time.process_time() - began)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("layers", 24), ("tokens", 128), ("generations", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    numbers = [str(arguments.layers), str(arguments.tokens), str(arguments.generations)]
    seconds, events = [], []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        script.write_text(SCRIPT)
        for way in ("traced", "computed"):
            words = [sys.executable, str(script), way, *numbers]
            simulated = simulate(words, Node("NVIDIA H100 80GB HBM3", 1, 80 << 30), Path(folder), None, os.environ)
            assert simulated.returncode == 0, simulated.last_words
            seconds.append([float(each) for each in re.findall(r"- CPU seconds: (.*)", Path(folder, LOG).read_text())])
            events.append(simulated.traces[0].events)
    assert events[0] == events[1]
    print("generation   traced s   computed s   times as fast")
    for number, (traced, computed) in enumerate(zip(*seconds, strict=True), 1):
        print(f"{number:10} {traced:10.1f} {computed:12.1f} {traced / computed:15.1f}")


if __name__ == "__main__":
    main()
