"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="A packaged recipe, a YAML file or a run folder.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes to the config, such as optimizer.lr=0.1")
]
