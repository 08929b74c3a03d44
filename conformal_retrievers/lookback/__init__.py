"""Confidence in answers from attention: lookback ratios, a classifier of them, and flags."""
