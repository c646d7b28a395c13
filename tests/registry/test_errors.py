from mainstem.core import Retriable, UserError
from mainstem.registry.errors import IncompatibleSchema, InvalidSchema, NotFound, StoreUnavailable


def test_the_type_carries_status_and_code_and_an_instance_may_refine_the_code():
    assert (NotFound("x").status, NotFound("x").code, NotFound("x", code=40403).code) == (404, 40401, 40403)
    assert IncompatibleSchema("x", ["a"]).status == 409
    assert str(InvalidSchema("no", pointer="/fields/0")) == "/fields/0: no"


def test_who_retries():
    assert issubclass(StoreUnavailable, Retriable)
    assert issubclass(NotFound, UserError)
