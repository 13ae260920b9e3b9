"""Which URIs a request may name: sources whose code is trusted, and local folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from serving.artifacts.local_folder_policy import LocalFolderPolicy, resolve_path
from serving.artifacts.storage.file_system import parse_storage_uri
from serving.errors import FailedPrecondition, InvalidArgument, field_error

# Cloud Storage takes these literally, but not every proxy or library on the way does.
_DOT_SEGMENTS = {".", ".."}
# The scheme of container images, as in other tools.
_IMAGE_SCHEME = "docker://"


@dataclass(frozen=True, slots=True)
class _SourcePrefix:
    """A bucket and a prefix of object names, or "" and a folder."""

    bucket: str
    path: str

    def contains(self, bucket: str, path: str) -> bool:
        """Whether the path is at or below the prefix.

        By whole parts: /models does not contain /models-evil.
        """
        return bucket == self.bucket and (
            not self.path or path == self.path or path.startswith(self._path_with_slash)
        )

    @property
    def real_prefix(self) -> _SourcePrefix:
        """The real path of a local prefix."""
        return _SourcePrefix("", resolve_path(self.path))

    @property
    def _path_with_slash(self) -> str:
        return self.path if self.path.endswith("/") else f"{self.path}/"


@dataclass(frozen=True, slots=True)
class TrustedSources:
    """Where models and packages may come from, since loading them runs their code; none: anywhere."""

    prefixes: tuple[_SourcePrefix, ...] = ()
    images: tuple[str, ...] = ()

    @classmethod
    def from_setting(cls, setting: str) -> TrustedSources:
        """The sources of the setting, separated by commas. Raises InvalidArgument."""
        found = []
        images = []
        for uri in filter(None, (part.strip() for part in setting.split(","))):
            if uri.startswith(_IMAGE_SCHEME):
                images.append(uri.removeprefix(_IMAGE_SCHEME).rstrip("/"))
                continue
            try:
                bucket, path = parse_storage_uri(uri)
            except InvalidArgument as error:
                raise InvalidArgument(f"trusted_sources: {error.message}") from error
            if not bucket and not _is_absolute(uri):
                raise InvalidArgument(
                    f"trusted_sources: {uri} is not absolute; give gs://BUCKET/FOLDER or /FOLDER."
                )
            if _has_dot_segments(path):
                raise InvalidArgument(f"trusted_sources: {uri} must not contain '.' or '..'.")
            found.append(_SourcePrefix(bucket, path))
        return cls(tuple(found), tuple(images))

    @property
    def allows_everything(self) -> bool:
        return not self.prefixes and not self.images

    def check_uris(self, uris: Iterable[tuple[str, str]]) -> None:
        """Refuse untrusted URIs, given with their fields; empty ones are skipped.

        Raises FailedPrecondition naming the field. Follows links on disk.
        """
        if self.allows_everything:
            return
        for field, uri in uris:
            if uri and not self._is_trusted(uri):
                raise field_error(
                    FailedPrecondition,
                    field,
                    f"{uri} is no source that this server trusts (setting trusted_sources: {self}). Loading "
                    "a model or a package runs its code. Put it there, or have the setting changed.",
                )

    def check_image(self, field: str, image: str) -> None:
        """Refuse an untrusted container image. Raises FailedPrecondition naming the field."""
        if not self.allows_everything and not any(_is_image_below(image, trusted) for trusted in self.images):
            raise field_error(
                FailedPrecondition,
                field,
                f"{image} is no image that this server trusts (setting trusted_sources: {self}). Running one "
                f"runs its code. Have {_IMAGE_SCHEME}REGISTRY/PATH added to the setting.",
            )

    def _is_trusted(self, uri: str) -> bool:
        bucket, path = parse_storage_uri(uri)
        if _has_dot_segments(path):
            return False
        if bucket:
            return any(prefix.contains(bucket, path) for prefix in self.prefixes)
        real = resolve_path(path)
        # Both paths: a link outside of the prefix could be changed before the files are read.
        return any(
            not prefix.bucket and prefix.contains("", path) and prefix.real_prefix.contains("", real)
            for prefix in self.prefixes
        )

    def __str__(self) -> str:
        sources = (
            f"gs://{prefix.bucket}/{prefix.path}" if prefix.bucket else prefix.path
            for prefix in self.prefixes
        )
        return ", ".join((*sources, *(f"{_IMAGE_SCHEME}{image}" for image in self.images)))


def check_local_uri(folders: LocalFolderPolicy, field: str, uri: str, *, whole: bool = False) -> None:
    """Refuse a local path that callers may not use; `whole`: with everything below it.

    Raises FailedPrecondition naming the field. Of a pattern (`FOLDER/*`) only the folder is checked; its
    files are when they are found. An invalid URI is left to whoever opens it.
    """
    try:
        bucket, path = parse_storage_uri(uri)
    except InvalidArgument:
        return
    if bucket:
        return
    try:
        folders.check_path(path.rpartition("/")[0] or "/" if uri.endswith("*") else path, whole_tree=whole)
    except FailedPrecondition as error:
        raise field_error(FailedPrecondition, field, error.message) from error


def parse_local_folder(field: str, uri: str) -> str:
    """The absolute path of a local folder, "" for one in a bucket. Raises InvalidArgument."""
    try:
        bucket, path = parse_storage_uri(uri)
    except InvalidArgument as error:
        raise field_error(InvalidArgument, field, error.message) from error
    return "" if bucket else path


def _is_image_below(image: str, trusted: str) -> bool:
    """Whether an image is the trusted one, with any tag, or below it."""
    return image == trusted or image.startswith((f"{trusted}/", f"{trusted}:", f"{trusted}@"))


def _has_dot_segments(path: str) -> bool:
    return not _DOT_SEGMENTS.isdisjoint(path.split("/"))


def _is_absolute(uri: str) -> bool:
    return "://" in uri or uri.startswith("/")
