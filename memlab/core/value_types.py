"""Types of single values in a run folder: names, bytes, counts, seconds."""

from typing import Annotated

from memlab.core.schema import LARGEST_WHOLE, Limits, Range

Name = Annotated[str, Limits(printable=True)]
Bytes = Annotated[int, Limits(range=Range(0, LARGEST_WHOLE))]
Count = Annotated[int, Limits(range=Range(0, LARGEST_WHOLE))]
Index = Annotated[int, Limits(range=Range(0, 1 << 16))]
"""A rank, or a number of ranks."""

Figure = Annotated[float, Limits(range=Range(-1e30, 1e30))]
"""A number of a run. No real figure exceeds these bounds; within them, a product of a few figures cannot overflow."""

Positive = Annotated[float, Limits(range=Range(1e-12, 1e30))]
"""A number that is safe to divide by: the seconds of a step, a rate."""

Seconds = Annotated[float, Limits(range=Range(0, 1e30))]

AtLeastOne = Annotated[int, Limits(range=Range(1, LARGEST_WHOLE))]

GpuBytes = Annotated[int, Limits(range=Range(1 << 20, LARGEST_WHOLE))]
"""Memory of a GPU."""

Dollars = Annotated[float, Limits(range=Range(0, 1e30))]

OrNone = Annotated[int, Limits(range=Range(-1, LARGEST_WHOLE))]
"""A number of something; -1: of nothing."""
