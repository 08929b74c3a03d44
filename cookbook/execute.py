"""Execute notebooks in place, from top to bottom: python cookbook/execute.py NOTEBOOK …

What is written holds no timings, so that the same outputs make the same file. The kernel computes
in one thread: on a busy machine several wait for one another. It computes with AVX2, which every
x86 processor of the last ten years has: sums of floats differ in their last digits by what a
processor can add at once. It imports what stands beside this file, wherever the notebook is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ARITHMETIC = {
    "OMP_NUM_THREADS": "1",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512_SKX X86_V4 AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Haswell",  # of numpy and scipy
    "ATEN_CPU_CAPABILITY": "avx2",  # of torch, and what it calls
    "DNNL_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "AVX2",
}


def execute(path: Path) -> None:
    """Execute one notebook in a fresh kernel; raises CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    paths = [str(Path(__file__).parent.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute(env={**os.environ, **ARITHMETIC, "PYTHONPATH": os.pathsep.join(paths)})
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        execute(Path(argument))
