"""Computations in a copy of the process."""

import os

import pytest

from memlab.system.process_copy import computed_in_a_copy


def test_a_copy_computes_beside_this_process():
    seen = []
    result = computed_in_a_copy(lambda: (seen.append(1), os.getpid()))
    assert result()[1] != os.getpid() and seen == []


def test_what_a_copy_cannot_compute_is_computed_here():
    own = os.getpid()
    assert computed_in_a_copy(lambda: os.getpid() if os.getpid() == own else os.kill(os.getpid(), 9))() == own


def test_an_error_is_raised_here(capfd):
    result = computed_in_a_copy(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        result()
