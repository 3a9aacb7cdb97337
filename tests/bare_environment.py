"""A virtual environment that holds torch, what torch needs, and a sitecustomize of its own.

Debian's Python has a sitecustomize of its own, which comes before the environment's, with memlab and without.
"""

import os
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
    (packages / "sitecustomize.py").touch()
    return folder / "bin" / "python"


def sitecustomize_of(python: Path) -> str:
    """The file of the sitecustomize that this Python finds without memlab."""
    code = "import sitecustomize; print(sitecustomize.__file__)"
    return subprocess.check_output([python, "-c", code], text=True, env={"PATH": os.environ["PATH"]}).strip()


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
