"""The command line: `conformal-retrievers`, a module for each command or two.

Exit codes: 0 fine, 1 a guarantee that fails or tells nothing, 2 a wrong command, 3 an error, such
as bad data. Results go to standard output, as JSON with --json. Progress, warnings and errors go to
standard error.
"""

from typing import Annotated

from conformal_retrievers.extras import absent, require
from conformal_retrievers.version import __version__

require("cli", "typer", "rich")
import typer

from conformal_retrievers.cli import options
from conformal_retrievers.cli.answers import answers
from conformal_retrievers.cli.calibrate import calibrate
from conformal_retrievers.cli.claims import app as claims
from conformal_retrievers.cli.diagnose import diagnose
from conformal_retrievers.cli.evaluate import evaluate
from conformal_retrievers.cli.gate import gate
from conformal_retrievers.cli.judge import judge
from conformal_retrievers.cli.plan import plan
from conformal_retrievers.cli.show import show
from conformal_retrievers.cli.splits import try_splits
from conformal_retrievers.cli.terminal import Commands

OF_DEMO = ["bm25s", "regex", "sentencex", "jinja2", "matplotlib", "langchain_core"]
OF_DEMO += ["langchain_conformal", "llama_index.core", "llama_index.postprocessor.conformal"]
app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Filter retrieved snippets with a guarantee on the relevant ones."""


def demo(alpha: options.Alpha = 0.1) -> None:
    """Filter the docstrings of Python's standard library.

    Uses LangChain and LlamaIndex. Writes demo-calibration.json and demo-report.html here.
    """
    if wanted := absent(*OF_DEMO):
        raise ModuleNotFoundError(options.HELPS["demo needs"].format(" ".join(wanted)))
    from conformal_retrievers.cli.demo import FILE, PAGE, run

    options.check_out(FILE)
    options.check_out(PAGE)
    run(alpha)


for command in (judge, calibrate, answers, gate, show, evaluate, diagnose, plan, demo):
    app.command()(command)
app.command("try")(try_splits)
app.add_typer(claims, name="claims")
