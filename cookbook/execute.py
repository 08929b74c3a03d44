"""Execute notebooks in place, from top to bottom: python cookbook/execute.py NOTEBOOK …

What is written holds no timings, so that the same outputs make the same file. The kernel computes
in one thread: on a busy machine several wait for one another. It computes alike on all x86
processors, see `ARITHMETIC`. It imports what stands beside this file, wherever the notebook is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

# AVX2, which x86 processors have had for ten years. With more than that, sums of floats differ in
# their last digits, and numpy sorts equal numbers into another order.
ARITHMETIC = {
    "OMP_NUM_THREADS": "1",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512_SKX X86_V4 AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Haswell",  # of numpy and scipy
    "ATEN_CPU_CAPABILITY": "avx2",  # of torch, with the next two
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "AVX2",  # on processors of other makers than Intel it changes nothing
}
# They train a model on embeddings, or rank equal texts by them, so the last digit can change what
# they print. What is the same on processors of all makers takes twice as long.
LAST_DIGIT = {"03_reranker", "04_silence", "06_ratings"}


def execute(path: Path) -> None:
    """Execute one notebook in a fresh kernel; raises CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    arithmetic = ARITHMETIC | ({"MKL_CBWR": "COMPATIBLE"} if path.stem in LAST_DIGIT else {})
    paths = [str(Path(__file__).parent.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute(env={**os.environ, **arithmetic, "PYTHONPATH": os.pathsep.join(paths)})
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        execute(Path(argument))
