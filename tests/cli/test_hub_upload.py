"""``opabinia export --push`` and ``hf:OWNER/NAME``, with a server on this machine instead of the Hugging Face Hub."""

import base64
import json
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import typer
from huggingface_hub import constants
from PIL import Image

import opabinia as library
from opabinia.config import ConfigError
from opabinia.inference.export.hub_upload import find_destination, upload

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PATH = "/api/models/ann/digits"


class Hub(ThreadingHTTPServer):
    """The requests of an upload of small files and of downloads.

    Attributes:
        files: of the repository ``ann/digits``; None: there is none.
        private: whether it is private.
    """

    files: dict[str, bytes] | None = None
    private: bool | None = None


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def answer(self, content: Any, status: int = 200, **headers: str) -> None:
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(raw)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def do_GET(self) -> None:
        hub, file = self.server, self.path.partition("/resolve/")[2].partition("/")[2]
        if self.path.startswith("/api/whoami") and self.headers["Authorization"] == "Bearer hf_right":
            self.answer({"name": "ann", "type": "user"})
        elif self.path.startswith("/api/whoami"):
            self.answer({"error": "Invalid user token."}, 401)
        elif hub.files is None:
            self.answer({}, 404, X_Error_Code="RepoNotFound")
        elif self.path == PATH:
            self.answer({"id": "ann/digits", "private": hub.private, "siblings": []})
        elif file in hub.files:
            self.answer(hub.files[file], ETag=f'"{file}"', X_Repo_Commit=COMMIT)
        else:
            self.answer({}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            request = json.loads(body)  # the fields differ by version
            self.server.private = request.get("private") or request.get("visibility") == "private"
            self.server.files = {}
            self.answer({"url": "http://127.0.0.1/ann/digits", "name": "ann/digits", "id": "1"})
        elif self.path.startswith(f"{PATH}/preupload/"):
            paths = [file["path"] for file in json.loads(body)["files"]]
            self.answer({"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]})
        elif self.path.startswith(f"{PATH}/commit/"):
            assert self.server.files is not None
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer({"commitUrl": f"http://127.0.0.1/ann/digits/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self.answer({"errors": [], "warnings": []})  # the metadata of the model card

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", url)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + template[template.index("/{repo_id}") :])
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "hf_right")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.chdir(tmp_path)
        yield server
        server.shutdown()
        thread.join()


def test_a_model_is_uploaded_and_loaded(
    six_steps: Path, hub: Hub, opabinia: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def push(*options: str) -> Any:
        return opabinia("export", six_steps, "--format=huggingface", f"--out={tmp_path / 'digits'}", *options)

    declined = push("--push=ann/digits")
    assert declined.status == 2 and "no terminal for the confirmation; --yes uploads" in declined.err

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", lambda _: False)
    declined = push("--push=ann/digits", "--license=mit")
    assert declined.status == 0 and hub.files is None and "nothing was uploaded" in declined.out
    for text in (
        "/ann/digits as ann, a new repository; private: only its owner",
        "  model.safetensors (",
        "state.json",
    ):
        assert text in declined.out
    upload(tmp_path / "digits", find_destination("ann/digits", public=False))
    assert hub.private and hub.files and hub.files["README.md"].startswith(b"---\nlicense: mit\n")
    assert hub.files.keys() == {path.name for path in (tmp_path / "digits").iterdir()}

    predictor = library.load("hf:ann/digits", device="cpu")
    images = torch.randint(0, 256, (2, 1, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        expected = library.load(six_steps, device="cpu").task.predict({"image": images})["logits"]
        assert torch.equal(predictor.task.predict({"image": images})["logits"], expected)
    folder = Path(f"runs/ann/digits-{COMMIT[:7]}")
    hub.files = None  # everything is in the cache
    config = next((tmp_path / "cache").rglob("snapshots/*/config.yaml"))
    text = config.read_text(encoding="utf-8")
    config.write_text(f"plugins: [antigravity]\n{text}", encoding="utf-8")
    with pytest.raises(ConfigError, match="plugins: hf:ann/digits imports modules of this machine"):
        library.load("hf:ann/digits")
    config.write_text(text, encoding="utf-8")
    image_path = tmp_path / "image.png"
    Image.new("L", (8, 8)).save(image_path)
    assert opabinia("predict", "hf:ann/digits", image_path).status == 0
    assert (folder / "predictions" / "predictions.jsonl").is_file()


def test_errors_of_an_upload(
    hub: Hub, opabinia: Callable[..., Any], six_steps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def push(*options: str) -> str:
        result = opabinia("export", six_steps, "--out=x", *options)
        assert result.status == 2 and not Path("x").exists()
        return str(result.err)

    layout = "--format=huggingface"
    assert "--push: it needs --format huggingface" in push("--push=ann/digits", "--yes")
    assert "--public: it belongs to --push" in push(layout, "--public")
    assert "mine: a repository of the Hugging Face Hub is named OWNER/NAME" in push(layout, "--push=mine", "--yes")
    assert "hf:ann/digits: " in opabinia("eval", "hf:ann/digits").err
    hub.files, hub.private = {}, False
    assert "ann/digits exists and is public: add --public" in push(layout, "--push=ann/digits", "--yes")
    assert "hf:ann/digits: the repository has no state.json" in opabinia("eval", "hf:ann/digits").err
    hub.private = True
    private = push(layout, "--push=ann/digits", "--yes", "--public")
    assert "ann/digits exists and is private: without --public" in private
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "the Hugging Face Hub refuses" in push(layout, "--push=ann/digits", "--yes")
    monkeypatch.delenv("HF_TOKEN")
    assert "no token of the Hugging Face Hub: `hf auth login`" in push(layout, "--push=ann/digits", "--yes")
