"""datasets: the files that a data set is made of."""

from types import ModuleType
from typing import Any

from ..session import Session
from .wrap import listening


def listen(module: ModuleType, session: Session) -> None:
    def prepared(_: None, builder: Any, *args: Any, **kwargs: Any) -> None:
        files = builder.config.data_files or {}
        session.data_files += [str(file) for of_split in files.values() for file in of_split]

    listening(module.DatasetBuilder, "download_and_prepare", after=prepared)
