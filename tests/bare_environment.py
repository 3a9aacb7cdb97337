"""A virtual environment that holds torch, what torch needs, and a sitecustomize of its own."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def python_with_torch_alone(folder: Path) -> Path:
    """Make the environment in ``folder``, of links to this one's files. Returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next((folder / "lib").glob("python*/site-packages"))
    for file in files_of({"torch"}):
        (packages / file.name).symlink_to(file)
    (packages / "sitecustomize.py").write_text("MINE = 'mine'\n")
    return folder / "bin" / "python"


def files_of(names: set[str], known: frozenset[str] = frozenset()) -> set[Path]:
    """Top-level files and folders of distributions and of what they require here."""
    found = set()
    for name in names - known:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
        found |= {Path(distribution.locate_file(top)) for top in tops}
        needed = {Requirement(text) for text in distribution.requires or ()}
        here = {each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})}
        found |= files_of(here, known | names)
    return found
