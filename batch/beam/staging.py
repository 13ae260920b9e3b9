"""Packages for workers on other machines: this program, the model's libraries, the user's packages.

Each becomes an archive that Beam hands to the workers, which install it with pip before they begin.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Iterable, Sequence
from importlib import import_module, metadata
from pathlib import Path
from textwrap import dedent

from packaging.version import Version

from batch.messages import ModelSource
from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage import ArtifactFetcher, FileStore
from serving.errors import FailedPrecondition, InvalidArgument, NotFound
from serving.frameworks import (
    Framework,
    find_by_files,
    find_user_code_framework,
    list_installed,
    load_frameworks,
)

_NAME = "pilotlight"
# Our packages with the steps of the pipeline, and the libraries that they import.
PACKAGES = ("batch", "serving")
_CORE = ("google-cloud-storage", "google-crc32c", "msgspec", "numpy", "orjson", "pysimdjson")
# Files that Beam accepts as packages.
_ARCHIVES = (".tar", ".tar.gz", ".whl", ".zip")


def build_archives(model: ModelSource, folder: Path, folders: LocalFolderPolicy | None = None) -> list[str]:
    """Make the archives in `folder`, which is made anew, and return them in the order of their installation.

    Raises FailedPrecondition when a library is not installed here, so that its version is not known,
    InvalidArgument for user packages that Beam does not take, and what fetching those from `folders` raises.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ours = build_source_archive(list_requirements(model), folder)
    users = [
        _fetch_package(uri, folder / f"{number}", folders) for number, uri in enumerate(model.package_uris)
    ]
    names = [path.name for path in (ours, *users)]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"Two packages are called {name}; workers cannot tell them apart.")
    return [str(path) for path in (ours, *users)]


def list_requirements(model: ModelSource) -> list[str]:
    """The libraries that the model needs, each in the version that is installed here."""
    return [
        f"{name}=={_installed_version(name)}" for name in (*_CORE, *_list_libraries(_find_framework(model)))
    ]


def build_source_archive(requires: Sequence[str], folder: Path) -> Path:
    """This program as it runs, as a source archive that pip installs with `requires`.

    It is made of the imported packages, however they were installed.
    """
    version = _installed_version(_NAME)
    target = folder / f"{_NAME}-{version}.tar.gz"
    sources = dict(_list_sources())
    names = sorted({str(Path(name).parent).replace("/", ".") for name in sources})
    with tarfile.open(target, "w:gz") as archive:
        _add_file(
            archive, f"{_NAME}-{version}/pyproject.toml", _render_pyproject(version, names, requires).encode()
        )
        for name, path in sources.items():
            _add_file(archive, f"{_NAME}-{version}/{name}", path.read_bytes())
    return target


def _find_framework(model: ModelSource) -> Framework:
    """The framework of a model, by the names of its files where there is none in `model`."""
    if model.prediction_class:
        return find_user_code_framework()
    if model.framework:
        return load_frameworks()[model.framework]
    place = (model.model_dir or model.uri).rstrip("/")
    try:
        names = {item.uri.rpartition("/")[2] for item in FileStore().glob(f"{place}/*")}
    except NotFound:
        names = set()  # loading says what is missing, better than can be said here
    return next(iter(find_by_files(names)), find_user_code_framework())


def _list_libraries(framework: Framework) -> list[str]:
    """Those that it shares a pilot with online. A routine that needs more names it in its package."""
    together = [one for one in list_installed() if one.pilot == framework.pilot and one is not framework]
    return sorted(name for one in (framework, *together) for name in one.distributions)


def _installed_version(name: str) -> str:
    try:
        # No index has versions with a local part (2.16.1+cu12).
        return Version(metadata.version(name)).public
    except metadata.PackageNotFoundError as error:
        raise FailedPrecondition(
            f"{name} is not installed here, so which version the workers need is not known. Install "
            "pilotlight[all], or give the workers an environment that has all they need: "
            "--sdk_container_image=IMAGE."
        ) from error


def _fetch_package(uri: str, folder: Path, folders: LocalFolderPolicy | None) -> Path:
    if not uri.endswith(_ARCHIVES):
        raise InvalidArgument(
            f"{uri} cannot be handed to the workers of another runner: Beam takes packages whose names end "
            f"in {', '.join(_ARCHIVES)}."
        )
    return ArtifactFetcher(folder / "cache", 0, folders=folders).fetch_file(uri, folder)


def _list_sources() -> Iterable[tuple[str, Path]]:
    for package in PACKAGES:
        (root,) = import_module(package).__path__
        for path in sorted(Path(root).rglob("*")):
            if path.suffix in (".py", ".binpb") or path.name == "py.typed":
                yield f"{package}/{path.relative_to(root).as_posix()}", path


def _render_pyproject(version: str, packages: Sequence[str], requires: Sequence[str]) -> str:
    # Lists of strings are written alike in TOML and in JSON.
    return dedent(
        f"""\
        [build-system]
        requires = ["setuptools>=61"]
        build-backend = "setuptools.build_meta"

        [project]
        name = "{_NAME}"
        version = "{version}"
        dependencies = {json.dumps(list(requires))}

        [tool.setuptools]
        packages = {json.dumps(list(packages))}

        [tool.setuptools.package-data]
        "*" = ["py.typed", "*.binpb"]
        """
    )


def _add_file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))
