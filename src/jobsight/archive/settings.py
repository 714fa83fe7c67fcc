"""The settings of the archive, with their defaults."""

from __future__ import annotations

from typing import Annotated

import msgspec


class S3Settings(msgspec.Struct, kw_only=True):
    #: The service's address, such as https://minio.example:9000; by default Amazon's own.
    endpoint: str | None = None
    #: The region; by default $AWS_REGION.
    region: str | None = None
    #: The name of the access key; by default $AWS_ACCESS_KEY_ID and what else AWS's tools read.
    access_key: str | None = None
    #: A file that holds the secret key; by default $AWS_SECRET_ACCESS_KEY.
    secret_key_file: str | None = None


class ArchiveSettings(msgspec.Struct, kw_only=True):
    #: A folder, or an address such as s3://bucket/prefix.
    location: str | None = None
    #: Days after its end at which a run is archived.
    older_than: Annotated[float, msgspec.Meta(ge=0, le=36600)] = 7.0
    #: Seconds between two rounds inside of `jobsight serve`; 0 is never.
    every: Annotated[float, msgspec.Meta(ge=0, le=31_536_000)] = 0.0
    #: The service of an s3:// address.
    s3: S3Settings = msgspec.field(default_factory=S3Settings)
