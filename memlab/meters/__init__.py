"""Meters inside the ranks of any training command: what runs there, and the files that the ranks leave.

This package needs only the standard library and torch (Python 3.10, torch 2.4, transformers 4.45, or newer). Of memlab
it imports ``files/redaction.py`` and ``files/build_locks.py`` alone. All its imports are relative, because a command's
ranks load a copy of it under another name.

**Before the command starts**, the parent calls ``install.install(run_folder, MeterOptions(...))``, which makes::

    RUN_FOLDER/.attach/sitecustomize.py    the bootstrap, which Python imports at start
    RUN_FOLDER/.attach/options.json        options.MeterOptions
    RUN_FOLDER/.attach/memlab_attach/      a copy of this package (meters/) and of the two files

and starts the command with ``install.environment(os.environ, run_folder)``: the caller's environment, in which only
PYTHONPATH differs. The bootstrap hands on to the ``sitecustomize`` that it hides, takes its folder off ``sys.path``,
and waits for the first ``import torch``. ``python -I``, ``-E``, ``-S`` and a container that drops PYTHONPATH load
nothing: then no rank file appears.

**A rank** is a process that makes an optimizer. Data loader workers, launchers and servers make none and write nothing.
A process that fails before is a rank too if it began to load a model or to use a GPU. A rank's number is that of
torch.distributed, else the variable RANK, else 0. Rank N writes::

    RUN_FOLDER/rank{N}.json          whole or not at all; again after the first step, about every 10 s, and at its end
    RUN_FOLDER/rank{N}.steps.jsonl   one line for each optimizer step, as soon as the device has done the step

A second process that makes an optimizer under the same number (a command of two trainings) writes the same files into
``RUN_FOLDER/.attach/again/PID/``.

**rank{N}.json** has the keys of ``RankResult`` (bytes, seconds) and one more, ``attached``:

``memory_source``
    ``cuda_caching_allocator``, or ``host`` on a machine without a GPU. ``host``: only host memory and times are known;
    the figures of the allocator are ``null`` and the top-level ``phases`` are empty. ``live_tensors``: memlab's own
    training counts them on a CPU (training/live_tensors.py).
``status``, ``reason``, ``oom``
    ``ok``; ``gpu_oom``, ``host_oom``, ``infra``, ``failed`` after an exception; ``interrupted`` while the rank runs, so
    also after a kill. A rank that ended well without an optimizer step is ``failed: no optimizer step seen``. ``oom``:
    ``requested_bytes``, ``message``, ``phase``, ``step``, and ``where`` (``file:line`` in the user's code).
``peak_allocated_bytes``, ``peak_active_bytes``, ``peak_reserved_bytes``, ``num_alloc_retries``, ``num_ooms``
    From the start of the process (protocol ``cold``): the allocator's cache is never emptied. A training that starts
    over (session.py; memlab's own) counts from there on.
``phases``
    Phase -> ``peak_allocated_bytes``, ``peak_reserved_bytes``, ``end_allocated_bytes``, as in a run of memlab's own.
    ``load``, ``model_build``, ``engine_init`` and ``resume`` happen before or between steps. ``forward``, ``backward``,
    ``optimizer_step``, ``generate``, ``evaluate`` and ``save`` have the prefix ``first_`` the first time: in the first
    optimizer step, or in the first generation, evaluation or saving. A phase's figures leave out the phases inside it.
``warmup_seconds``, ``step_seconds``
    The first step, or as many as the options say; the others. A step lasts from the end of the step before to its own
    end, on the device's clock, without evaluation, saving, loading and resuming in between. Empty while the rank runs:
    its rows have the times.
``parameters``, ``trainable_parameters``, ``skipped_steps``, ``runtime``, ``timing``, ``unknown``
    As in ``RankResult``. ``timing``: ``launch_s`` (from the parent's start to torch's import), ``build_s``, ``init_s``,
    ``train_s``. ``unknown``: what could not be found out -> why.

``attached``, all of it what was found in the process, not translated into memlab's words:

``version``, ``pid``, ``rank``, ``local_rank``, ``world_size``, ``local_world_size``, ``protocol`` (``cold``)
``ended``
    ``running``, ``finished`` (the interpreter ended), ``stopped`` (by ``--steps``), ``exception`` (``failed_in``: the
    phase; ``where``), ``early`` (``exception`` in a prediction, after steps that are an answer: ``status``
    is ``ok``) or ``exit`` (``sys.exit`` with a code other than 0: ``exit_code``, ``where``). ``failed_at``: the time of
    the clock (seconds) when a rank failed: the first failure of several ranks is the reason of the run.
``at``
    Of a rank that runs: ``phase``, ``step`` and ``where`` it was when the file was written; else ``null``.
``steps``
    Number of optimizer steps that were done. ``micro_batches``: number of backward passes. ``recorded_steps``: number
    of the steps in which torch's memory history was recorded. ``profiled_steps``: the numbers of the steps in which
    torch's profiler ran. Both take longer: their ``seconds`` are not known.
``peak``
    Of the highest allocated bytes (on ``host``: of the highest resident set): ``step`` (from 1; ``null``: outside
    steps), ``phase``, ``where``, ``bytes``, and the row's ``samples``, ``tokens``, ``longest_sample`` if it is in a
    step.
``growth``
    Memory that grows over steps of equal shape, as allocated at their ends; ``null``: it does not. ``bytes_per_step``,
    ``steps_seen`` (over how many steps), ``last_step`` (that ran), ``end_step`` (the last one of the whole run:
    Trainer's, of DeepSpeed's schedule, of loops over ranges; ``null``: not known), and ``kept_by``, the variable that
    keeps more with each step (``null``: not found): ``name``, ``where`` (the line that puts tensors there), ``bound``
    (elements that it can have), ``full_at_step``, ``keeps_graph``, ``is_scalar``, ``is_emptied`` (elsewhere).
``phases``
    Phase -> ``count``, ``seconds`` (host clock, total), ``where`` (``file:line`` in the user's code at the highest
    peak), ``step`` of that peak, ``peak_allocated_bytes``, ``peak_active_bytes``, ``peak_reserved_bytes``,
    ``end_allocated_bytes``, ``used_bytes`` (the driver's figure for the device, highest seen), ``host_peak_bytes`` and
    ``host_rss_bytes``. The figures of a device are ``null`` on ``host``.
``other_devices``
    GPUs besides ``device`` on which this process allocated: ``device``; ``peak_allocated_bytes`` and
    ``peak_reserved_bytes`` since process start; ``device_used_bytes``, the driver's figure for the device, with the
    peak of reserved memory. In a record, those of a process that is no rank of several have entries of their own;
    ``is_gpu_of_process`` is ``true`` in all entries of the process.
``optimizers``
    Each: ``class`` (``module.Name``), ``defaults``, ``groups``, ``parameters``, ``dtypes``.
``models``
    Each module with parameters that is not part of another: ``class``, ``trained`` (an optimizer holds some of its
    parameters), ``parameters``, ``trainable_parameters``, ``convolution_parameters``, ``dtypes`` (dtype -> parameters),
    ``device``, ``config`` (of transformers), ``attention`` (``config._attn_implementation``),
    ``gradient_checkpointing``, ``adapters`` (peft's configurations by name), ``quantization``, ``wrappers``
    (DistributedDataParallel, FSDP, OptimizedModule, ...).
``deepspeed``
    One for each engine, those with an optimizer first: ``config`` (the JSON as the engine resolved it), ``zero`` (all
    keys of ``zero_optimization`` with their defaults), ``optimizer`` (the engine's wrapper class), ``micro_batch``,
    ``accumulation``, ``train_batch``.
``training_arguments``
    ``class`` and ``values`` (``to_dict``) of the last Trainer that trained. ``trainer``: its class.
``accelerate``
    ``distributed_type``, ``mixed_precision``, ``accumulation``, ``dynamo``, ``fsdp`` and the like of the Accelerator's
    state.
``datasets``
    What ``datasets`` read: each file's ``name``, ``path`` and ``bytes``.
``versions``
    Distribution -> version, of those of interest that the process has imported. ``python`` among them.
``environment``
    Variables that change memory or speed (the allocator's, NCCL's, OMP_NUM_THREADS, CUDA_VISIBLE_DEVICES, ...).
``script``
    ``path`` (relative to ``cwd``), ``sha256``, ``argv``, ``cwd``.
``modules``
    Path (relative to ``cwd``) -> sha256 of the modules that the script imported from its own folder or from ``cwd``.
``meter_errors``
    Failures of memlab's own code in this process, each once, as ``place: Exception: message``. The script went on.

The rank blanks the values under names that hold secrets, and all other secrets that memlab blanks (files/redaction.py),
before it writes.

**rank{N}.steps.jsonl**, one JSON object a line, in the order of the steps: ``step`` (from 1), ``seconds`` (``null``:
not known), ``micro_batches``, ``samples``, ``tokens`` (with padding: elements of ``input_ids``), ``real_tokens`` (those
that the attention mask keeps), ``longest_sample`` (tokens), ``padded_length`` (tokens of the longest sample with its
padding), ``largest_micro_batch`` (samples), ``peak_allocated_bytes``, ``peak_active_bytes``, ``peak_reserved_bytes``,
``alloc_retries`` and ``ooms`` of this step, ``host_peak_bytes``, ``phase`` (the one with the highest allocated bytes),
``phases`` (phase -> peak allocated, peak reserved bytes), ``skipped`` (an overflow skipped it), ``recorded`` (torch's
memory history was recorded). A figure that is not known is ``null``. The last line of a killed rank may be cut off.

**--steps N**: each rank raises ``SystemExit(0)`` in the user's thread after its N-th optimizer step, when all ranks
have reached it. ``finally`` blocks and ``atexit`` functions run; what follows the training loop does not. ``ended``
says ``stopped``. Ranks whose process ends otherwise cannot be stopped.

**How phases are detected.** In a plain loop the forward begins when a data loader gives a batch, when a wrapper's
forward is called, or after ``zero_grad``, and ends with ``backward``. An evaluation is what follows ``eval()`` of a
module that is trained, until it trains again. Optimizer steps without a backward between them are one step.
``torch.compile(optimizer.step)`` is one as well. A step inside of another function that torch.compile compiles calls
none of torch's hooks and is not seen.
"""
