"""Analysis of run folders: tables, diffs, fits, advice. Imports neither torch nor deepspeed nor Hydra."""
