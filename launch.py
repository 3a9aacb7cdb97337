"""Measure or predict one experiment, or with -m a sweep of them: python launch.py --help"""

from memlab.cli.main import launch

if __name__ == "__main__":
    launch()
