"""``hydra/launcher=memlab``, which passes all jobs of a sweep to memlab at once, and ``hydra/sweeper=memlab``.

Hydra imports this module at every start, also for tab completion. So heavy modules are imported only where used.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper, BasicSweeperConf
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher


@dataclass
class MemlabLauncherConf:
    _target_: str = "hydra_plugins.memlab_launcher.launcher.MemlabLauncher"


@dataclass
class MemlabSweeperConf(BasicSweeperConf):
    _target_: str = "hydra_plugins.memlab_launcher.launcher.MemlabSweeper"


for group, node in (("hydra/launcher", MemlabLauncherConf), ("hydra/sweeper", MemlabSweeperConf)):
    ConfigStore.instance().store(group=group, name="memlab", node=node, provider="memlab_launcher")


class MemlabLauncher(Launcher):
    def setup(self, *, hydra_context, task_function, config) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int):
        from memlab.cli.compose import compose_batch

        loader = self.hydra_context.config_loader
        return self.task_function.run_batch(self.config, list(compose_batch(loader, self.config, job_overrides)))


class MemlabSweeper(BasicSweeper):
    """Hydra's basic sweeper, but it writes nothing before all jobs of the sweep are composed, and never a secret."""

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        from memlab.cli.override_words import check_total, count_values

        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides([*self._parse_config(), *arguments])
        check_total(count_values(overrides))
        batches = self.split_arguments(overrides, self.max_batch_size)
        if not isinstance(self.launcher, MemlabLauncher):  # memlab's launcher itself composes all jobs before it writes
            self.begin(batches)
        returned: list[Sequence[JobReturn]] = []
        for batch in batches:
            returned.append(self.launcher.launch(batch, initial_job_idx=sum(map(len, returned))))
            for job in returned[-1]:
                _ = job.return_value  # raises the exception of a failed job
        return returned

    def begin(self, batches: Sequence[Sequence[Sequence[str]]]) -> None:
        from memlab.cli.compose import compose_batch, resolve
        from memlab.cli.experiments import begin_sweep, check_inputs

        words = [job for batch in batches for job in batch]
        check_inputs([resolve(job) for job in compose_batch(self.hydra_context.config_loader, self.config, words)])
        begin_sweep(self.config)
