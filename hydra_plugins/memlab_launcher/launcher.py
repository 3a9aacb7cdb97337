"""``hydra/launcher=memlab``, which passes all jobs of a sweep to memlab at once, and ``hydra/sweeper=memlab``.

Hydra imports this module at every start, also for tab completion. So heavy modules are imported only where used.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper


@dataclass
class MemlabLauncherConf:
    _target_: str = "hydra_plugins.memlab_launcher.launcher.MemlabLauncher"


@dataclass
class MemlabSweeperConf:
    _target_: str = "hydra_plugins.memlab_launcher.launcher.MemlabSweeper"
    max_batch_size: int | None = None
    params: dict[str, Any] | None = field(default_factory=dict)


for group, node in (("hydra/launcher", MemlabLauncherConf), ("hydra/sweeper", MemlabSweeperConf)):
    ConfigStore.instance().store(group=group, name="memlab", node=node, provider="memlab_launcher")


class MemlabLauncher(Launcher):
    def setup(self, *, hydra_context, task_function, config) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from memlab.cli.compose import compose_batch

        jobs = compose_batch(self.hydra_context.config_loader, self.config, job_overrides, initial_job_idx)
        return self.task_function.run_batch(self.config, list(jobs))


class MemlabSweeper(Sweeper):
    """Sweeper over every combination of the values, like Hydra's basic one.

    It writes nothing before all jobs of the sweep are composed, and never a secret.
    """

    def __init__(self, max_batch_size: int | None, params: dict[str, Any] | None = None):
        self.max_batch_size, self.params = max_batch_size, params or {}

    def setup(self, *, hydra_context, task_function, config) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        from memlab.cli.override_words import check_total, count_values

        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides([*(f"{key}={value}" for key, value in self.params.items()), *arguments])
        check_total(count_values(overrides))
        jobs = [list(job) for job in itertools.product(*_words_by_key(overrides).values())]
        if not isinstance(self.launcher, MemlabLauncher):  # memlab's launcher itself composes all jobs before it writes
            self.begin(jobs)
        size = self.max_batch_size or len(jobs)
        returned: list[Sequence[JobReturn]] = []
        for first in range(0, len(jobs), size):
            returned.append(self.launcher.launch(jobs[first : first + size], initial_job_idx=first))
            for job in returned[-1] if not isinstance(self.launcher, MemlabLauncher) else ():
                _ = job.return_value  # raises the exception of a failed job
        return returned

    def begin(self, jobs: Sequence[Sequence[str]]) -> None:
        from memlab.cli.compose import compose_batch
        from memlab.cli.experiments import begin_sweep, jobs_of_sweep

        jobs_of_sweep(self.config, list(compose_batch(self.hydra_context.config_loader, self.config, jobs)))
        begin_sweep(self.config)


def _words_by_key(overrides: Sequence[Override]) -> dict[str, list[str]]:
    """Return key -> its words of one value. A later word replaces an earlier one: the command line a study's."""
    words = {}
    for override in overrides:
        key = override.get_key_element()
        is_sweep = override.is_sweep_override()
        values = override.sweep_string_iterator() if is_sweep else [override.get_value_element_as_str()]
        words[key] = [f"{key}={value}" for value in values]
    return words
