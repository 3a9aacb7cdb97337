"""A figure that cannot be told does not end what it stands beside."""

from memlab.core.record import MODEL_FLOPS, left_out


def test_the_reason_is_kept_and_nothing_is_raised():
    unknown = {}
    with left_out(MODEL_FLOPS, unknown):
        raise AttributeError("'MambaConfig' object has no attribute 'num_attention_heads'")
    assert unknown == {MODEL_FLOPS: "AttributeError: 'MambaConfig' object has no attribute 'num_attention_heads'"}


def test_what_can_be_told_leaves_no_reason():
    unknown = {}
    with left_out(MODEL_FLOPS, unknown):
        pass
    assert unknown == {}
