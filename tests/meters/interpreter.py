"""The interpreter that measured scripts run with: the tests' own, or another one with other versions (make oldest)."""

import os
import sys

PYTHON = os.environ.get("MEMLAB_TEST_PYTHON", sys.executable)
