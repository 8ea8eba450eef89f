"""The data sets: sources, file formats, filters, splits and published counts.

Thresholds, filters and numbers of held-out users are those of Liang et al. (2018), which Steck (2019)
follows. The other MovieLens sets are treated like ML-20M.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mrfrec.errors import ParameterError

Form = Literal["csv", "dat", "tab", "netflix", "triplets"]  # of the original files


@dataclass(frozen=True)
class SplitFile:
    """MD5 of a file of a split that others made, and its number of rows without the header if known."""

    md5: str
    rows: int | None = None


@dataclass(frozen=True)
class DataSet:
    """A data set. Counts are published ones, or None."""

    name: str
    title: str
    page: str  # home page
    url: str | None  # of the archive; None if it cannot be downloaded directly
    archive: str
    md5: str | None  # of the archive, if published
    form: Form
    ratings: tuple[str, ...]  # file names of the ratings; * stands for numbers
    titles: tuple[str, ...] = ()  # file names of the titles, in the same folder or the one above
    encoding: str = "utf-8"  # of the titles
    inner: tuple[str, ...] = ()  # archives inside the archive
    min_value: float | None = None  # keep only rows with at least this value
    min_users: int = 0  # drop items with fewer users,
    min_items: int = 5  # then users with fewer items
    heldout: int = 10_000  # users for validation, and as many for test
    rows: int | None = None  # of the original
    events: int | None = None  # after filtering
    users: int | None = None
    items: int | None = None
    training_items: int | None = None  # of the training users
    split: dict[str, SplitFile] = field(default_factory=dict)  # files of vae_cf's notebook


def find(name: str) -> DataSet:
    """Return a data set that can be prepared, by name."""
    found = DATA_SETS.get(name) if isinstance(name, str) else None
    if found is None:
        raise ParameterError("name", f"one of {', '.join(DATA_SETS)}", name)
    return found


def _movielens(size: str, md5: str, **more: Any) -> DataSet:
    """Return a MovieLens data set; `more` overrides what differs from ML-20M."""
    name = f"ml-{size}"
    usual = DataSet(
        name, f"MovieLens {size.upper()}",
        page=f"https://grouplens.org/datasets/movielens/{size}/",
        url=f"https://files.grouplens.org/datasets/movielens/{name}.zip",
        archive=f"{name}.zip", md5=md5, form="csv",
        ratings=("ratings.csv",), titles=("movies.csv",), min_value=4,
    )  # fmt: skip
    return replace(usual, **more)


_ALL = (
    _movielens(
        "100k", "0e33842e24a9c977be4e0107933c0723", form="tab",
        ratings=("u.data",), titles=("u.item",), encoding="latin-1", heldout=50, rows=100_000,
    ),
    _movielens(
        "1m", "c4d9eecfca2ab87c1945afe126590906", form="dat",
        ratings=("ratings.dat",), titles=("movies.dat",), encoding="latin-1", heldout=500, rows=1_000_209,
    ),
    _movielens(
        "10m", "ce571fd55effeba0271552578f2648bd", form="dat",
        ratings=("ratings.dat",), titles=("movies.dat",),
        heldout=5_000, rows=10_000_054,
    ),
    _movielens(
        "20m", "cd245b17a1ae2cc31bb14903e1204af3", rows=20_000_263,
        events=9_990_682, users=136_677, items=20_720, training_items=20_108,
        # Liang et al. published the notebook that makes these files, but not the files. The sums are those of
        # ml-20m/pro_sg in commit 2992a60, with line ends of Unix, of a repository of yj4889 on GitHub:
        # A-Federated-Learning-Method-of-Variational-Autoencoders-for-Collaborative-Filtering-
        split={
            "unique_sid.txt": SplitFile("40d5cf9dcd12d3994f10b872795b115b"),
            "validation_te.csv": SplitFile("65da1e5a5662b68af218bbe7d4ea8a49", 142_514),
            "test_te.csv": SplitFile("f67dd335d8b9a370d7658aaa920d8109", 139_775),
        },
    ),
    _movielens("25m", "6b51fb2759a8657d3bfcbfc42b592ada", rows=25_000_095),
    _movielens("32m", "d472be332d4daa821edc399621853b57", rows=32_000_204),
    DataSet(
        "msd", "Million Song Dataset, taste profile",
        page="http://millionsongdataset.com/tasteprofile/",
        url="http://millionsongdataset.com/sites/default/files/challenge/train_triplets.txt.zip",
        archive="train_triplets.txt.zip", md5=None, form="triplets", ratings=("train_triplets.txt",),
        min_users=200, min_items=20, heldout=50_000, rows=48_373_586,
        events=33_633_450, users=571_355, items=41_140,
    ),
    DataSet(
        "netflix", "Netflix Prize",
        page="https://www.kaggle.com/datasets/netflix-inc/netflix-prize-data",
        url=None, archive="nf_prize_dataset.tar.gz", md5=None, form="netflix",
        ratings=("mv_*.txt", "combined_data_*.txt"),
        titles=("movie_titles.txt", "movie_titles.csv"), encoding="latin-1", inner=("training_set.tar",),
        min_value=4, heldout=40_000, rows=100_480_507, events=56_880_037, users=463_435, items=17_769,
    ),
)  # fmt: skip

DATA_SETS = {data_set.name: data_set for data_set in _ALL}
