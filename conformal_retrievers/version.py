"""The version of conformal_retrievers, written here alone."""

__version__ = "0.1.0"
