from __future__ import annotations

from pathlib import Path

import pytest

from serving.artifacts.trusted_sources import TrustedSources
from serving.errors import FailedPrecondition, InvalidArgument


def trusts(setting: str, uri: str) -> bool:
    try:
        TrustedSources.from_setting(setting).check_uris([("version.deployment_uri", uri)])
    except FailedPrecondition:
        return False
    return True


@pytest.mark.parametrize("uri", ["gs://bucket/model", "/anywhere", "file:///anywhere", "relative/path", ""])
def test_without_the_setting_all_is_trusted(uri: str) -> None:
    """As it was before there was one."""
    assert TrustedSources.from_setting("").allows_everything
    assert trusts(" , ", uri)


@pytest.mark.parametrize(
    ("setting", "uri", "trusted"),
    [
        ("gs://bucket", "gs://bucket/any/model", True),
        ("gs://bucket", "gs://bucket", True),
        ("gs://bucket/", "gs://bucket/model", True),
        ("gs://bucket/models", "gs://bucket/models", True),
        ("gs://bucket/models/", "gs://bucket/models/a", True),
        ("gs://bucket/models", "GS://bucket/models/a/", True),
        ("gs://other, gs://bucket/models", "gs://bucket/models/a.tar.gz", True),
        # what only looks like it
        ("gs://bucket", "gs://bucket-evil/model", False),
        ("gs://bucket", "gs://evil/bucket", False),
        ("gs://bucket", "gs://Bucket/model", False),
        ("gs://bucket", "gs://bucket.evil/model", False),
        ("gs://bucket/models", "gs://bucket/models-evil/a", False),
        ("gs://bucket/models", "gs://bucket/Models/a", False),
        ("gs://bucket/models", "gs://bucket/model", False),
        ("gs://bucket/models", "gs://bucket/models/../evil", False),
        ("gs://bucket/models", "gs://bucket/./models/a", False),
        ("gs://bucket/models", "gs://bucket//models/a", False),
        ("gs://bucket/models", "gs://bucket/models%2fa", False),
        ("gs://bucket/models", "gs://bucket/models%2f..%2fevil", False),
        ("gs://bucket/models", "gs://bucket/%6dodels/a", False),
        ("gs://bucket", "/bucket/model", False),
        ("gs://bucket", "file:///bucket/model", False),
        ("gs://bucket", "gs:/bucket/model", False),
        ("/srv/models", "gs://srv/models/a", False),
    ],
)
def test_buckets(setting: str, uri: str, trusted: bool) -> None:
    """By name and by whole parts of the path, as Cloud Storage takes them: to the letter."""
    assert trusts(setting, uri) == trusted


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever links lead, and however the path is written, it has to be inside twice."""
    good, evil = tmp_path / "good", tmp_path / "good-evil"
    for folder in (good / "model", evil / "model"):
        folder.mkdir(parents=True)
    (good / "out").symlink_to(evil)
    (good / "alias").symlink_to(good / "model")
    (tmp_path / "in").symlink_to(good)
    (tmp_path / "mount").symlink_to(good)
    monkeypatch.chdir(good)

    def trusted(uri: str, setting: object = good) -> bool:
        return trusts(str(setting), uri)

    assert trusted(f"{good}/model")
    assert trusted(f"{good}")
    assert trusted(f"{good}/alias")
    assert trusted("model")
    assert trusted(f"file://{good}/model")
    assert trusted(f"file://localhost{good}/%6dodel")
    assert trusted(f"{tmp_path}/mount/model", f"{tmp_path}/mount")
    assert trusted("/etc", "/")
    assert trusted(f"{good}/model", f"file://{good}/")

    assert not trusted(f"{evil}/model")
    assert not trusted(f"{good}/../good-evil/model")
    assert not trusted(f"{good}/model/../model")
    assert not trusted(f"file://{good}/%2e%2e/good-evil/model")
    assert not trusted(f"{good}/out/model"), "a link leads outside"
    assert not trusted(f"{tmp_path}/in/model"), "a link from outside may lead elsewhere in a moment"
    assert not trusted("../good-evil/model")
    assert not trusted(f"{good}".upper() + "/model")
    assert not trusted(f"gs://{good.name}/model")


def test_the_refusal_says_what_to_do() -> None:
    """It names the field, the URI, the setting and what it is."""
    sources = TrustedSources.from_setting("gs://bucket/models,/srv/models/")
    with pytest.raises(FailedPrecondition) as caught:
        sources.check_uris(
            [("version.deployment_uri", "/srv/models/a"), ("version.package_uris", "/tmp/a.whl")]
        )

    assert caught.value.field == "version.package_uris"
    assert "/tmp/a.whl is no source that this server trusts" in caught.value.message
    assert "(setting trusted_sources: gs://bucket/models, /srv/models)" in caught.value.message


@pytest.mark.parametrize(
    "setting", ["ftp://host/models", "models", "gs://", "/srv/../etc", "gs://b/a,relative"]
)
def test_a_setting_that_cannot_be_is_refused(setting: str) -> None:
    """By its name."""
    with pytest.raises(InvalidArgument, match="trusted_sources: "):
        TrustedSources.from_setting(setting)
