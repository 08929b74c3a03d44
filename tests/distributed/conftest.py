"""One Ray cluster on this machine for all tests of this folder."""

import os
import shutil
import sys
import tempfile

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_AUTH_MODE"] = "disabled"  # it would write a token into the home folder


@pytest.fixture(scope="session")
def cluster():
    """Start a cluster with two CPUs, and return its address."""
    import ray

    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # its sockets need a short path
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # which its workers inherit
        context = ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 << 20,
            _temp_dir=folder,
            log_to_driver=False,
        )
    yield context.address_info["address"]
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
