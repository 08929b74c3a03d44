"""The arguments that several benchmarks take."""

import argparse
import os
from pathlib import Path


def parser_of(module: str | None, text: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the docstring of a module, in its lines."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=module, description=text, formatter_class=form)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add --data, which must be given unless $CONFORMAL_DATA is set."""
    data = os.environ.get("CONFORMAL_DATA")
    text = "folder that holds the data sets, one folder each; default: $CONFORMAL_DATA"
    parser.add_argument("--data", type=Path, default=data, required=data is None, help=text)


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Add --cache."""
    text = "folder that keeps embeddings; default: a temporary one"
    parser.add_argument("--cache", type=Path, help=text)
