"""What a project's code imports, at any time: the project's own modules from its own directory.

    mainstem, Spark's driver    a finder, before all that is on `sys.path`
    Spark's Python workers      PYTHONPATH: a directory of links into the frozen copy

A job may import within its function, long after the project was loaded, or within a function that a worker of Spark's
runs. Without this it would find what lies in the working directory or on PYTHONPATH: often the project as somebody
edits it, where the frozen copy is meant.

A module of the standard library is never looked for in a project: Python itself and Spark import these too, and a
project may well have a `calendar.py` or `token.py` beside its jobs.
"""

import importlib
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

TAKEN = sys.stdlib_module_names | {"mainstem", "pyspark"}
"""Names of modules that are never a project's."""


class ProjectFinder:
    """Finds a project's own modules; one that is installed under the same name is not seen."""

    def __init__(self, places: Iterable[Path]) -> None:
        self._places = [str(place) for place in places]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As Python asks for a module; those of packages are found by the package's own path."""
        if path is not None or name in TAKEN:
            return None
        spec = PathFinder.find_spec(name, self._places)
        if spec is None:
            return None
        if spec.loader is None:  # a directory without __init__.py: as everywhere, it comes after every module
            elsewhere = PathFinder.find_spec(name)
            if elsewhere is not None and elsewhere.loader is not None:
                return None
            # Python's own kind of list is made anew from `sys.path`, where this directory is not. Others may share the
            # name, as `google` is that of many packages.
            also = elsewhere.submodule_search_locations if elsewhere is not None else None
            spec.submodule_search_locations = list(
                dict.fromkeys([*(spec.submodule_search_locations or ()), *(also or ())])
            )
        _found.add(name)
        return spec


_found: set[str] = set()
"""Names of the modules that projects brought into this process, without those of packages."""


def import_from(*places: Path) -> None:
    """From now on the modules of the project in these directories can be imported, and those of no other one."""
    stop_importing()
    importlib.invalidate_caches()
    sys.meta_path.insert(0, ProjectFinder(places))


def stop_importing() -> None:
    """No project's modules are looked for any more; those that were imported stay."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, ProjectFinder)]


def places_of(directory: Path) -> list[Path]:
    """The directories that modules of the project in `directory` are imported from: itself, and those in it that are on
    `sys.path`, such as the `src` of one that is installed to be edited.
    """
    directory = directory.resolve()
    installed = _installed(directory)
    entries = [entry for entry in map(_resolved, sys.path) if entry.is_relative_to(directory) and entry.is_dir()]
    own = [entry for entry in entries if not f"{entry}{os.sep}".startswith(installed)]
    return list(dict.fromkeys([directory, *own]))


def _resolved(entry: str) -> Path:
    return Path(entry).resolve()


def _installed(directory: Path) -> tuple[str, ...]:
    """Where packages are installed below `directory`, each with a slash at its end; they are none of a project's."""
    entries = [str(entry) for entry in map(_resolved, (sys.prefix, *sys.path)) if directory in entry.parents]
    prefix = str(_resolved(sys.prefix))
    return tuple(f"{each}{os.sep}" for each in entries if each == prefix or any(Path(each).glob("*.dist-info")))


def modules_of(directory: Path) -> dict[str, ModuleType]:
    """What has been imported from files of the project in `directory`, by name; a program that runs is no import.

    Not what is installed, which many keep in their project: numpy cannot be imported twice, nor can we ourselves.
    """
    inside = f"{directory}{os.sep}"
    installed = _installed(directory)
    # A copy: other threads import meanwhile, and a list of its items is not made in one go.
    files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.copy().items()}
    return {
        name: sys.modules[name]
        for name, file in files.items()
        if file.startswith(inside)
        and not file.startswith(installed)
        and name != "__main__"
        and name.partition(".")[0] not in TAKEN
    }


def note_imported(names: Iterable[str]) -> None:
    """These, too, are of a project."""
    _found.update(name.partition(".")[0] for name in names)


def forget_imports() -> None:
    """Whatever was imported from a project is imported anew when somebody asks for it."""
    for name in [each for each in sys.modules if each.partition(".")[0] in _found]:
        del sys.modules[name]
    _found.clear()


def link_for_workers(places: Iterable[Path], links: Path) -> None:
    """Make `links` what a Python worker of Spark's may have on its PYTHONPATH, which comes before the standard library:
    links to all in the directories `places`, the first of each name, but modules with taken names.
    """
    shutil.rmtree(links, ignore_errors=True)
    links.mkdir(parents=True)
    found = {path.name: path for place in reversed([*places]) for path in place.iterdir()}
    for name, path in found.items():
        if not (path.stem in TAKEN and (path.suffix == ".py" or (path / "__init__.py").exists())):
            (links / name).symlink_to(path.absolute())


def ship(modules: Iterable[ModuleType]) -> None:
    """Have Spark's workers get the code of these modules itself, not their names: they may not be there."""
    from pyspark import cloudpickle

    register: Any = cloudpickle.register_pickle_by_value
    for module in modules:
        register(module)
