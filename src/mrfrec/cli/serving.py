"""The command serve. docs/cli.md is generated from the texts here."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from mrfrec.errors import ParameterError


def serve(
    models: Annotated[
        list[str], Argument(help="Model files, also with names: shop=shop.mrf.", metavar="MODEL")
    ],
    host: Annotated[str, Option(metavar="ADDRESS", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, Option(metavar="N", help="Port to listen at.")] = 8000,
    workers: Annotated[int, Option(metavar="N", help="Number of processes.")] = 1,
    default: Annotated[
        str | None,
        Option(metavar="NAME", help="Model that answers where none is named.", show_default="the first"),
    ] = None,
    split: Annotated[
        str | None, Option(metavar="SHARES", help="Shares of visitors by model: a=0.9,b=0.1.")
    ] = None,
) -> None:
    """Serve models over HTTP: an API and a page.

    A model file that is replaced, for example by mrfrec nightly, is opened, checked and answers from then on.

    \b
    Examples:
      mrfrec serve shop.mrf
      mrfrec serve a=shop.mrf b=new.mrf --split a=0.9,b=0.1 --workers 2
    """
    from mrfrec.cli.show import note
    from mrfrec.service.server import serve as run

    named = dict(_named(model) for model in models)
    if len(named) < len(models):
        raise ParameterError("MODEL", "models with different names", " ".join(models), "Say name=FILE.")
    note(f"http://{host}:{port}")
    run(named, host=host, port=port, workers=workers, default=default, split=_shares(split))


def _named(text: str) -> tuple[str, Path]:
    name, mark, path = text.partition("=")
    return (name, Path(path)) if mark and name and path else (Path(text).stem, Path(text))


def _shares(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    try:
        return {name: float(share) for name, _, share in (part.partition("=") for part in text.split(","))}
    except ValueError:
        raise ParameterError("--split", "shares by model, such as a=0.9,b=0.1", text) from None
