"""Optimizers that DeepSpeed and transformers know by name, with their hyperparameters and packages.

Sources: ``deepspeed/runtime/config.py`` (DEEPSPEED_OPTIMIZERS) and ``runtime/engine.py`` (_configure_basic_optimizer)
of DeepSpeed 0.19.8; ``transformers/training_args.py`` (OptimizerNames) and ``trainer_optimizer.py`` of transformers
5.23.
"""

DEEPSPEED = {
    "adagrad": ("eps",),
    "adam": ("betas", "eps"),
    "adamw": ("betas", "eps"),
    "lamb": ("betas", "eps"),
    "lion": ("betas",),
    "muadam": ("betas", "eps"),
    "muadamw": ("betas", "eps"),
    "musgd": (),
    "muon": ("betas", "eps"),
}
"""Name -> the hyperparameters that the optimizer takes besides ``lr`` and ``weight_decay``. For muon they apply to the
Adam that trains the parameters that are not matrices."""

NOT_LIKE_ADAM = {
    **dict.fromkeys(("adafactor", "sgd", "adagrad", "rmsprop", "grokadamw", "schedule_free_sgd"), ()),
    **dict.fromkeys(("rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit"), ()),
    **dict.fromkeys(("lion_8bit", "lion_32bit", "paged_lion_8bit", "paged_lion_32bit"), ("betas",)),
}
"""transformers' name -> which of ``betas`` and ``eps`` Trainer gives the optimizer, where these are not both."""

TORCH_ADAM = ("adam", "adamw", "muon")
"""DeepSpeed's optimizers that can use torch's Adam (``torch_adam``), which needs no compiler."""

OF_TRANSFORMERS = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop")
"""transformers' names for the optimizers of torch and of transformers itself."""

OF_PACKAGES = {
    "bitsandbytes": (
        *("adamw_bnb_8bit", "adamw_8bit", "ademamix", "ademamix_8bit", "lion_8bit", "lion_32bit", "paged_adamw_32bit"),
        *("paged_adamw_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit", "paged_lion_32bit", "paged_lion_8bit"),
        *("rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit"),
    ),
    "torchao": ("adamw_torch_4bit", "adamw_torch_8bit"),
    "torchdistx": ("adamw_anyprecision",),
    "grokadamw": ("grokadamw",),
    "optimi": ("stable_adamw",),
    "schedulefree": ("schedule_free_radam", "schedule_free_adamw", "schedule_free_sgd"),
}
"""Package (its import name) -> transformers' names for its optimizers."""

PYPI = {"optimi": "torch-optimi"}
"""Import name of a package -> its name on PyPI, if the two differ."""

LOW_RANK = (
    *("galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise"),
    *("galore_adamw_8bit_layerwise", "galore_adafactor_layerwise", "apollo_adamw", "apollo_adamw_layerwise"),
)
FUSED_WITH_BACKWARD = ("lomo", "adalomo")
OTHER_DEVICES = ("adamw_torch_xla", "adamw_torch_npu_fused")
"""Optimizers of transformers that do not train under DeepSpeed, by kind; memlab/rules/optimizer.py says why."""

NAMES = {
    "deepspeed": tuple(DEEPSPEED),
    "transformers": (
        *OF_TRANSFORMERS,
        *(name for names in OF_PACKAGES.values() for name in names),
        *(*LOW_RANK, *FUSED_WITH_BACKWARD, *OTHER_DEVICES),
    ),
}
"""``optimizer.source`` -> valid values of ``optimizer.name``. DeepSpeed ignores the case of its names."""


def taken(source: str, name: str) -> tuple[str, ...]:
    """Return which of the hyperparameters ``betas`` and ``eps`` an optimizer is given."""
    return DEEPSPEED[name.lower()] if source == "deepspeed" else NOT_LIKE_ADAM.get(name, ("betas", "eps"))


def package_of(source: str, name: str) -> str | None:
    """Return the package that provides an optimizer; ``None`` for optimizers of DeepSpeed, transformers and torch."""
    if source == "deepspeed":
        return None
    return next((package for package, names in OF_PACKAGES.items() if name in names), None)
