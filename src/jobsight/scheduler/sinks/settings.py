"""Where the sinks are; one without an address is left out."""

from __future__ import annotations

from typing import Annotated

import msgspec


class MongoSettings(msgspec.Struct, kw_only=True):
    #: Where MongoDB is: "mongodb://user:password@host:27017". Without it nothing is sent there.
    url: str | None = None
    #: The database that holds the collections "jobs" and "nodes".
    database: str = "clockwork"


class OpenSearchSettings(msgspec.Struct, kw_only=True):
    #: Where OpenSearch or Elasticsearch is: "https://host:9200". Without it nothing is sent there.
    url: str | None = None
    #: What the names of its indices begin with.
    prefix: str = "jobsight"
    #: The user that may write there.
    user: str | None = None
    #: The file that holds the user's password.
    password_file: str | None = None
    #: The certificates to trust, where they are not those of the system.
    ca_file: str | None = None


class SinksSettings(msgspec.Struct, kw_only=True):
    #: Seconds between two looks for what is new.
    every: Annotated[float, msgspec.Meta(ge=1, le=86400)] = 60.0
    mongodb: MongoSettings = msgspec.field(default_factory=MongoSettings)
    opensearch: OpenSearchSettings = msgspec.field(default_factory=OpenSearchSettings)
