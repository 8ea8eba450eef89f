"""`mrfrec paper datasets`: prepare the data sets of the paper from their archives."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from mrfrec.cli.options import Folder, new_app
from mrfrec.errors import DataError

datasets_app = new_app("datasets", "List, prepare and verify the data sets of the paper.")

Name = Annotated[str, Argument(help="A name from mrfrec paper datasets list.", metavar="NAME")]


@datasets_app.command("list")
def list_data_sets(folder: Folder = None) -> None:
    """List the data sets, and which of them are prepared.

    \b
    Examples:
      mrfrec paper datasets list
    """
    from mrfrec import datasets
    from mrfrec.cli.show import print_table
    from mrfrec.core.memory import human_bytes

    rows = [
        (one.name, one.title, "yes" if one.prepared else "no", one.size and human_bytes(one.size))
        for one in datasets.available(folder)
    ]
    print_table(rows, ["name", "title", "prepared", "size"])


@datasets_app.command()
def prepare(
    name: Name,
    source: Annotated[
        Path | None,
        Option("--from", metavar="PATH", help="The archive, the folder it unpacks to, or the ratings file."),
    ] = None,
    folder: Folder = None,
    vae_cf: Annotated[
        Path | None,
        Option("--vae-cf", metavar="FOLDER", help="Also write the split in the format of vae_cf's notebook."),
    ] = None,
) -> None:
    """Prepare a data set for use.

    Reads the original files, filters as in the published experiments, and writes one Parquet file. Without
    --from the archive is downloaded if its owner allows it. A data set that is already prepared is kept.

    \b
    Examples:
      mrfrec paper datasets prepare ml-20m
      mrfrec paper datasets prepare ml-20m --from ml-20m.zip --vae-cf pro_sg
      mrfrec paper datasets prepare netflix --from nf_prize_dataset.tar.gz
    """
    from mrfrec import datasets
    from mrfrec.cli.show import note, progress_bar, size_of

    with progress_bar() as progress:
        path = datasets.prepare(name, source, folder, progress)
    note(f"{name} is prepared: {path} ({size_of(path)})")
    if vae_cf is not None:
        for file in datasets.write_vae_cf(name, vae_cf, folder):
            note(f"wrote {file} ({size_of(file)})")


@datasets_app.command()
def verify(name: Name, folder: Folder = None) -> None:
    """Compare a prepared data set with published numbers.

    Checks the counts after filtering, the items of the training users and the files of the split, as far as
    these are published.

    \b
    Examples:
      mrfrec paper datasets verify ml-20m
    """
    from mrfrec import datasets
    from mrfrec.cli.show import note, print_table

    checks = datasets.verify(name, folder)
    rows = [(check.what, *check.texts, "yes" if check.ok else "NO") for check in checks]
    print_table(rows, ["", "expected", "found", "same"])
    wrong = [check.what for check in checks if not check.ok]
    if wrong:
        raise DataError(
            f"{len(wrong)} of {len(checks)} checks of {name} failed, the first: {wrong[0]}. Prepare it again "
            "from its archive: mrfrec paper datasets prepare."
        )
    if not any(isinstance(check.expected, str) or check.expected for check in checks):
        note(f"nothing is published about {name}: only its consistency was checked")
