"""The files of a project in which its jobs are declared, imported as modules."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from mainstem.process.declare import BadDeclaration, Location
from mainstem.process.imports import TAKEN, forget_imports, import_from, modules_of, note_imported, stop_importing

_WITHOUT_SPARK = (
    "Spark does not run while a project is read: outside of the jobs' functions write types as objects, "
    "@F.udf(StringType()), and keep F.col, F.lit and the like within functions"
)


def import_files(directory: Path, files: Sequence[Path], places: Sequence[Path]) -> list[ModuleType]:
    """Import `files` and what they import from `places`, as they are now; returns all modules of the project.

    Modules that an earlier load brought are dropped first: two projects may both have a `jobs.py`, and a file may have
    changed since. What somebody else has imported of this one, as a test does, declares nothing any more: it is put
    aside, and only what is not imported now comes back.

    Raises:
        BadDeclaration: a file cannot be imported; with its file and line.
    """
    forget_imports()
    aside = modules_of(directory)
    for name in aside:
        del sys.modules[name]
    import_from(*places)
    without_bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # of two edits within one second the first would be kept
    try:
        for path in files:
            if not _is_imported(directory, path):
                _import_file(directory, path, places)
    finally:
        sys.dont_write_bytecode = without_bytecode
        stop_importing()
        ours = modules_of(directory)
        note_imported(ours)
        for name, module in aside.items():
            sys.modules.setdefault(name, module)
    return list(ours.values())


def _is_imported(directory: Path, path: Path) -> bool:
    return any(module.__file__ == str(path) for module in modules_of(directory).values())


def _module_name(path: Path, places: Sequence[Path]) -> str:
    """What a file of jobs is called as a module: in a directory of one of `places` what an import calls it; else by its
    own name. What has that name already stays what it is: a module of Python's own, an installed one, another file's.
    """
    place = max((each for each in places if path.is_relative_to(each)), key=lambda each: len(each.parts))
    parts = path.relative_to(place).with_suffix("").parts
    if len(parts) > 1 and all(map(str.isidentifier, parts)) and str(place / parts[0]) in _package_path(parts[0]):
        return ".".join(parts)
    name = path.stem
    while name in TAKEN or name in sys.modules:
        name = f"project_{name}"
    return name


def _package_path(name: str) -> list[str]:
    """Where the modules of a package lie, by the name of its own; empty where an import finds none."""
    if name in sys.modules:
        return [*getattr(sys.modules[name], "__path__", ())]
    spec = importlib.util.find_spec(name)
    return [*(spec.submodule_search_locations or ())] if spec is not None else []


def _import_file(directory: Path, path: Path, places: Sequence[Path]) -> None:
    name = _module_name(path, places)
    package, _, own_name = name.rpartition(".")
    try:
        if package:
            importlib.import_module(package)
            if _is_imported(directory, path):  # by its package, or it is that itself
                return
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        # Never from a cached .pyc: two edits within one second would have the same time stamp.
        code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - importing the user's code is what loading means
        if package:
            setattr(sys.modules[package], own_name, module)  # as an import does, for `import package.jobs`
    except BadDeclaration:
        raise
    except SyntaxError as error:
        raise BadDeclaration(Location(error.filename or str(path), error.lineno or 0), f"{error.msg}") from error
    except (Exception, SystemExit) as error:
        hint = _WITHOUT_SPARK if "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error) else ""
        reason = f"import failed: {type(error).__name__}: {error}"
        raise BadDeclaration(_place_of(error, directory, path), reason, hint=hint) from error


def _place_of(error: BaseException, directory: Path, path: Path) -> Location:
    """The innermost line below the project's directory that the error passed through."""
    place = Location(str(path), 1)
    traceback = error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if Path(file).is_relative_to(directory):
            place = Location(file, traceback.tb_lineno)
        traceback = traceback.tb_next
    return place
