"""Schemas by id without ZooKeeper: from brokers."""

import random
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final
from uuid import UUID

from folkmoot.coordination.schemas.names import context_of
from folkmoot.network.ask_any import ask_any
from folkmoot.network.client import Connections
from folkmoot.protocol import errors
from folkmoot.protocol.addresses import bootstrap_addresses
from folkmoot.protocol.messages import Api, GetSchemaRequest, GetSchemaResponse
from folkmoot.schemas.avro.references import resolve

MAX_CACHED: Final = 10_000
PATIENCE: Final = 3.0
"""Seconds to wait for one broker before the next one is asked."""


class BrokerSchemas:
    """Schemas by id or GUID, for deserializers that can reach only brokers.

    ```
    AvroDeserializer(BrokerSchemas("localhost:9092"))
    ```

    `bootstrap` are the addresses of some brokers. Schemas are cached. Each request has a connection of its
    own: there is nothing to close, and other processes may have copies. Any thread may call.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "folkmoot-schemas",
        timeout: float = 30.0,
    ) -> None:
        """Raises ConfigError."""
        self._addresses = bootstrap_addresses(bootstrap)
        self._client_id = client_id
        self._timeout = timeout
        # No lock, which a forked child could find held for ever: threads may ask twice.
        self._cached = lru_cache(MAX_CACHED)(self._resolved)

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(BrokerSchemas, client_id=self._client_id, timeout=self._timeout)
        return make, (self._addresses,)

    def resolved(self, id: int | UUID, *, subject: str | None = None) -> str:
        """Return a schema's canonical text, with all that it refers to, in the context of `subject`.

        A GUID names the same schema in all contexts. Raises SchemaNotFound and InvalidSubject; after
        `timeout` seconds BrokerUnreachable, or ZooKeeperUnreachable if the brokers do not know the schema
        and cannot ask.
        """
        return self._cached(context_of(subject), id)

    def _resolved(self, context: str, number: int | UUID) -> str:
        response = self._ask(context, number)
        return resolve(response.schema, response.references, strict=False)

    def _ask(self, context: str, number: int | UUID) -> GetSchemaResponse:
        request = GetSchemaRequest(number, context)
        last_error: errors.FolkmootError = errors.BrokerUnreachable(
            "there was no time to ask a broker"
        )
        addresses = random.sample(self._addresses, len(self._addresses))
        with Connections(self._client_id) as connections:
            arguments = addresses, Api.GET_SCHEMA, request, self._timeout
            for reply in ask_any(connections, *arguments, patience=PATIENCE):
                error = reply.error
                if error is None:
                    response: GetSchemaResponse = reply.response
                    return response
                if not isinstance(error, errors.RetriableError):
                    raise error
                if not isinstance(last_error, errors.ZooKeeperUnreachable):
                    last_error = error
        raise type(last_error)(
            f"no broker has answered for schema {number} within {self._timeout:g} s: {last_error}"
        )
