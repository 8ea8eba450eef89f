"""The layout holds: who may import whom, one sorted list of public names, one tree of errors."""

import ast
import inspect
import pickle
import re
from pathlib import Path

import mrfrec
from mrfrec import errors

SOURCE = Path(mrfrec.__file__).parent
HOME_OF = {
    "numba": {
        f"core/kernels/{room}.py"
        for room in ("compile", "intrinsics", "rows", "pattern", "blocks", "ranking")
    },
    "llvmlite": {"core/kernels/intrinsics.py"},
    "threadpoolctl": {"core/resources.py"},
    "polars": {f"io/{room}.py" for room in ("sources", "rows", "tables", "frames")}
    | {"datasets/originals.py"},
    "narwhals": {f"io/{room}.py" for room in ("sources", "frames")},
    "safetensors": {"io/artifact.py"},
    "typer": {f"cli/{room}.py" for room in ("app", "data", "datasets", "evaluating", "fitting")},
    "implicit": {"baselines/wmf.py"},
    "torch": {"baselines/networks.py", "baselines/training.py"},
    "optuna": {"evaluation/chooser.py"},
    "matplotlib": {"evaluation/plots.py"},
    "rich": {"cli/show.py", "cli/demo.py"},
}
ALLOWED = {"numpy", "scipy", "mrfrec", *HOME_OF}
# Data flows down this list; a module imports only from above.
FLOW = [
    "errors",
    "core.resources",
    "core.kernels.intrinsics",
    "core.kernels.compile",
    "core.kernels.rows",
    "core.kernels.pattern",
    "core.kernels.blocks",
    "core.kernels.closed_form",
    "core.kernels.ranking",
    "core.kernels.neighbors",
    "core.kernels.descent",
    "core.statistics",
    "core.pattern",
    "core.schedule",
    "core.blocks",
    "core.closed_form",
    "core.neighbors",
    "core.descent",
    "core.sparse",
    "core.ranking",
    "core.settings",
    "core.fitting",
    "checks",
    "ids",
    "interactions",
    "events",
    "io.atomic",
    "io.sources",
    "io.columns",
    "io.rows",
    "io.tables",
    "catalogue",
    "io.artifact",
    "io.frames",
    "saving",
    "histories",
    "explaining",
    "recommender",
    "linear",
    "latent",
    "model",
    "baselines.family",
    "baselines.neighborhood",
    "baselines.slim",
    "baselines.wmf",
    "baselines.networks",
    "baselines.training",
    "baselines.autoencoders",
    "baselines",
    "evaluation.splits",
    "datasets.registry",
    "datasets.files",
    "datasets.originals",
    "datasets.vae_cf",
    "datasets.prepared",
    "datasets",
    "evaluation.metrics",
    "evaluation.protocol",
    "evaluation.chooser",
    "evaluation.grids",
    "evaluation.tuning",
    "evaluation.tradeoff",
    "evaluation.side_checks",
    "evaluation.report",
    "evaluation.reproduce",
    "evaluation.plots",
    "evaluation",
    "cli.names",
    "cli.show",
    "cli.models",
    "cli.data",
    "cli.running",
    "cli.doctor",
    "cli.demo",
    "cli.datasets",
    "cli.evaluating",
    "cli.fitting",
    "cli.app",
]


def imports(path: Path) -> set[str]:
    """Dotted names a file imports, wherever in the file; what it imports for its types alone aside."""
    found = set()
    for node in ast.walk(_without_types(ast.parse(path.read_text()))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _without_types(tree: ast.Module) -> ast.Module:
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    return tree


def files() -> dict[str, Path]:
    return {str(path.relative_to(SOURCE)): path for path in SOURCE.rglob("*.py")}


def test_every_module_has_its_place_in_the_flow() -> None:
    modules = {name.removesuffix(".py").replace("/", ".") for name in files() if not name.endswith("__.py")}
    assert modules == set(FLOW) - {"baselines", "datasets", "evaluation"}  # folders, by what they offer


def test_imports_point_against_the_flow_of_data() -> None:
    for place, module in enumerate(FLOW):
        path = SOURCE / (module.replace(".", "/") + ".py")
        path = path if path.exists() else path.with_suffix("") / "__init__.py"
        for name in imports(path) - {"mrfrec.__version__"}:
            if name.startswith("mrfrec."):
                parts = name.removeprefix("mrfrec.").split(".")
                used = next(m for m in (".".join(parts[:3]), ".".join(parts[:2]), parts[0]) if m in FLOW)
                assert FLOW.index(used) < place, f"{module} imports {used}"


def test_core_imports_nothing_of_the_package_but_errors_and_itself() -> None:
    for name, path in files().items():
        if name.startswith("core/"):
            for used in imports(path):
                if used.startswith("mrfrec"):
                    assert used.startswith(("mrfrec.core", "mrfrec.errors")), f"{name} imports {used}"


def test_libraries_live_in_their_rooms() -> None:
    standard = set(__import__("sys").stdlib_module_names)
    for name, path in files().items():
        for used in {used.split(".")[0] for used in imports(path)} - standard:
            assert used in ALLOWED, f"{name} imports {used}"
            assert name in HOME_OF.get(used, {name}), f"{name} imports {used}"


def test_kernels_are_compiled_in_one_way() -> None:
    assert [name for name, path in files().items() if "import njit" in path.read_text()] == [
        "core/kernels/compile.py"
    ]


def test_nothing_prints_pickles_or_sets_up_logging() -> None:
    for name, path in files().items():
        found = re.findall(r"(?<![.\w])print\(|import pickle|basicConfig|os\.environ", path.read_text())
        assert not found, f"{name}: {found}"


def test_public_names_are_sorted_and_exist() -> None:
    assert dir(mrfrec) == sorted(mrfrec.__all__)
    for name in mrfrec.__all__:
        assert getattr(mrfrec, name) is not None


def test_every_error_is_public_and_in_the_tree_drawn() -> None:
    classes = {name: c for name, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, Exception)}
    assert sorted(classes) == errors.__all__
    for name, kind in classes.items():
        assert issubclass(kind, errors.MrfrecError | errors.MrfrecWarning)
        assert name in (errors.__doc__ or "")
        assert getattr(mrfrec, name) is kind


def test_errors_cross_from_one_process_to_another() -> None:
    for error in (
        errors.ParameterError("l2", "a number", "six", "Do."),
        errors.MemoryPlanError("too much", 2, 1),
        errors.DataError("bad"),
        errors.NotFittedError("not yet"),
        errors.NumericalError("singular"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
