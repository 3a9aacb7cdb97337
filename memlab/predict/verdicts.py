"""Whether a predicted run fits, in a word."""

FITS, EDGE, DOES_NOT_FIT = "fits", "edge", "does_not_fit"
