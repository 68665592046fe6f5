"""A schema on its way into the registry: what is stored of it, its identity, and whether it may follow."""

import json
import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any
from uuid import UUID

from folkmoot.coordination.schemas.names import SubjectName
from folkmoot.coordination.schemas.nodes import Content, StoredReference
from folkmoot.coordination.schemas.versions import Reference
from folkmoot.coordination.zookeeper.operations import Recipe
from folkmoot.protocol.errors import IncompatibleSchema, InvalidSchema
from folkmoot.schemas.avro.compatibility import Finding, judge
from folkmoot.schemas.avro.identity import Schema, canonical
from folkmoot.schemas.avro.normal import normalize
from folkmoot.schemas.avro.references import definitions, resolve
from folkmoot.schemas.registry.contents import Contents

logger = logging.getLogger(__name__)


class SchemaCandidate:
    """Belongs to one call of the registry; what it has found out it keeps for the next try."""

    def __init__(
        self,
        contents: Contents,
        context: str,
        schema: Schema,
        references: Sequence[Reference] = (),
        metadata: Mapping[str, Any] | None = None,
        rule_set: Mapping[str, Any] | None = None,
        normalize: bool = False,
    ) -> None:
        self.references = tuple(references)
        self._contents = contents
        self._context = context
        self._schema = schema
        self._metadata = dict(metadata) if metadata else None
        self._rule_set = dict(rule_set) if rule_set else None
        self._normalize = normalize
        self._contents_by_references: dict[tuple[StoredReference, ...], tuple[Content, str]] = {}
        self._resolved = ""
        self._accepted: set[tuple[str, str, tuple[int, ...]]] = set()

    def content(self, references: tuple[StoredReference, ...]) -> Recipe[Content]:
        """Return the content to store, given the meaning of its references. Raises InvalidSchema."""
        if references not in self._contents_by_references:
            texts = yield from self._contents.referred(self._context, references)
            schema = self._schema
            if self._normalize:
                schema = normalize(schema, known=definitions(texts))
            resolved = resolve(schema, texts)
            text = schema if isinstance(schema, str) else _text(schema)
            if text is None:
                text = canonical(schema, known=definitions(texts))
            guid = yield from self._guid(resolved, references)
            content = Content(text, guid, references, self._metadata, self._rule_set)
            self._contents_by_references[references] = content, resolved
        content, self._resolved = self._contents_by_references[references]
        return content

    def judge(self, level: str, previous: Sequence[int]) -> Recipe[None]:
        """Return whether it may follow these ids, the oldest first. Raises IncompatibleSchema."""
        cache_key = self._resolved, level, tuple(previous)
        if cache_key not in self._accepted:
            findings = yield from self.findings(level, previous)
            wrong = [each for each in findings if not each.warning]
            if wrong:
                raise IncompatibleSchema(
                    f"the schema may not follow the versions before it at level {level}: "
                    f"{wrong[0].message}" + (f" (and {len(wrong) - 1} more)" if wrong[1:] else ""),
                    findings,
                )
            self._accepted.add(cache_key)

    def warn(self, subject: SubjectName, level: str, deleted: Sequence[int]) -> Recipe[None]:
        """Log, once, that it could not follow versions which are all deleted; after `content`."""
        cache_key = self._resolved, level, tuple(deleted)
        if cache_key in self._accepted:
            return
        self._accepted.add(cache_key)
        wrong = [each for each in (yield from self.findings(level, deleted)) if not each.warning]
        if wrong:
            logger.warning(
                "subject %s starts again with a schema that could not follow its deleted versions at level "
                "%s: %s; values that were written by those may be unreadable for new readers",
                subject,
                level,
                wrong[0].message,
            )

    def findings(self, level: str, previous: Sequence[int]) -> Recipe[list[Finding]]:
        """Return what `judge` raises, and warnings; call `content` first."""
        texts = []
        for number in previous:
            texts.append((yield from self._contents.resolved(self._context, number)))
        return judge(level, self._resolved, texts)

    def _guid(self, resolved: str, references: tuple[StoredReference, ...]) -> Recipe[str]:
        """A UUID of all that makes it the same schema, in whatever context."""
        referenced = []
        for each in references:
            referred = yield from self._contents.content(
                each.resolve(self._context).context, each.id
            )
            referenced.append([each.name, each.subject, each.version, referred.guid])
        identity = [resolved, sorted(referenced), self._metadata, self._rule_set]
        try:
            text = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidSchema(f"the schema's metadata or rule set is no JSON: {error}") from None
        return str(UUID(bytes=sha256(text.encode()).digest()[:16]))


def _text(schema: Any) -> str | None:
    """The text of a schema given as Python values, None if it has only its canonical one."""
    try:
        text = json.dumps(schema, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return None if "__fastavro_parsed" in text else text
