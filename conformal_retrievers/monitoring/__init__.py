"""Filters in operation: events, the log of them, and alarms over live traffic."""
