"""Fit one model of another library and rank items with it, in that library's own environment.

    python peer_models.py job.json

peers.py writes the job: library, model, parameters, the files of the training matrix and of the
histories, and the number of items to recommend. The lists go to an .npy file (histories × k, −1 for empty
places), and seconds, memory and file size to a .json file. Only numpy, scipy and the library are imported.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Lists = npt.NDArray[np.int32]
_AT_ONCE = 512  # histories scored at a time
_SEED = 98765


class Peer:
    """A model of a library: parameters in, lists out."""

    model: Any

    def __init__(self, **parameters: Any) -> None:
        self.parameters = parameters

    def warm_up(self, X: sp.csr_matrix) -> None:
        """Import and compile what the library needs, with a tiny fit that is not counted as training.

        `X` is the matrix that is fitted to afterwards.
        """
        self.fit(sp.random(400, 200, 0.1, "csr", np.float32, random_state=_SEED))

    def fit(self, X: sp.csr_matrix) -> None:
        raise NotImplementedError

    def recommend(self, shown: sp.csr_matrix, k: int) -> Lists:
        """Return the k best items of each history that are not in it, best first."""
        random = np.random.default_rng(_SEED)
        lists = np.full((shown.shape[0], k), -1, np.int32)
        for start in range(0, shown.shape[0], _AT_ONCE):
            part = shown[start : start + _AT_ONCE]
            lists[start : start + _AT_ONCE] = top(self.scores(part), part, k, random)
        return lists

    def scores(self, shown: sp.csr_matrix) -> npt.NDArray[Any]:
        """Return the scores of all items, histories × items; nan for items that cannot be scored."""
        raise NotImplementedError

    def save(self, path: Path) -> bool:
        """Save the fitted model; return whether the library or its weights can be saved without pickling."""
        return False


def top(scores: npt.NDArray[Any], shown: sp.csr_matrix, k: int, random: np.random.Generator) -> Lists:
    """Return the k best items of each row that are not shown; equal scores come at random.

    By index, ids that go with popularity would help models that know nothing of most items.
    """
    scores = np.where(np.isnan(scores), -np.inf, scores)
    scores[np.repeat(np.arange(len(scores)), np.diff(shown.indptr)), shown.indices] = -np.inf
    k_th = -np.partition(-scores, k - 1, axis=1)[:, k - 1 : k]
    lists = np.full((len(scores), k), -1, np.int32)
    for row, (values, least) in enumerate(zip(scores, k_th[:, 0], strict=True)):
        near = np.flatnonzero((values >= least) & (values > -np.inf))
        best = near[np.lexsort((random.random(len(near)), -values[near]))][:k]
        lists[row, : len(best)] = best
    return lists


class Own(Peer):
    """A model of mrfrec. `l2_times` multiplies what its `l2="auto"` stands for."""

    def warm_up(self, X: sp.csr_matrix) -> None:
        from mrfrec import MRF, compile_ahead
        from mrfrec_lab.models import build

        parameters = dict(self.parameters)
        factor = parameters.pop("l2_times", 1.0)
        self.model = build(parameters.pop("kind"), parameters)
        if isinstance(self.model, MRF):
            compile_ahead()
        else:
            super().warm_up(X)
        if factor != 1:
            # The plan of a fit says what "auto" stands for; a small one has the same.
            small = MRF(**{**self.model.parameters, "rank": 0, "sparsity": 2 / X.shape[1]})
            self.model.set_params(l2=factor * small.fit(sp.csr_array(X)).plan_.l2)

    def fit(self, X: sp.csr_matrix) -> None:
        self.model.fit(sp.csr_array(X))

    def recommend(self, shown: sp.csr_matrix, k: int) -> Lists:
        lists: Lists = self.model.top_k(sp.csr_array(shown), k, ties="popularity")[0]
        return lists

    def save(self, path: Path) -> bool:
        self.model.save(path)
        return True


class Sansa(Peer):
    """SANSA, without the items that nobody has: it fails if the last item is one."""

    def fit(self, X: sp.csr_matrix) -> None:
        import sansa

        factorizer = getattr(sansa, f"{self.parameters['factorizer']}GramianFactorizerConfig")
        self.model = sansa.SANSA(
            sansa.SANSAConfig(
                l2=self.parameters["l2"],
                weight_matrix_density=self.parameters["density"],
                gramian_factorizer_config=factorizer(),
                lower_triangle_inverter_config=sansa.UMRUnitLowerTriangleInverterConfig(),
            )
        )
        self.used = np.flatnonzero(np.bincount(X.indices, minlength=X.shape[1]))
        self.model.fit(X[:, self.used])

    def scores(self, shown: sp.csr_matrix) -> npt.NDArray[Any]:
        # SANSA.recommend fails for histories that reach fewer than k items.
        scores = np.full(shown.shape, np.nan, np.float32)
        scores[:, self.used] = self.model.forward(shown[:, self.used]).toarray()
        return scores

    def save(self, path: Path) -> bool:
        for number, weights in enumerate(self.model.weights):
            sp.save_npz(path.with_suffix(f".{number}.npz"), weights, compressed=False)
        return True


class ImplicitModel(Peer):
    """A model of implicit, with one BLAS thread, as implicit recommends: it has threads of its own."""

    def build(self) -> Any:
        raise NotImplementedError

    def fit(self, X: sp.csr_matrix) -> None:
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1, "blas"):
            self.model = self.build()
            self.model.fit(X, show_progress=False)

    def recommend(self, shown: sp.csr_matrix, k: int) -> Lists:
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1, "blas"):
            lists, _ = self.model.recommend(np.arange(shown.shape[0]), shown, N=k, recalculate_user=True)
        return np.asarray(lists, np.int32)

    def save(self, path: Path) -> bool:
        self.model.save(str(path.with_suffix(".npz")))
        return True


class ImplicitALS(ImplicitModel):
    def build(self) -> Any:
        from implicit.cpu.als import AlternatingLeastSquares

        return AlternatingLeastSquares(**self.parameters, random_state=_SEED)


class ImplicitBM25(ImplicitModel):
    def build(self) -> Any:
        from implicit.nearest_neighbours import BM25Recommender

        return BM25Recommender(**self.parameters)


class LensKit(Peer):
    """A scorer of LensKit, asked with histories: the users need not be known from training."""

    def scorer(self) -> Any:
        raise NotImplementedError

    def fit(self, X: sp.csr_matrix) -> None:
        import pandas as pd
        from lenskit.data import ItemList, from_interactions_df
        from lenskit.training import TrainingOptions

        pairs = X.tocoo()
        self.items = ItemList(item_ids=np.arange(X.shape[1]))
        self.model = self.scorer()
        table = pd.DataFrame({"user_id": pairs.row, "item_id": pairs.col})
        self.model.train(from_interactions_df(table), TrainingOptions(rng=_SEED))

    def scores(self, shown: sp.csr_matrix) -> npt.NDArray[Any]:
        from lenskit.data import ItemList, RecQuery

        return np.array(
            [
                self.model(RecQuery(user_items=ItemList(item_ids=had)), self.items).scores()
                for had in np.split(shown.indices, shown.indptr[1:-1])
            ]
        )


class LensKitALS(LensKit):
    def scorer(self) -> Any:
        from lenskit.als import ImplicitMFScorer

        return ImplicitMFScorer(**self.parameters)


class LensKitItemKNN(LensKit):
    def scorer(self) -> Any:
        from lenskit.knn import ItemKNNScorer

        return ItemKNNScorer(feedback="implicit", **self.parameters)


class LensKitSLIM(LensKit):
    def scorer(self) -> Any:
        from lenskit.knn import SLIMScorer

        return SLIMScorer(**self.parameters)


class Irspack(Peer):
    """A model of irspack with item-item weights."""

    def recommender(self) -> Any:
        raise NotImplementedError

    def fit(self, X: sp.csr_matrix) -> None:
        self.model = self.recommender()(X, **self.parameters).learn()

    def scores(self, shown: sp.csr_matrix) -> npt.NDArray[Any]:
        return np.asarray(self.model.get_score_cold_user(shown))

    def save(self, path: Path) -> bool:
        weights = self.model.W
        if sp.issparse(weights):
            sp.save_npz(path.with_suffix(".npz"), weights, compressed=False)
        else:
            np.save(path.with_suffix(".npy"), np.asarray(weights))
        return True


class IrspackEASE(Irspack):
    def recommender(self) -> Any:
        from irspack.recommenders import DenseSLIMRecommender

        return DenseSLIMRecommender


class IrspackSLIM(Irspack):
    def recommender(self) -> Any:
        from irspack.recommenders import SLIMRecommender

        return SLIMRecommender


MODELS: dict[str, dict[str, type[Peer]]] = {
    "mrfrec": dict.fromkeys(
        ("Popularity", "item-kNN", "WMF", "SLIM", "fsSLIM", "EASE", "MRF()", "MRF, tuned"), Own
    ),
    "sansa": {"SANSA (CHOLMOD)": Sansa, "SANSA (ICF)": Sansa},
    "implicit": {"ALS": ImplicitALS, "BM25": ImplicitBM25},
    "lenskit": {"ALS": LensKitALS, "item-kNN": LensKitItemKNN, "SLIM": LensKitSLIM},
    "irspack": {"EASE": IrspackEASE, "SLIM": IrspackSLIM},
}


def peak_memory() -> int:
    """Return the most memory this process has used so far, in bytes."""
    # Not getrusage: its maximum starts with that of the process that started this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))


def file_size(model: Peer) -> int | None:
    with TemporaryDirectory() as folder:
        if not model.save(Path(folder) / "model"):
            return None
        return sum(file.stat().st_size for file in Path(folder).iterdir())


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Fit, rank, and write the lists; return what was measured."""
    X, shown = (sp.csr_matrix(sp.load_npz(job[name])).astype(np.float32) for name in ("training", "shown"))
    model = MODELS[job["library"]][job["model"]](**job["parameters"])
    model.warm_up(X)
    start, cpu = time.perf_counter(), time.process_time()
    model.fit(X)
    found = {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "peak_bytes": peak_memory(),
        "version": version(job["library"]),
    }
    start = time.perf_counter()
    lists = model.recommend(shown, job["k"])
    found["ranking_seconds"] = time.perf_counter() - start
    np.save(job["lists"], lists)
    return found | {"file_bytes": file_size(model) if job["save"] else None}


def main(arguments: list[str]) -> None:
    job = json.loads(Path(arguments[0]).read_text())
    Path(job["measured"]).write_text(json.dumps(work(job)))


if __name__ == "__main__":
    main(sys.argv[1:])
