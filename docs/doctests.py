"""Examples of docstrings as blocks of code, which Markdown would take for quotations."""

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"^([ ]*)>>> .*\n?(?:^\1\S.*\n?|^\1 +\S.*\n?)*", re.M)


class Doctests(Extension):
    """Fences what stands between `>>>` and the next empty line."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Fence the examples of one docstring."""
        if obj.docstring and ">>> " in obj.docstring.value:
            obj.docstring.value = EXAMPLE.sub(
                lambda found: f"{found[1]}```pycon\n{found[0].rstrip()}\n{found[1]}```\n",
                obj.docstring.value,
            )
