"""What the service does: variables, which begin at zero, and `x?`, `x+=5`, `x-=2`, `y*=2`, `y/=3`.

Numbers are exact fractions. Whole numbers would lose what a division leaves: after `x/=3` and `x*=3` x is another.
Floats are the same everywhere only as long as nobody computes their sum in another order, or with another library.
"""

import random
import re
from fractions import Fraction
from typing import Any, NamedTuple

from mainstem.core.errors import UserError
from mainstem.replicate import Refused

RESERVED = ("clients", "ops", "status")
"""Names that are paths of the service."""
MOST_VARIABLES = 10_000
MOST_BITS = 4096
"""Of a numerator, and of a denominator: each division may make it longer."""

_VARIABLE = r"[a-z][a-z0-9_]{0,31}"
_OPERATION = re.compile(rf"({_VARIABLE})\s*(\+=|-=|\*=|/=)\s*(-?[0-9]{{1,100}}(?:\.[0-9]{{1,100}})?|random)")
_QUESTION = re.compile(rf"({_VARIABLE})\s*\?")


class BadOperation(UserError):
    """It is none of the service's operations."""


class Operation(NamedTuple):
    """`x+=5`; a question has neither sign nor number. The number `random` is drawn where it is carried out."""

    variable: str
    sign: str = ""
    number: str = ""


def parse(text: str) -> Operation:
    """What `text` asks for.

    Raises:
        BadOperation: nothing that the service knows.
    """
    question = _QUESTION.fullmatch(text.strip())
    found = question or _OPERATION.fullmatch(text.strip())
    if found is None:
        raise BadOperation(
            f"expected an operation, found {text[:60]!r}",
            hint="x?, x+=5, x-=2, x*=2 or x/=3; names of up to 32 of a-z, 0-9 and _, a letter first; numbers like 7, -7 and 0.25",
        )
    operation = Operation(*found.groups())
    if operation.variable in RESERVED:
        raise BadOperation(
            f"{operation.variable}: expected another name: it is a path of the service", hint="take another"
        )
    return operation


class Arithmetic:
    """The variables. It is what a `Node` replicates; operations are texts, as people write them."""

    def __init__(self) -> None:
        self._variables: dict[str, Fraction] = {}

    def execute(self, operation: Any) -> tuple[str, dict[str, str]]:
        """The variable's new value, which is the change, too: a division by zero changes nothing, on every node."""
        try:
            variable, sign, number = parse(str(operation))
        except BadOperation as error:
            raise Refused(str(error), hint=error.hint) from error
        value = str(self._result(variable, sign, _number(number)))
        return value, {variable: value}

    def _result(self, variable: str, sign: str, number: Fraction) -> Fraction:
        before = self._variables.get(variable, Fraction())
        if variable not in self._variables and len(self._variables) >= MOST_VARIABLES:
            raise Refused(f"{variable}: there are {MOST_VARIABLES} variables already")
        match sign:
            case "+=":
                result = before + number
            case "-=":
                result = before - number
            case "*=":
                result = before * number
            case "/=" if number:
                result = before / number
            case "/=":
                raise Refused(f"{variable}/=0: division by zero; {variable} stays {before}")
            case _:
                raise Refused(f"{variable}?: expected an operation, found a question")
        if max(result.numerator.bit_length(), result.denominator.bit_length()) > MOST_BITS:
            raise Refused(f"{variable}: the result has more than {MOST_BITS} bits; {variable} stays as it is")
        return result

    def assign(self, changes: dict[str, str]) -> None:
        self._variables |= {variable: Fraction(value) for variable, value in changes.items()}

    def query(self, question: Any) -> str:
        return str(self._variables.get(question, Fraction()))

    def dump(self) -> dict[str, str]:
        return {variable: str(value) for variable, value in self._variables.items()}

    def load(self, dump: dict[str, str]) -> None:
        self._variables = {variable: Fraction(value) for variable, value in dump.items()}


def _number(text: str) -> Fraction:
    """`random` is what no service that all nodes carry out may do; it shows what becomes of those that do."""
    return Fraction(random.randrange(1, 1_000_000) if text == "random" else text or 0)
