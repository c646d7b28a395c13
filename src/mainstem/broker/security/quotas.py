"""Client quotas (KIP-13, KIP-124, KIP-599, KIP-612): what is set, for whom it holds, and how long who is over it waits.

    setting                    of a user, a client id or both    measured
    producer_byte_rate         yes                               bytes of Produce requests per second
    consumer_byte_rate         yes                               bytes of records fetched per second
    request_percentage         yes                               time the log works for the client, % of a processor
    controller_mutation_rate   yes                               partitions created and deleted per second
    connection_creation_rate   of an IP address                  connections per second

The most particular quota holds, in Kafka's order: user and client id, user and any client, user, any user and client
id, any user and any client, any user, client id, any client. A quota of a user is shared by all clients of that user.

Ten seconds of a quota may come at once; what is beyond is worked off at the quota's rate. Who is over it is answered at
once, told how long to wait, and not read from meanwhile (KIP-219).
"""

import asyncio
import ipaddress
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from mainstem.broker.facts import Facts
from mainstem.broker.security.hosts import host_of
from mainstem.core import Clock
from mainstem.wire.errors import Code, RequestError

USER, CLIENT, IP = "user", "client-id", "ip"
PRODUCER, CONSUMER, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATION, CONNECTION = "controller_mutation_rate", "connection_creation_rate"

_WHOLE: Final = (PRODUCER, CONSUMER, CONNECTION)
_SETTINGS: Final = {USER: (PRODUCER, CONSUMER, REQUEST, MUTATION), IP: (CONNECTION,)}
AT_ONCE_SECONDS: Final = 10.0
_LONGEST_REQUEST_MS: Final = 1_000  # Kafka's: one sample
_LONGEST_CONNECTION_SECONDS: Final = 1.0
_LONGEST_MS: Final = 2**31 - 1  # that an answer can tell
_MOST_SECONDS: Final = 2.0**31
_LONG_MAX: Final = 2**63 - 1
_MOST_RATES: Final = 10_000
_LONGEST_KEPT: Final = 250  # characters of a client id
EXACT, DEFAULT, SPECIFIED = 0, 1, 2
"""How a filter means a name."""

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Kind and name, None for any; sorted by kind."""


class _Limit(NamedTuple):
    value: float
    of: tuple[str, ...]  # the kinds that share it


class Rate:
    """What was used and has not been worked off, in seconds of the quota.

    Kafka's sum of eleven samples forgets a sample at once, and with it what was used beyond the quota; this does not.
    """

    __slots__ = ("_at", "_seconds")

    def __init__(self) -> None:
        self._seconds = 0.0
        self._at = 0.0

    def add(self, seconds: float, now: float) -> None:
        self._seconds = min(self.seconds(now) + seconds, _MOST_SECONDS)
        self._at = now

    def seconds(self, now: float) -> float:
        return max(self._seconds - (now - self._at), 0.0)


class Quotas:
    """All quotas, and what each of those that have one has used. Changes are durable on return."""

    def __init__(self, facts: Facts, clock: Clock, on_change: Callable[["Quotas"], None]) -> None:
        self._facts = facts
        self._clock = clock
        self._on_change = on_change
        self.changing = asyncio.Lock()
        """Held from `after` to the end of `change`."""
        self._kept: dict[Entity, dict[str, float]] = {}
        self._of_addresses: dict[str | None, float] = {}
        self._limits: dict[tuple[str, str, str], _Limit | None] = {}
        self._rates: dict[tuple[str, ...], Rate] = {}
        for key, fact in facts.below("quota:"):
            self._kept[tuple((kind, name) for kind, name in msgspec.json.decode(key))] = fact
        self._changed()

    @property
    def of_clients(self) -> bool:
        """Whether any client has a quota, so that requests are measured."""
        return any(kind != IP for entity in self._kept for kind, _ in entity)

    def limit(self, setting: str, user: str, client: str) -> _Limit | None:
        """The quota that holds for a client of a user."""
        key = (setting, user, client)
        if len(client) > _LONGEST_KEPT:  # nobody is to fill memory with them
            return self._find(*key)
        if key not in self._limits:
            if len(self._limits) >= _MOST_RATES:
                self._limits.clear()
            self._limits[key] = self._find(*key)
        return self._limits[key]

    def _find(self, setting: str, user: str, client: str) -> _Limit | None:
        for name, other in (
            (user, client), (user, None), (user, ""), (None, client), (None, None), (None, ""), ("", client), ("", None),
        ):  # fmt: skip
            entity = tuple((kind, each) for kind, each in ((CLIENT, other), (USER, name)) if each != "")
            value = self._kept.get(entity, {}).get(setting) if entity else None
            if value is not None:
                return _Limit(value, tuple(kind for kind, _ in entity))
        return None

    def used(self, setting: str, user: str, client: str, amount: float) -> int:
        """Count what a client has used; for how many milliseconds it is over its quota now."""
        limit = self.limit(setting, user, client)
        if limit is None:
            return 0
        now = self._clock.monotonic()
        rate = self._rate(setting, limit, user, client)
        rate.add(amount / limit.value, now)
        wait_ms = _wait_ms(rate.seconds(now))
        return min(wait_ms, _LONGEST_REQUEST_MS) if setting == REQUEST else wait_ms

    def wait_ms(self, setting: str, user: str, client: str, amount: float) -> int:
        """For how many milliseconds a client would be over its quota with so much more; not counted. Who has used
        nothing may take whatever it is: it could never be had in parts.
        """
        limit = self.limit(setting, user, client)
        if limit is None:
            return 0
        used = self._rate(setting, limit, user, client).seconds(self._clock.monotonic())
        return min(_wait_ms(min(used + amount / limit.value, _MOST_SECONDS)), math.ceil(used * 1000))

    def _rate(self, setting: str, limit: _Limit, user: str, client: str) -> Rate:
        key = (setting, user if USER in limit.of else "", _kept(client) if CLIENT in limit.of else "", *limit.of)
        rate = self._rates.pop(key, None)
        if rate is None:
            rate = Rate()
            if len(self._rates) >= _MOST_RATES:  # names of clients are what clients say
                del self._rates[next(iter(self._rates))]
        self._rates[key] = rate  # the last used is the last
        return rate

    def connects(self, address: str) -> float:
        """Count a connection of an address, as `host_of` writes it, or say how many seconds it is to wait to be closed:
        it is over its quota, and what is refused is none. Kafka's longest wait, too: each takes a place meanwhile.
        """
        value = self._of_addresses.get(address) or self._of_addresses.get(None)
        if value is None:
            return 0.0
        now = self._clock.monotonic()
        rate = self._rate(CONNECTION, _Limit(value, (USER,)), address, "")
        over = rate.seconds(now) + 1 / value - max(AT_ONCE_SECONDS, 1 / value)
        if over > 0:
            return min(over, _LONGEST_CONNECTION_SECONDS)
        rate.add(1 / value, now)
        return 0.0

    # --- what the admin APIs do --------------------------------------------------------------------------------------

    def described(
        self, components: Iterable[tuple[str, int, str | None]], *, strict: bool
    ) -> Iterator[tuple[Entity, Mapping[str, float]]]:
        """The quotas that (kind, how a name is meant, name) mean; `strict`: that are of no other kind as well.

        Of few kinds before those of more.
        """
        wanted = {kind: (how, name) for kind, how, name in components}
        for entity, values in sorted(self._kept.items(), key=lambda each: (len(each[0]), str(each))):
            names = dict(entity)
            if strict and names.keys() != wanted.keys():
                continue
            if all(
                kind in names and (how == SPECIFIED or names[kind] == (name if how == EXACT else None))
                for kind, (how, name) in wanted.items()
            ):
                yield entity, values

    def after(self, entity: Entity, changes: Iterable[tuple[str, float | None]]) -> dict[str, float]:
        """What an entity would have set after (setting, value or None) were applied.

        Raises:
            RequestError: there is no such entity, setting or value.
        """
        kinds = [kind for kind, _ in entity]
        _check_entity(entity)
        settings = _SETTINGS[IP if kinds == [IP] else USER]
        result = dict(self._kept.get(entity, {}))
        changes = list(changes)
        if len({name for name, _ in changes}) < len(changes):
            raise RequestError(Code.invalid_request, "the same quota twice")
        for name, value in changes:
            if name not in settings:
                raise RequestError(Code.invalid_request, f"Invalid configuration key {name}")
            if value is None:
                result.pop(name, None)
                continue
            if not 0 < value < math.inf:
                raise RequestError(Code.invalid_request, f"Quota {name} must be greater than 0, and finite")
            if name in _WHOLE and abs(value - round(value)) > 1e-6:
                raise RequestError(Code.invalid_request, f"Configuration {name} must be a Long value")
            if name in _WHOLE and value > _LONG_MAX:
                raise RequestError(Code.invalid_request, f"Proposed value for {name} is too large for a LONG.")
            result[name] = value
        return result

    async def change(self, changes: Mapping[Entity, Mapping[str, float]]) -> None:
        """Replace what the entities have set, all of it or nothing; an empty table is none.

        Raises:
            StorageError: the disk refused.
        """
        await self._facts.put({_key(entity): dict(values) or None for entity, values in changes.items()})
        for entity, values in changes.items():
            self._kept.pop(entity, None)
            if values:
                self._kept[entity] = dict(values)
        self._changed()

    def _changed(self) -> None:
        self._of_addresses = {
            None if name is None else host_of(name): values[CONNECTION]
            for ((kind, name), *_), values in self._kept.items()
            if kind == IP and CONNECTION in values
        }
        self._limits = {}
        self._rates = {}  # they are in seconds of the quota that was
        self._on_change(self)


def _kept(client: str) -> str:
    """What is kept of a client id, which may be of any length."""
    if len(client) <= _LONGEST_KEPT:
        return client
    from hashlib import blake2b

    return f"{client[:_LONGEST_KEPT]}{blake2b(client.encode()).hexdigest()}"


def _wait_ms(used_seconds: float) -> int:
    return min(max(math.ceil((used_seconds - AT_ONCE_SECONDS) * 1000), 0), _LONGEST_MS)


def _check_entity(entity: Entity) -> None:
    kinds = [kind for kind, _ in entity]
    reason = ""
    if not entity:
        reason = "Invalid empty client quota entity"
    elif unknown := [kind for kind in kinds if kind not in (USER, CLIENT, IP)]:
        reason = f"Unhandled client quota entity type: {unknown[0]}"
    elif len(set(kinds)) < len(kinds) or (IP in kinds and len(kinds) > 1):
        reason = f"Invalid client quota entity combination: {', '.join(kinds)}"
    elif any(name == "" for _, name in entity):
        reason = "Empty names are not supported: null is any"
    elif kinds == [IP] and entity[0][1] is not None:
        try:
            ipaddress.ip_address(entity[0][1])
        except ValueError:
            reason = f"{entity[0][1]} is not a valid IP"
    if reason:
        raise RequestError(Code.invalid_request, reason)


def _key(entity: Entity) -> str:
    return f"quota:{msgspec.json.encode(entity).decode()}"


class Meter:
    """What one request uses; only where some client has a quota."""

    __slots__ = ("_client", "_quotas", "_user", "seconds", "throttle_ms")

    def __init__(self, quotas: Quotas, principal: str, client: str) -> None:
        self._quotas = quotas
        self._user = principal.partition(":")[2]
        self._client = client
        self.seconds = 0.0  # of the processor
        self.throttle_ms = 0

    def used(self, setting: str, amount: float) -> int:
        """Count; for how many milliseconds the client is over its quota."""
        wait_ms = self._quotas.used(setting, self._user, self._client, amount)
        self.throttle_ms = max(self.throttle_ms, wait_ms)
        return wait_ms

    def may_use(self, setting: str, amount: float) -> bool:
        """Whether the client may; if so it is counted, else the answer tells how long to wait."""
        wait_ms = self._quotas.wait_ms(setting, self._user, self._client, amount)
        if wait_ms:
            self.throttle_ms = max(self.throttle_ms, wait_ms)
            return False
        self._quotas.used(setting, self._user, self._client, amount)
        return True

    def most_bytes(self) -> int | None:
        """How much a client may fetch at once: what its quota is for ten seconds; None: any amount."""
        limit = self._quotas.limit(CONSUMER, self._user, self._client)
        return None if limit is None else int(limit.value * AT_ONCE_SECONDS)


def timed(coroutine: Any, meter: Meter, now: Callable[[], float]) -> Any:
    """An awaitable of `coroutine` that counts the time of the processor it takes, without that in which it waits."""
    return _Timed(coroutine, meter, now)


class _Timed:
    def __init__(self, coroutine: Any, meter: Meter, now: Callable[[], float]) -> None:
        self._coroutine = coroutine
        self._meter = meter
        self._now = now

    def __await__(self) -> Generator[Any, None, Any]:
        coroutine, thrown = self._coroutine, None
        while True:
            started = self._now()
            try:
                waits = coroutine.send(None) if thrown is None else coroutine.throw(thrown)
            except StopIteration as done:
                return done.value
            finally:
                self._meter.seconds += self._now() - started
            thrown = None
            try:
                yield waits
            except BaseException as error:  # a cancellation: for the coroutine
                thrown = error
