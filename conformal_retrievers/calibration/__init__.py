"""Calibrations: what is guaranteed, the value that is saved, its file and its statement."""
