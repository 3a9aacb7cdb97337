"""The text of PYTORCH_CUDA_ALLOC_CONF: what PyTorch takes is read, what it refuses is refused with what to write."""

import pytest

from memlab.core.allocator_conf import read
from memlab.core.errors import ConfigError

TAKEN = (
    "",
    "expandable_segments:True",
    " expandable_segments : True ",
    "expandable_segments:True,",
    "max_split_size_mb:64,garbage_collection_threshold:0.8",
    "max_non_split_rounding_mb:20,large_segment_size_mb:20",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,>:0]",
    "per_process_memory_fraction:0.17",
    "backend:cudaMallocAsync,release_lock_on_cudamalloc:True,pinned_num_register_threads:8",
)
REFUSED = {
    "expandable_segmants:True": "no option 'expandable_segmants'. Did you mean 'expandable_segments'?",
    "expandable_segments": "'expandable_segments' must be True or False, not ''.",
    "expandable_segments=True": "no option 'expandable_segments=True'. Did you mean 'expandable_segments'?",
    "expandable_segments:true": "'expandable_segments' must be True or False, not 'true'.",
    "max_split_size_mb:8": "'max_split_size_mb' must be a whole number of at least 20 MiB, not '8'.",
    "max_split_size_mb:1e3": "'max_split_size_mb' must be a whole number of at least 20 MiB, not '1e3'.",
    "max_split_size_mb:1_00": "'max_split_size_mb' must be a whole number of at least 20 MiB, not '1_00'.",
    f"max_split_size_mb:{2**64}": f"must be a whole number of at least 20 MiB, not '{2**64}'.",
    "garbage_collection_threshold:0_0.5": "'garbage_collection_threshold' must be between 0 and 1, not '0_0.5'.",
    "garbage_collection_threshold:1.5": "'garbage_collection_threshold' must be between 0 and 1, not '1.5'.",
    "garbage_collection_threshold:nan": "'garbage_collection_threshold' must be between 0 and 1, not 'nan'.",
    "per_process_memory_fraction:17": "'per_process_memory_fraction' must be from 0 to 1, not '17'.",
    "roundup_power2_divisions:3": "'roundup_power2_divisions' must be a power of two, or a list of them",
    "roundup_power2_divisions:[255:1,>:4]": "'roundup_power2_divisions' must be a power of two, or a list of them",
    "roundup_power2_divisions:[256:1": "'roundup_power2_divisions' must be a power of two, or a list of them",
    "backend:foo": "'backend' must be native or cudaMallocAsync, not 'foo'.",
}


@pytest.mark.parametrize("conf", TAKEN)
def test_what_pytorch_takes(config, conf):
    read(conf)
    assert config({"allocator.conf": conf}).allocator.conf == conf


@pytest.mark.parametrize(("conf", "message"), REFUSED.items(), ids=list(REFUSED))
def test_what_pytorch_refuses_never_composes(config, conf, message):
    with pytest.raises(ConfigError) as error:
        config({"allocator.conf": conf})
    assert str(error.value).startswith("'allocator.conf': ") and message in str(error.value)


def test_values_have_their_types():
    assert read("max_split_size_mb:64,expandable_segments:False,per_process_memory_fraction:1") == {
        "max_split_size_mb": 64,
        "expandable_segments": False,
        "per_process_memory_fraction": 1.0,
    }
