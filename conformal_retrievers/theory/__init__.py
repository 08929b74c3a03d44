"""Arrays in, numbers out: ranks and thresholds, bounds, intervals, tests of exchangeability."""
