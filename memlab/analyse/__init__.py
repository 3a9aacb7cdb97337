"""From run folders to answers. Reads run folders only; imports neither torch nor deepspeed nor Hydra."""
