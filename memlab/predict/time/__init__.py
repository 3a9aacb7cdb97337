"""Time: clocks of the host and of the streams over a trace, and the costs that they use."""
