"""Time: clocks of the host and of the streams over a trace, and the fitted costs that they use.

``clocks.py`` is the model, ``step_time.py`` the predicted time with its error. ``calibration.py`` is the stored costs,
``calibrate.py`` and ``cost_fit.py`` fit them to measured runs, ``calibration_choice.py`` chooses the ones of a
prediction.
"""
