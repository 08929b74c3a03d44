"""`--engine ray`: the commands on a cluster."""

from types import ModuleType

import typer

from conformal_retrievers.extras import require


def cluster(context: typer.Context, *takes: str) -> ModuleType | None:
    """Return the module `distributed` on a cluster, or None without an engine.

    Exits with 2 for an option that is not among those that the command takes with an engine.
    """
    address = context.params["address"]
    if context.params["engine"] is None:
        if address is not None:
            raise typer.BadParameter("--address is for --engine ray; give both")
        for value in context.params.values():
            if isinstance(value, str) and "://" in value:
                raise typer.BadParameter(f"{value} is a URL, for --engine ray; give a path")
        return None
    for name in context.params:
        source = context.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        if given and name not in (*takes, "engine", "address", "as_json"):
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"{option} is not for --engine ray; leave one of them out")
    require("ray", "fsspec", "pyarrow", "ray")
    from conformal_retrievers import distributed

    distributed.connect(address)
    return distributed
