"""Readers of judged queries in the files of other tools, one module a format."""
