"""A room's error types: what their policy is, and whether its module's docstring draws them."""

from types import ModuleType

from mainstem.core import CorruptData, MainstemError, Retriable, UserError

POLICIES = (UserError, Retriable, CorruptData)


def errors_of(module: ModuleType) -> list[type[MainstemError]]:
    """The types that `module` defines."""
    found = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, MainstemError)]
    return [each for each in found if each.__module__ == module.__name__]


def check_tree(module: ModuleType) -> None:
    """Each type is drawn, and below its one policy; a type with two would be both tried again and given up."""
    drawing = module.__doc__ or ""
    assert errors_of(module)
    for each in errors_of(module):
        policies = [policy.__name__ for policy in POLICIES if issubclass(each, policy)]
        assert len(policies) <= 1, f"{each.__name__}: {policies}"
        assert each.__name__ in drawing, f"{each.__name__} is not drawn"
        for policy in policies:
            assert drawing.index(policy) < drawing.index(each.__name__), f"{each.__name__} is drawn above {policy}"
