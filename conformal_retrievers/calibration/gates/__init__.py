"""Whether a query is answered at all: silence, calibrated, in front of a filter."""
