"""``hydra/launcher=memlab``: hands the whole batch of jobs to memlab.launch.sweep. ``hydra/sweeper=memlab`` beside it.

Hydra imports this module whenever it starts, tab completion included, so everything heavy is imported when it is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper, BasicSweeperConf
from hydra.core.config_store import ConfigStore
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
        from memlab.compose import compose_batch
        from memlab.hydra_app import run_batch

        loader = self.hydra_context.config_loader
        return run_batch(self.config, list(compose_batch(loader, self.config, job_overrides)))


class MemlabSweeper(BasicSweeper):
    """Hydra's own, but for one thing: it composes every job only to see that this can be done."""

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        if not isinstance(self.launcher, MemlabLauncher):  # which composes all jobs before it runs any
            super().validate_batch_is_legal(batch)
