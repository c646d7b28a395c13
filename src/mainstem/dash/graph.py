"""Where the nodes of the path stand: each to the right of all that it reads."""

from collections.abc import Iterable, Sequence

import msgspec

from mainstem.dash.state import Edge, Node


def layered(nodes: Sequence[Node], edges: Iterable[Edge]) -> list[Node]:
    """The nodes with their layers, from the left: one more than the last layer that it reads from.

    A topic that nobody writes stands where those of sources do. An edge that closes a circle is not counted: versions
    of code may read what others write.
    """
    before: dict[str, list[str]] = {node.id: [] for node in nodes}
    for edge in edges:
        if edge.target in before and edge.source in before:
            before[edge.target].append(edge.source)
    first = {node.id: 0 if node.kind == "source" else 1 for node in nodes}
    layers: dict[str, int] = {}
    above: set[str] = set()

    def layer(name: str) -> int:
        if name not in layers:
            above.add(name)
            layers[name] = max([first[name], *(layer(each) + 1 for each in before[name] if each not in above)])
            above.discard(name)
        return layers[name]

    return [msgspec.structs.replace(node, layer=layer(node.id)) for node in nodes]
