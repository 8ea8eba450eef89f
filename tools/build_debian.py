"""Build the Debian data set from Debian's package index.

python tools/build_debian.py [-o FILE]

A user is a source package of Debian 12, an item a package it is built with. The index is downloaded with apt
from the mirror configured for that release and verified with Debian's keys. apt's own settings and lists do
not change.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl

from mrfrec.io.atomic import writing

RELEASE = "bookworm"
ARCHITECTURE = "amd64"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
FIELDS = ("Build-Depends", "Build-Depends-Arch", "Build-Depends-Indep")
LEAST = 5  # minimum number of pairs per user and per item
OUTPUT = Path(__file__).parents[1] / "src" / "mrfrec" / "datasets" / "debian.parquet"

Stanza = dict[str, str]


def fetch(folder: Path) -> tuple[Path, Path]:
    """Download the files `Sources` and `Packages` of the release, with apt's state in `folder`."""
    mirrors = _apt(
        "apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI)",
        "Created-By: Packages", f"Release: {RELEASE}", "Component: main",
    ).split()  # fmt: skip
    if not mirrors:
        sys.exit(f"apt on this machine has no source for the component main of {RELEASE}: add one")

    folder.chmod(0o755)  # when run as root, apt downloads as the user _apt
    (folder / "lists" / "partial").mkdir(parents=True)
    sources, settings = folder / "sources.list", folder / "apt.conf"
    sources.write_text(
        f"deb [target=Packages arch={ARCHITECTURE} signed-by={KEYRING}] {mirrors[0]} {RELEASE} main\n"
        f"deb-src [target=Sources signed-by={KEYRING}] {mirrors[0]} {RELEASE} main\n"
    )
    # Copy only the machine's network settings: its hooks would act on the machine.
    settings.write_text(f"""{_apt("apt-config", "dump", "Acquire")}
Acquire::GzipIndexes "false";
APT::Update::Error-Mode "any";
Dir::Cache "{folder}";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "{sources}";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "{folder}/lists";
""")
    _apt("apt-get", "update", settings=settings)
    files = _apt("apt-get", "indextargets", "--format", "$(CREATED_BY) $(FILENAME)", settings=settings)
    paths = dict(line.split(" ", 1) for line in files.splitlines())
    return Path(paths["Sources"]), Path(paths["Packages"])


def _apt(*command: str, settings: Path | None = None) -> str:
    environment = os.environ | ({"APT_CONFIG": str(settings)} if settings else {})
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def stanzas(lines: Iterable[str]) -> Iterator[Stanza]:
    """Yield the stanzas of a deb822 file as dicts; continuation lines stay separate lines of the value."""
    stanza: Stanza = {}
    field = ""
    for line in lines:
        line = line.rstrip()
        if not line:
            if stanza:
                yield stanza
            stanza = {}
        elif line[0].isspace():
            stanza[field] += "\n" + line.strip()
        else:
            field, _, value = line.partition(":")
            stanza[field] = value.strip()
    if stanza:
        yield stanza


def names(relation: str) -> Iterator[str]:
    """Yield the package names of a dependency field; of alternatives, the first.

    A clause that applies only to some build profile, such as `<cross>`, is left out: an ordinary build does
    not need it. A clause that a profile can turn off, such as `<!nocheck>`, counts.
    """
    for clause in relation.split(","):
        first = re.sub(r"\(.*?\)|\[.*?\]", "", clause.partition("|")[0], flags=re.DOTALL)
        profiles = [profile.split() for profile in re.findall(r"<(.*?)>", first, flags=re.DOTALL)]
        ordinary = not profiles or any(all(term.startswith("!") for term in terms) for terms in profiles)
        name = re.match(r"\s*([^\s:<]+)", first)
        if name and ordinary:
            yield name[1]


def titles(packages: Iterable[Stanza]) -> dict[str, str]:
    """Return the short description of each package; for a virtual one, that of its first provider by name."""
    real: dict[str, str] = {}
    provider: dict[str, str] = {}
    for package in packages:
        name = package["Package"]
        real[name] = package["Description"].partition("\n")[0]
        for virtual in names(package.get("Provides", "")):
            provider[virtual] = min(name, provider.get(virtual, name))
    return {virtual: real[name] for virtual, name in provider.items()} | real


def core(pairs: pl.DataFrame, least: int) -> pl.DataFrame:
    """Return the largest subset of the pairs in which every user and every item has at least `least`."""
    while True:
        kept = pairs.filter(pl.len().over("user") >= least, pl.len().over("item") >= least)
        if kept.height == pairs.height:
            return kept
        pairs = kept


def table(sources: Iterable[Stanza], packages: Iterable[Stanza], least: int = LEAST) -> pl.DataFrame:
    """Return user, item and title, sorted by user and item; the title stands in the item's first row only."""
    # The index lists the versions of a source from old to new; the newest wins.
    needs = {
        source["Package"]: {name for field in FIELDS for name in names(source.get(field, ""))}
        for source in sources
    }
    pairs = pl.DataFrame(
        [(user, item) for user, items in needs.items() for item in items],
        schema={"user": pl.String, "item": pl.String},
        orient="row",
    )
    title = pl.col("item").replace_strict(titles(packages), default=None, return_dtype=pl.String)
    return (
        core(pairs, least)
        .sort("user", "item")
        .with_columns(title=pl.when(pl.col("item").is_first_distinct()).then(title))
    )


def write(data: pl.DataFrame, path: Path) -> None:
    """Write the file atomically, with the strongest compression."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as unfinished:
        data.write_parquet(
            unfinished, compression="zstd", compression_level=22, statistics=False, row_group_size=data.height
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=OUTPUT, help="default: %(default)s")
    output: Path = parser.parse_args().output

    with tempfile.TemporaryDirectory() as folder:
        sources, packages = fetch(Path(folder))
        with sources.open(encoding="utf-8") as source_lines, packages.open(encoding="utf-8") as package_lines:
            data = table(stanzas(source_lines), stanzas(package_lines))
    write(data, output)

    users, items, titled = data["user"].n_unique(), data["item"].n_unique(), data["title"].count()
    sys.stdout.write(
        f"{output}: {data.height:,} pairs of {users:,} source packages and {items:,} packages they are built "
        f"with, {titled:,} of these with a title; {output.stat().st_size:,} bytes.\n"
    )


if __name__ == "__main__":
    main()
