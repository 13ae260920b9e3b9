"""Which of our versions other people's names mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import FailedPrecondition, InvalidArgument, NotFound
from serving.names import ModelName
from serving.protocols.addresses import (
    ModelAddress,
    choose_version,
    extract_version_number,
    find_version_number_error,
    parse_address,
    to_protocol_version,
    unknown_model_error,
)

MODEL = ModelName("local", "census")


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("v3", "3"),
        ("v_3", "3"),
        ("census12", "12"),
        ("V007", "7"),
        ("v0", "0"),
        ("v20240101120000", "20240101120000"),
        ("v9223372036854775807", "9223372036854775807"),
        ("v9223372036854775808", ""),
        ("v00000000000000000001", "1"),
        ("v3b", ""),
        ("v_1_2", ""),
        ("v__3", ""),
        ("v-3", "3"),
        ("v--3", ""),
        ("v.3", ""),
        ("v1.2", ""),
        ("sklearn-iris-3", ""),
        ("canary", ""),
    ],
)
def test_the_number_of_a_version(version: str, told: str) -> None:
    """Letters, maybe one `_` or `-`, and a number of 64 bits; what has none is told by its id."""
    assert extract_version_number(version) == told
    assert to_protocol_version(version) == (told or version)


VERSIONS = {
    "v1": {"stable": ""},
    "v2": {"stable": "off", "canary": "on"},
    "v_3": {"both": "yes"},
    "census12": {"both": "true", "stable": "False"},
    "beta": {},
    "v3b": {},
}


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        (ModelAddress(MODEL), ""),
        (ModelAddress(MODEL, "v2"), "v2"),
        (ModelAddress(MODEL, "2"), "v2"),
        (ModelAddress(MODEL, "0002"), "v2"),
        (ModelAddress(MODEL, "3"), "v_3"),
        (ModelAddress(MODEL, "12"), "census12"),
        (ModelAddress(MODEL, label="stable"), "v1"),
        (ModelAddress(MODEL, label="canary"), "v2"),
        (ModelAddress(MODEL, label="beta"), "beta"),
        (ModelAddress(MODEL, label="v1"), "v1"),
    ],
)
def test_a_version_is_found(asked: ModelAddress, meant: str) -> None:
    """By its id, its number, or a label that is not switched off; else by an id that is the label."""
    assert choose_version(asked, VERSIONS) == meant


@pytest.mark.parametrize(
    "asked",
    [
        ModelAddress(MODEL, "4"),
        ModelAddress(MODEL, "v4"),
        ModelAddress(MODEL, "-1"),
        ModelAddress(MODEL, "1.0"),
        ModelAddress(MODEL, "0" * 128 + "1"),
        ModelAddress(MODEL, "\N{ARABIC-INDIC DIGIT ONE}"),
    ],
)
def test_what_is_not_there_is_not_found(asked: ModelAddress) -> None:
    """In TensorFlow Serving's words, and with what there is."""
    with pytest.raises(
        NotFound, match=r"Servable not found for request: .*v1, v2, v_3, census12, beta and 1 mo"
    ):
        choose_version(asked, VERSIONS)


@pytest.mark.parametrize("label", ["nobody", "1", "x.y-z"])
def test_a_label_that_is_on_none_is_no_argument(label: str) -> None:
    """As TensorFlow Serving has it, with what there is."""
    with pytest.raises(
        InvalidArgument, match=f"^Unrecognized servable version label: {label}. The versions of"
    ):
        choose_version(ModelAddress(MODEL, label=label), VERSIONS)


def test_numbers_of_versions_have_63_bits() -> None:
    """As in TensorFlow Serving."""
    assert (
        find_version_number_error(f"{2**63 - 1}")
        is find_version_number_error("v1")
        is find_version_number_error("")
        is None
    )
    assert "Failed to convert version: 9223372036854775808" in str(find_version_number_error(f"{2**63}"))


def test_what_may_be_several_is_refused() -> None:
    """They are named."""
    with pytest.raises(FailedPrecondition, match="number 3: v3, v_3"):
        choose_version(ModelAddress(MODEL, "3"), {"v3": {}, "v_3": {}, "v4": {}})
    with pytest.raises(FailedPrecondition, match="label both: v_3, census12"):
        choose_version(ModelAddress(MODEL, label="both"), VERSIONS)
    assert choose_version(ModelAddress(MODEL, "v3"), {"v3": {}, "v_3": {}}) == "v3"


def test_a_model_without_versions() -> None:
    """It says so; and so does one that is not there."""
    with pytest.raises(NotFound, match="has no versions"):
        choose_version(ModelAddress(MODEL, "1"), {})
    with pytest.raises(InvalidArgument, match="has no versions"):
        choose_version(ModelAddress(MODEL, label="l"), {})
    assert str(unknown_model_error(ModelAddress(MODEL))) == (
        "Request for unknown model: there is no model projects/local/models/census. Servable not found for "
        "request: Latest(census)."
    )


def test_names_of_models() -> None:
    """One of the default project, or any in full; a version is not a model."""
    assert parse_address("census", "local", version="3") == ModelAddress(MODEL, "3")
    assert parse_address("projects/p/models/m", "local", label="l") == ModelAddress(
        ModelName("p", "m"), label="l"
    )
    with pytest.raises(InvalidArgument, match="names a version"):
        parse_address("projects/p/models/m/versions/v1", "local")
    with pytest.raises(InvalidArgument, match="Invalid resource name 'a/b'"):
        parse_address("a/b", "local")
    with pytest.raises(InvalidArgument, match="name one"):
        parse_address("census", "local", version="3", label="stable")


@given(
    st.text(max_size=30),
    st.text(max_size=30),
    st.dictionaries(st.text(), st.dictionaries(st.text(), st.text())),
)
def test_any_text_is_answered_with_a_version_or_an_error(
    version: str, label: str, versions: dict[str, dict[str, str]]
) -> None:
    """Whatever clients and labels say."""
    try:
        meant = choose_version(ModelAddress(MODEL, version, label), versions)
    except (NotFound, InvalidArgument, FailedPrecondition):
        return
    assert meant in versions or (meant, version, label) == ("", "", "")
