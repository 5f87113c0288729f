"""Pretrained weights without an internet connection: from the cache, or a helpful error within seconds."""

import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, NoReturn

import pytest
import timm as timm_library
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from opabinia.config import ConfigError, build, catalog, check, compose
from opabinia.models.backbones.timm import timm
from opabinia.models.backbones.video.torchvision_video import TorchvisionVideo
from opabinia.models.weights import download

MODEL = "test_resnet.r160_in1k"


@pytest.fixture
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Empty the caches and refuse all connections; return the attempted ones."""
    attempts: list[Any] = []

    def refuse(address: Any, *_: Any, **__: Any) -> NoReturn:
        attempts.append(address)
        raise OSError("the network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))
    monkeypatch.setattr(download, "getproxies", dict)
    return attempts


@pytest.mark.parametrize(
    "make",
    [lambda: timm(3, model=MODEL, pretrained=True), lambda: TorchvisionVideo(3, model="r3d_18", pretrained=True)],
)
def test_without_a_connection_there_is_one_attempt(no_network: list[Any], make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"not in the cache, and there is no connection to .*set pretrained: false"):
        make()
    assert len(no_network) == 1 and no_network[0][1] == 443


def test_offline_mode_makes_no_attempt(no_network: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"HF_HUB_OFFLINE is set; .* init\.weights=FILE"):
        timm(3, model=MODEL, pretrained=True)
    assert no_network == []


@pytest.mark.parametrize(
    "make",
    [lambda: timm(3, model=MODEL, pretrained=True), lambda: TorchvisionVideo(3, model="r3d_18", pretrained=True)],
)
def test_weights_that_a_checkpoint_replaces_are_not_downloaded(no_network: list[Any], make: Callable[[], Any]) -> None:
    """A trained model is loaded on a machine without internet; its preprocessing is that of the pretrained weights."""
    with download.replacing_weights():
        backbone = make()
    assert backbone.preprocessing is not None and backbone.trained_classes in (1000, 400)
    assert no_network == [] and not download.are_replaced()


def test_cached_weights_need_no_connection(no_network: list[Any], tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / f"models--timm--{MODEL}" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    weights = timm_library.create_model(MODEL).state_dict()
    save_file(weights, snapshot / "model.safetensors")
    backbone = timm(3, model=MODEL, pretrained=True)
    assert torch.equal(backbone.state_dict()["model.conv1.0.weight"], weights["conv1.0.weight"])
    assert no_network == [] and not constants.HF_HUB_OFFLINE


def test_a_server_that_never_answers_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller does not wait for a DNS lookup or a connection that hangs."""
    given_up, timeouts = Event(), []

    def hang(address: Any, timeout: float) -> NoReturn:
        timeouts.append(timeout)
        given_up.wait()
        raise OSError

    monkeypatch.setattr(socket, "create_connection", hang)
    monkeypatch.setattr(download, "_PATIENCE", 0.1)
    assert not download.can_connect("https://example.org")
    assert timeouts == [0.05], "no single address uses the whole time"
    given_up.set()


def test_the_proxy_is_contacted_instead_of_the_server(no_network: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "getproxies", lambda: {"https": "http://proxy.local:3128"})
    assert not download.can_connect("https://example.org")
    assert no_network == [("proxy.local", 3128)]


@pytest.mark.parametrize(
    ("recipe", "overrides", "location"),
    [
        ("classification/digits", ["task.backbone.pretrained=true"], "command line: task.backbone.pretrained=true"),
        ("mine.yaml", [], "mine.yaml:4"),
        ("mine.yaml", ["vars.weights=true"], "mine.yaml:4 (${vars.weights}: command line: vars.weights=true)"),
    ],
)
def test_the_error_names_the_line_of_the_config(
    no_network: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recipe: str,
    overrides: list[str],
    location: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    value = '"${vars.weights}"' if overrides and recipe == "mine.yaml" else "true"
    Path("mine.yaml").write_text(
        f"base: classification/digits\ntask:\n  backbone:\n    pretrained: {value}\n"
        + "vars: {weights: false}\n" * ("$" in value)
    )
    tree = compose(recipe, overrides)
    resolved = check(tree, catalog())
    task = build(resolved.config, origins=resolved.origins).keywords["task"]
    with pytest.raises(ConfigError) as error:
        task.keywords["backbone"](3)
    assert str(error.value).startswith(f"{location}: task.backbone.pretrained: the weights of timm's ")


def test_a_repository_without_accessible_weights_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local hub answers every request with a status and an error code of the Hugging Face hub."""

    class Hub(BaseHTTPRequestHandler):
        status, code = 404, ""

        def do_HEAD(self) -> None:
            self.send_response(self.status)
            self.send_header("X-Error-Code", self.code)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(download, "getproxies", dict)
    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
        )
        for status, code, message in (
            (401, "RepoNotFound", f"{address} has no such repository, or it is private"),
            (404, "EntryNotFound", "the repository has no model.safetensors and no pytorch_model.bin"),
            (403, "", f"403 .*; download {address}/nobody/model/resolve/main/model.safetensors on another machine"),
        ):
            Hub.status, Hub.code = status, code
            with pytest.raises(download.UnavailableWeights, match=f"hf:nobody/model: {message}"):
                download.hub_file("nobody/model")
        with pytest.raises(download.UnavailableWeights, match=r"hf:model: a repository of .* is named OWNER/NAME"):
            download.hub_file("model")
        server.shutdown()
