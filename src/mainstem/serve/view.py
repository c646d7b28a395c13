"""A view as readers see it: the index that answers now, and those beside it. On the event loop."""

from mainstem.client.progress import NextOffsets
from mainstem.core import UserError
from mainstem.serve.build import Build
from mainstem.serve.config import ViewConfig
from mainstem.serve.engines import Engine
from mainstem.serve.keeper import Keeper

_NOT_KNOWN = "the catalog is not read yet"


class NoSuchVersion(UserError):
    """The view has no index of the version that is asked for."""


class View:
    """One view of a node.

    Attributes:
        name: of the view.
        config: its settings.
        current: the index that answers; None until the catalog is known.
        builds: all its indexes, by directory: of the version before a cutover too, and of one that is to come.
        moving: the one that will answer next; None where none is to come.
    """

    def __init__(self, name: str, config: ViewConfig) -> None:
        self.name = name
        self.config = config
        self.current: Build | None = None
        self.builds: dict[str, Build] = {}
        self.moving: Build | None = None

    def chosen(self, version: str | None) -> Build | None:
        """The index that a read asks: that of `version`, or the current one.

        Raises:
            NoSuchVersion: there is none.
        """
        if version is None or self.current is None:
            return self.current
        kept = [self.current, *(each for each in self.builds.values() if each not in (self.current, self.moving))]
        for build in kept:
            if list(build.target.versions.values()) == [version]:
                return build
        there = ", ".join(v for each in kept for v in each.target.versions.values())
        raise NoSuchVersion(
            f"view {self.name}: expected a version that it has, found {version!r}",
            hint=f"it has: {there}" if there else "it is of no job's topic, or of several jobs'",
        )

    @property
    def is_rebuilt(self) -> bool:
        """Whether the index that is to come is of the same topics."""
        moving, current = self.moving, self.current
        return moving is not None and current is not None and moving.target.topics == current.target.topics

    @property
    def topics(self) -> list[str]:
        """That are read to answer now."""
        return self.current.topics if self.current else []

    @property
    def position(self) -> NextOffsets:
        """All below it is applied, and visible."""
        return self.current.position if self.current else {}

    @property
    def versions(self) -> dict[str, str]:
        """The versions that answer now, by the view's name for their outputs."""
        return self.current.target.versions if self.current else {}

    @property
    def is_ready(self) -> bool:
        return self.current is not None and self.current.is_ready

    @property
    def columns(self) -> dict[str, dict[str, str]]:
        return self.current.columns if self.current else {}

    @property
    def engine(self) -> Engine | None:
        return self.current.engine if self.current else None

    @property
    def keeper(self) -> Keeper | None:
        return self.current.keeper if self.current else None

    @property
    def left_out(self) -> int:
        """Records of its topics that are no rows of its index, which could not hold them."""
        books = self.keeper.books.values() if self.keeper is not None else ()
        return sum(read.quarantined for reads in [*books] for read in reads.values())

    @property
    def why(self) -> str:
        """What its index waits for before it is opened."""
        return self.current.why if self.current else _NOT_KNOWN

    def told(self) -> str:
        """Why it cannot be asked, for people."""
        return self.current.told() if self.current else _NOT_KNOWN
