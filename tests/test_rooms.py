"""The layout holds: who may import whom, one sorted list of public names, one tree of errors."""

import ast
import inspect
import pickle
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import mrfrec
from mrfrec import errors

SOURCE = Path(mrfrec.__file__).parent
ROOT = SOURCE.parents[1]


def rooms(package: str, names: str) -> set[str]:
    return {f"{package}/{name}.py" for name in names.split()}


HOME_OF = {
    "numba": rooms("core/kernels", "compile intrinsics rows pattern blocks ranking order"),
    "llvmlite": {"core/kernels/intrinsics.py"},
    "threadpoolctl": {"engines/local.py"},
    "narwhals": rooms("io", "sources frames") | {"shown.py"},
    "safetensors": {"io/artifact.py"},
    "pyarrow": rooms("io", "databases text"),
    "adbc_driver_postgresql": {"io/databases.py"},
    "sqlite3": {"io/databases.py"},
    "typer": rooms("cli", "app derived inspecting"),
    "torch": rooms("engines", "devices gpu/dense gpu/device gpu/ranking gpu/rows"),
    "anyio": {"service/app.py"},  # which Starlette brings
    "fastapi": rooms("service", "api app page problems"),
    "optuna": rooms("evaluation", "tuning"),
    "jinja2": {"service/page.py"},
    "starlette": rooms("service", "api app middleware page problems"),
    "pydantic": {
        "options.py",
        "answers/question.py",
        "data/reading_options.py",
        "nightly/job.py",
        *rooms("service", "schemas settings views"),
        *rooms("cli", "data evaluating fitting inspecting options recommending serving"),
    },
    "pydantic_core": {"service/api.py"},  # the quickest way to JSON among what FastAPI brings
    "uvicorn": {"service/server.py"},
    "prometheus_client": {"service/monitoring.py"},
    "matplotlib": {"figures.py"} | rooms("evaluation", "results tuning") | {"models/recommender.py"},
    "sklearn": {"models/parameters.py"},  # which calls this itself
    "rapidfuzz": {"data/catalogue.py"},
    "IPython": {"bars.py"},  # where it runs in a notebook, which has it
    "rich": {"bars.py", "shown.py", "cli/show.py"},
}
ALLOWED = {"numpy", "scipy", "polars", "mrfrec", *HOME_OF}
# Data flows along this list; a package imports only itself and what stands before it.
PACKAGES = [
    "errors", "core", "checks", "options", "shown", "bars", "engines", "data", "io", "figures", "fitted",
    "answers", "models", "extending", "testing", "evaluation", "datasets", "nightly", "service", "cli",
]  # fmt: skip


@cache
def files() -> dict[str, Path]:
    return {str(path.relative_to(SOURCE)): path for path in SOURCE.rglob("*.py")}


def module_name(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def imports(path: Path) -> set[str]:
    """Dotted names a file imports, wherever in the file; also by a string such as `import_module` takes."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and re.fullmatch(r"mrfrec(\.[a-z_]+)+", str(node.value)):
            found.add(str(node.value))
    return found


def own_imports(path: Path) -> set[str]:
    """The modules of this package that a file imports, such as "core.pattern"."""
    modules = {module_name(file) for file in files()}
    found = set()
    for name in imports(path):
        parts = name.split(".")[1:] if name.startswith("mrfrec.") else []
        longest = next((".".join(parts[:n]) for n in (4, 3, 2, 1) if ".".join(parts[:n]) in modules), None)
        found |= {longest} if longest else set()
    return found


def test_every_package_has_its_place_in_the_flow() -> None:
    found = {module_name(file).split(".")[0] for file in files() if not file.startswith("__")}
    assert found == set(PACKAGES)


def test_imports_between_packages_point_against_the_flow_of_data() -> None:
    for file, path in files().items():
        if file.startswith("__"):
            continue  # the front door, which names what is public, and `python -m mrfrec`
        package = module_name(file).split(".")[0]
        for used in own_imports(path):
            place = PACKAGES.index(used.split(".")[0])
            assert place <= PACKAGES.index(package), f"{file} imports {used}"


def test_modules_of_a_package_do_not_import_each_other_in_a_circle() -> None:
    """Nor for the sake of a type alone."""
    graph = {module_name(file): own_imports(path) for file, path in files().items() if "__." not in file}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


@pytest.mark.parametrize(
    "line",
    [
        "from mrfrec.cli import app",
        "import mrfrec.cli.app",
        "import_module('mrfrec.cli.app')",
        "HOMES = {'App': 'mrfrec.cli.app'}",
        "def later():\n    from mrfrec.cli.app import run",
        "if TYPE_CHECKING:\n    from mrfrec.cli.app import run",
    ],
)
def test_imports_are_seen_however_they_are_written(line: str, tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(line)
    assert own_imports(file) <= {"cli.app", "cli"}
    assert own_imports(file)


# Private by name and public by their documentation: the methods of named tuples, a frame of the call stack.
DOCUMENTED = {"_asdict", "_fields", "_getframe", "_make", "_replace"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def private_definitions(tree: ast.AST) -> set[str]:
    """The private functions, classes, variables and attributes of `self` that a file defines."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            found.add(node.attr)
    return {name for name in found if is_private(name)}


def is_own(value: ast.AST) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def foreign_private_names(tree: ast.AST) -> list[str]:
    """The private names that a file uses and does not define, except those of `self`."""
    known = private_definitions(tree) | DOCUMENTED
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node.value):
            found += [ast.unparse(node)] if node.attr not in known else []
        elif isinstance(node, ast.ImportFrom):
            names = [*str(node.module).split("."), *(alias.name for alias in node.names)]
            found += [name for name in names if is_private(name) and name not in known]
    return found


FOLDERS = [each for each in ("src", "lab/src", "tools", "benchmarks") if (ROOT / each).exists()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_uses_the_private_names_of_another(folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    for path in paths:
        file = path.relative_to(ROOT).as_posix()
        found = foreign_private_names(ast.parse(path.read_text()))
        assert not found, f"{file} uses {', '.join(found)}"


@pytest.mark.parametrize(
    "line",
    [
        "model._facts",
        "load(path)._facts",
        "from mrfrec.models.mrf.fit import _log",
        "self.model._facts",
        "model._facts = {}",
    ],
)
def test_private_names_are_seen_however_they_are_reached(line: str) -> None:
    assert foreign_private_names(ast.parse(line))
    assert not foreign_private_names(ast.parse(f"{line}\nself._facts, _log = 1, 2"))


def test_libraries_live_in_their_rooms() -> None:
    standard = set(__import__("sys").stdlib_module_names)
    for name, path in files().items():
        for used in {used.split(".")[0] for used in imports(path)} - (standard - HOME_OF.keys()):
            assert used in ALLOWED, f"{name} imports {used}"
            assert name in HOME_OF.get(used, {name}), f"{name} imports {used}"
            assert used != "polars" or not name.startswith(("core/", "engines/")), f"{name} imports polars"


def test_kernels_are_compiled_in_one_way() -> None:
    assert [name for name, path in files().items() if "import njit" in path.read_text()] == [
        "core/kernels/compile.py"
    ]


def test_the_discounts_of_ndcg_are_written_once() -> None:
    found = [name for name, path in files().items() if re.search(r"log2\([^)]*arange", path.read_text())]
    assert found == ["core/accuracy.py"]


def test_nothing_prints_pickles_sets_up_logging_or_reads_the_environment() -> None:
    for name, path in files().items():
        found = re.findall(
            r"(?<![.\w])print\(|import pickle|basicConfig|os\.environ|getenv", path.read_text()
        )
        # The variables of systemd are its protocol.
        assert found == (["os.environ"] * 2 if name == "service/server.py" else []), name


def test_public_names_are_sorted_and_exist() -> None:
    assert dir(mrfrec) == sorted(mrfrec.__all__)
    for name in mrfrec.__all__:
        assert getattr(mrfrec, name) is not None


def test_every_error_is_public_and_in_the_tree_drawn() -> None:
    classes = {name: c for name, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, Exception)}
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


def test_no_two_classes_share_a_name() -> None:
    """Nor a class and a public function, unless the function returns the class, as `exposure` does."""
    homes: dict[str, list[str]] = {}
    functions: list[tuple[str, str, str]] = []
    for file, path in files().items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.strip("_").lower(), []).append(file)
            elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                returned = ast.unparse(node.returns) if node.returns else ""
                functions.append((node.name, file, returned.lower().strip("'")))
    shared = {name for name, where in homes.items() if len(where) > 1}
    shared |= {
        name
        for name, file, returned in functions
        if name in homes and returned != name and not file.startswith("cli/")  # commands have plain names
    }
    assert not shared, {name: homes[name] for name in shared}
