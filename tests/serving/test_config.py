from __future__ import annotations

from pathlib import Path

import pytest

from serving.config import ServeConfig, load_config
from serving.errors import InvalidArgument


@pytest.mark.parametrize(("value", "bound"), [("1.5", "at most 1"), ("-0.1", "at least 0")])
def test_a_value_out_of_bounds_is_refused(value: str, bound: str) -> None:
    """With the flag and the bound."""
    with pytest.raises(InvalidArgument, match=f"--otel-sample must be {bound}; it is {value}"):
        load_config(ServeConfig, {"otel_sample": value})


@pytest.mark.parametrize("value", ["on", "65536", "-1", "8500.5", ""])
def test_a_port_of_grpc_that_cannot_be_is_refused(value: str) -> None:
    """It is off, or a number."""
    with pytest.raises(InvalidArgument, match="--grpc-port must be one of off or a port; it is"):
        load_config(ServeConfig, {"grpc_port": value})
    for allowed in ("off", "0", "65535"):
        assert load_config(ServeConfig, {"grpc_port": allowed}).grpc_port == allowed


def test_on_and_off_need_no_quotes_in_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """YAML makes true and false of them; a chart makes variables of these."""
    file = tmp_path / "config.yaml"
    file.write_text("access: on\nmerge_requests: off\npeer_port: off\nconsole: off\n")
    monkeypatch.setenv("PILOTLIGHT_PILOTS", "false")
    found = load_config(ServeConfig, {}, file)
    assert (found.access, found.merge_requests, found.peer_port) == ("on", "off", "off")
    assert found.pilots == "off"
    assert found.console is False

    file.write_text("log_format: off\n")
    with pytest.raises(InvalidArgument, match="log_format must be one of text, json; it is 'False'"):
        load_config(ServeConfig, {}, file)
