"""``memlab predict -- COMMAND``: the script's code runs, and has no effects."""

import os
import sys

import pytest
from local_server import listening

from memlab.cli.compose import compose_config
from memlab.planner.user_command import predict_command
from memlab.runs.folder import RunFolder
from memlab.system import sandbox

pytestmark = [pytest.mark.shadow, pytest.mark.long(30)]

SCRIPT = """
import os, shutil, subprocess, sys, urllib.request
import torch
from huggingface_hub import HfApi, upload_file

if os.environ["RANK"] == "0":
    shutil.rmtree("out")
    os.makedirs("out")
model = torch.nn.Linear(1000, 1000, bias=False, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    model(torch.ones(1, 1000, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
if os.environ["RANK"] == "0":
    torch.save(model.state_dict(), "out/model.pt")
    api = HfApi()
    repository = api.create_repo("model", private=True)
    commit = api.upload_folder(repo_id=repository.repo_id, folder_path="out", run_as_future=True).result()
    upload_file(path_or_fileobj=b"card", path_in_repo="README.md", repo_id=repository.repo_id)
    print(repository.repo_id, commit.repo_url.repo_id, os.listdir("out"))
    try:
        urllib.request.urlopen("http://127.0.0.1:" + sys.argv[1], data=b"weights")
    except OSError:
        print("refused")
"""


@pytest.mark.parametrize("protection", sandbox.PROTECTIONS)
def test_a_script_that_deletes_its_output_and_uploads_changes_and_sends_nothing(tmp_path, monkeypatch, protection):
    monkeypatch.setattr(sandbox, "PROTECTIONS", (protection,))
    monkeypatch.setenv("PATH", os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    project = tmp_path / "project"
    (project / "out").mkdir(parents=True)
    (project / "out" / "old.pt").write_bytes(bytes(500))
    (project / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(project)
    config, _ = compose_config(["mode=predict", "hardware=h200_x8", "hardware.gpus=2"])
    folder = RunFolder(tmp_path / "run")
    with listening() as (port, connected):
        words = ["torchrun", "--nproc-per-node", "2", "train.py", str(port)]
        try:
            record = predict_command(words, config.hardware, folder, steps=None)
        except sandbox.SandboxError as error:
            pytest.skip(str(error))
    assert connected == []
    output = (folder.path / "command.log").read_text()
    assert record.status == "ok", output
    assert "you/model you/model ['model.pt']\nrefused" in output
    assert [each.name for each in (project / "out").iterdir()] == ["old.pt"]
    effects = record.command["effects"]
    assert (effects["protection"], effects["network"]) == (protection, False)
    written = {each["folder"]: (each["files"], each["bytes"]) for each in effects["written"]}
    assert written[str(project / "out")] == (1, 4_000_000)
    assert effects["deleted"] == [{"folder": str(project / "out"), "files": 1, "bytes": 500}]
    assert [each["what"] for each in effects["answered"]] == [
        "create_repo model",
        "upload_folder out to you/model",
        "upload_file README.md to you/model",
    ]
    assert [each["what"] for each in effects["refused"]] == [f"connection to 127.0.0.1:{port}"]
