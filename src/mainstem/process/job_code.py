"""What of a project's code one job runs: the statement that declares it, and what that reaches by name.

    job `hourly` in jobs.py ── @F.udf `bucket` ── SIZE = 5              an edit of these is an edit of `hourly`
                            ├─ from helpers import rounded ── in helpers.py, `rounded`
                            ├─ parameter `orders` ── orders = topic(…), or what the job `orders` is declared as
                            └─ "taxes.csv" ── the file
    another job, comments, docstrings                                   an edit of these is none

It is found in the syntax, and nothing runs. What does something when a module is imported counts as reached by all, and
so does what cannot be told apart. Where the code looks for names or modules that it makes up as it runs, the syntax
does not tell.
"""

import ast
import copy
import hashlib
import symtable
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

import msgspec

_MADE_UP = frozenset(
    {"__import__", "importlib", "eval", "exec", "globals", "vars", "runpy", "pkgutil", "__subclasses__"}
)
"""Who uses one of these may reach any code."""
_LISTS = frozenset({"glob", "rglob", "iterdir", "listdir", "scandir", "walk"})
"""Who uses one of these may read any file."""
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_JOBS = ("stream", "table")


class _Unclear(Exception):
    """The syntax does not tell what is reached."""


class _Statement(msgspec.Struct, frozen=True, eq=False):
    """One at the top of a module; of an import that brings several names there are as many."""

    file: str
    at: int  # its place in the module
    node: ast.stmt
    gives: frozenset[str]  # the names that stand for something by it


class _Own(msgspec.Struct, frozen=True):
    """What a statement says."""

    node: ast.stmt
    """Without docstrings."""
    text: str
    names: frozenset[str]
    """As `_names_of` finds them."""


class ProjectCode:
    """A project's code; each module is read once, for all jobs."""

    def __init__(self, files: Mapping[str, bytes], start: Sequence[str]) -> None:
        """`files` are its modules and what they may read, by their names; those of `start` are loaded first."""
        self.files = files
        self.start = start
        # Modules may be imported from any directory that is on somebody's path.
        self.places = sorted({place for name in files if name.endswith(".py") for place in PurePosixPath(name).parents})
        self._modules: dict[str, list[_Statement]] = {}
        self._giving: dict[str, dict[str, list[_Statement]]] = {}
        self._own: dict[_Statement, _Own] = {}

    def of_job(self, job: str) -> str | None:
        """A hash of what the job of that name reaches; None: the syntax does not tell."""
        try:
            reached = _Reached(self)
            reached.import_all(self.start)
            reached.follow_job(self.start, job)
            return reached.hash()
        except (_Unclear, SyntaxError, ValueError, LookupError, RecursionError):  # ValueError: a file that is no text
            return None

    def module(self, file: str) -> list[_Statement]:
        """Its statements."""
        if file not in self._modules:
            self._modules[file] = list(_statements(file, ast.parse(self.files[file])))
        return self._modules[file]

    def giving(self, file: str, name: str) -> list[_Statement]:
        """Those of a module by which a name stands for something."""
        if file not in self._giving:
            given: dict[str, list[_Statement]] = {}
            for each in self.module(file):
                for known in each.gives:
                    given.setdefault(known, []).append(each)
            self._giving[file] = given
        return self._giving[file].get(name, [])

    def own(self, statement: _Statement) -> _Own:
        """What it says."""
        if statement not in self._own:
            node = _without_docstrings(statement.node)
            text = ast.unparse(node)
            self._own[statement] = _Own(node, text, frozenset(_names_of(text)))
        return self._own[statement]


class _Reached:
    """What was reached so far; it grows."""

    def __init__(self, code: ProjectCode) -> None:
        self._code = code
        self._files = code.files
        self._found: set[_Statement] = set()
        self._imported: set[str] = set()
        self._texts: set[str] = set()
        self._lists = False

    def hash(self) -> str:
        digest = hashlib.sha256()
        for each in sorted(self._found, key=lambda each: (each.file, each.at, sorted(each.gives))):
            text = f"{each.file}\n{self._code.own(each).text}\n"
            digest.update(f"{len(text)}:{text}".encode())
        for name in sorted(filter(self._may_be_read, self._files)):
            digest.update(f"{name}:{len(self._files[name])}:".encode() + self._files[name])
        return digest.hexdigest()[:16]

    # -- what is reached

    def follow_job(self, start: Sequence[str], job: str) -> None:
        """From its declaration on."""
        loaded = sorted({*start, *self._imported})
        found = [each for file in loaded for each in self._code.module(file) if _declares(each, job)]
        if len(found) != 1:
            raise _Unclear(job)
        (declared,) = found
        self._follow(declared)
        assert isinstance(declared.node, ast.FunctionDef | ast.AsyncFunctionDef)
        arguments = declared.node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            for file in loaded:  # an input may be declared in any module
                for each in self._code.giving(file, argument.arg):
                    self._follow(_as_input(each))

    def import_all(self, start: Sequence[str]) -> None:
        """What does something when the project is loaded is reached by each of its jobs."""
        waiting = [file for file in start if file in self._files]
        while waiting:
            file = waiting.pop()
            if file in self._imported:
                continue
            self._imported.add(file)
            for each in self._code.module(file):
                waiting += [name for node in _imports(each.node) for name in self._imports_of(file, node)]
                if self._acts(each):
                    self._follow(each)

    def _follow(self, statement: _Statement) -> None:
        if statement in self._found:
            return
        self._found.add(statement)
        file = statement.file
        self.import_all([file])
        own = self._code.own(statement)
        for name in own.names:
            self._check(name)
            for each in self._code.giving(file, name):
                self._follow(each)
        for node in ast.walk(own.node):
            match node:
                case ast.Import() | ast.ImportFrom():
                    self._follow_import(file, node)
                case ast.Attribute(attr=name):
                    self._check(name)
                case ast.Constant(value=str(text)):
                    self._texts.add(text)

    def _check(self, name: str) -> None:
        if name in _MADE_UP:
            raise _Unclear(name)
        self._lists = self._lists or name in _LISTS

    def _follow_import(self, file: str, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._check(alias.name.partition(".")[0])
                self._follow_modules(self._files_of(PurePosixPath(*alias.name.split(".")), self._code.places))
            return
        if not node.level:
            self._check((node.module or "").partition(".")[0])
        for alias in node.names:
            modules = self._files_from(file, node)
            inner = self._files_from(file, node, alias.name)
            if alias.name == "*":
                self._follow_modules(modules)
            elif len(inner) > len(modules):  # a module of a package
                self._follow_modules(inner)
            else:
                self.import_all(modules)
                given = [each for module in modules for each in self._code.giving(module, alias.name)]
                if not given:
                    self._follow_modules(modules)
                for each in given:
                    self._follow(each)

    def _follow_modules(self, files: Sequence[str]) -> None:
        """All that stands in them."""
        for file in files:
            for each in self._code.module(file):
                self._follow(each)

    # -- what stands where

    def _imports_of(self, file: str, node: ast.Import | ast.ImportFrom) -> list[str]:
        """The files of the project that an import runs."""
        if isinstance(node, ast.Import):
            parts = (PurePosixPath(*alias.name.split(".")) for alias in node.names)
            return [name for each in parts for name in self._files_of(each, self._code.places)]
        return [name for alias in node.names for name in self._files_from(file, node, alias.name)]

    def _files_from(self, file: str, node: ast.ImportFrom, name: str = "") -> list[str]:
        parts = [*(node.module.split(".") if node.module else []), *([name] if name and name != "*" else [])]
        if not node.level:
            return self._files_of(PurePosixPath(*parts), self._code.places)
        here = PurePosixPath(file).parents[node.level - 1]
        packages = self._files_of(here, [PurePosixPath(".")]) if here != PurePosixPath(".") else []
        return packages + self._files_of(PurePosixPath(*parts), [here])

    def _files_of(self, module: PurePosixPath, places: Sequence[PurePosixPath]) -> list[str]:
        """Those of a module and of the packages that it is in; nothing: it is none of the project's."""
        paths = [place.joinpath(*module.parts[: depth + 1]) for place in places for depth in range(len(module.parts))]
        names = [name for path in paths for name in (f"{path}.py", f"{path}/__init__.py")]
        return [name for name in dict.fromkeys(names) if name in self._files]

    def _acts(self, statement: _Statement) -> bool:
        """Whether it does more than to give its names, as far as can be told."""
        file, node = statement.file, statement.node
        match node:
            case ast.Import() | ast.ImportFrom():
                return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]  # which run now
                return any(self._is_ours(file, each) for each in node.decorator_list) or any(
                    self._calls_ours(file, each) for each in defaults
                )
            case ast.ClassDef():
                made_with = [*node.decorator_list, *node.bases, *(each.value for each in node.keywords)]
                inner = (_Statement(file, statement.at, each, frozenset()) for each in node.body)
                return any(self._is_ours(file, each) for each in made_with) or any(map(self._acts, inner))
            case ast.Assign(targets=targets) if all(map(_is_plain, targets)):
                return self._calls_ours(file, node.value)
            case ast.AnnAssign(target=ast.Name()):
                return node.value is not None and self._calls_ours(file, node.value)
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                return False
            case ast.If() if _is_never_run(node):
                return False
        return True

    def _calls_ours(self, file: str, value: ast.expr) -> bool:
        return any(isinstance(each, ast.Call) and self._is_ours(file, each.func) for each in ast.walk(value))

    def _is_ours(self, file: str, expression: ast.expr) -> bool:
        """Whether it begins with something that is defined in the project."""
        while not isinstance(expression, ast.Name):
            match expression:
                case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Call(func=inner):
                    expression = inner
                case _:
                    return True
        return any(self._is_of_project(each) for each in self._code.giving(file, expression.id))

    def _is_of_project(self, giving: _Statement) -> bool:
        if isinstance(giving.node, ast.Import | ast.ImportFrom):
            return bool(self._imports_of(giving.file, giving.node))
        return True

    def _may_be_read(self, name: str) -> bool:
        """Whether this file, which is no module, may be one that a text in the code names."""
        path = PurePosixPath(name)
        if path.suffix == ".py":
            return False
        return self._lists or any(self._names(text, path) for text in self._texts)

    def _names(self, text: str, path: PurePosixPath) -> bool:
        if any(part in text for part in path.parts):
            return True
        return (
            bool(path.suffix)
            and path.suffix in text
            and not any(PurePosixPath(each).name in text for each in self._files)
        )


def _statements(file: str, tree: ast.Module) -> Iterator[_Statement]:
    for at, node in enumerate(tree.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                one = copy.copy(node)
                one.names = [alias]
                name = alias.asname or (alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name)
                yield _Statement(file, at, one, frozenset({name}))
        elif not (isinstance(node, ast.If) and _is_never_run(node)):
            yield _Statement(file, at, node, frozenset(_given(node)))


def _given(node: ast.stmt) -> Iterator[str]:
    """The names at the top of a module that a statement gives; of a compound one each that it may."""
    if isinstance(node, _Definition):
        yield node.name
        return
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=asname):
                yield asname or name.partition(".")[0]


def _names_of(text: str) -> set[str]:
    """Those of its module, or of Python, that a statement uses; what a function's parameters and variables are called
    is none of them.
    """
    found: set[str] = set()
    tables = [symtable.symtable(text, "", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        is_function = table.get_type() == "function"
        found |= {
            each.get_name()
            for each in table.get_symbols()
            if (each.is_global() if is_function else each.is_referenced())
        }
    return found


def _imports(node: ast.stmt) -> Iterator[ast.Import | ast.ImportFrom]:
    """Those that run when its module is imported."""
    if isinstance(node, _Definition):
        return
    for each in ast.walk(node):
        if isinstance(each, ast.Import | ast.ImportFrom):
            yield each


def _declares(statement: _Statement, job: str) -> bool:
    node = statement.node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != job:
        return False
    calls = [each.func for each in node.decorator_list if isinstance(each, ast.Call)]
    return any((each.id if isinstance(each, ast.Name) else getattr(each, "attr", "")) in _JOBS for each in calls)


def _as_input(statement: _Statement) -> _Statement:
    """What the input of a job is, the topic of another job: not how it is computed."""
    node = statement.node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return statement
    declared = copy.copy(node)
    declared.body, declared.args = [ast.Pass()], ast.parse("lambda: 0", mode="eval").body.args  # type: ignore[attr-defined]
    return _Statement(statement.file, statement.at, declared, frozenset())


def _is_plain(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) or (
        isinstance(target, ast.Tuple | ast.List) and all(map(_is_plain, target.elts))
    )


def _is_never_run(node: ast.If) -> bool:
    """For types, or for who runs the file itself."""
    text = ast.unparse(node.test)
    return not node.orelse and (text in ("TYPE_CHECKING", "typing.TYPE_CHECKING") or text.startswith("__name__ =="))


def _without_docstrings(node: ast.stmt) -> ast.stmt:
    node = copy.deepcopy(node)
    for each in ast.walk(node):
        if isinstance(each, _Definition) and ast.get_docstring(each, clean=False) is not None:
            each.body = each.body[1:] or [ast.Pass()]
    return node
