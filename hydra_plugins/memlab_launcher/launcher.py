"""``hydra/launcher=memlab``: hands the whole batch of jobs to memlab.launch.sweep.

Hydra imports this module whenever it starts, tab completion included, so everything heavy is imported when it is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.config_store import ConfigStore
from hydra.plugins.launcher import Launcher


@dataclass
class MemlabLauncherConf:
    _target_: str = "hydra_plugins.memlab_launcher.launcher.MemlabLauncher"


ConfigStore.instance().store(group="hydra/launcher", name="memlab", node=MemlabLauncherConf, provider="memlab_launcher")


class MemlabLauncher(Launcher):
    def setup(self, *, hydra_context, task_function, config) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int):
        from memlab.hydra_app import run_batch

        loader = self.hydra_context.config_loader
        return run_batch(self.config, [loader.load_sweep_config(self.config, list(words)) for words in job_overrides])
