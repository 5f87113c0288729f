"""Azure Blob Storage: local copies, uploads and errors with Azurite, its emulator (npm install -g azurite)."""

import io
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("adlfs", reason="adlfs is absent: pip install 'opabinia[azure]'")

from opabinia.engine.checkpointing.upload import Upload
from opabinia.runtime import storage
from opabinia.runtime.local_copies import RangeFile, is_placeholder, local_copy, read_file, refresh
from opabinia.runtime.storage import StorageError

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # documented
VARIABLE = "AZURE_STORAGE_CONNECTION_STRING"


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start Azurite; yield the connection string."""
    program = os.environ.get("AZURITE") or shutil.which("azurite-blob")
    if program is None:
        pytest.skip("there is no azurite-blob on the path or in $AZURITE: npm install -g azurite")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    options = ("--silent", "--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence")
    command = [program, *options, "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    process = subprocess.Popen(command, cwd=tmp_path_factory.mktemp("azurite"), stdout=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with socket.socket() as connection:
                if connection.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        endpoint = f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
        yield f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{endpoint}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Return a function that sets the connection string, as of a new process."""
    monkeypatch.setenv("OPABINIA_REMOTE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(storage, "PATIENCE", 0.0)

    def connect(text: str) -> None:
        import adlfs

        monkeypatch.setenv(VARIABLE, text)
        adlfs.AzureBlobFileSystem.clear_instance_cache()
        storage._connect.cache_clear()

    return connect


@pytest.fixture
def container(azurite: str, connect: Callable[[str], None], tmp_path: Path) -> Any:
    """A client of a new container."""
    from azure.storage.blob import BlobServiceClient

    connect(azurite)
    return BlobServiceClient.from_connection_string(azurite).create_container(f"c{abs(hash(tmp_path))}")


def fill(container: Any, **blobs: bytes) -> str:
    for name, content in blobs.items():
        container.upload_blob(name, content, overwrite=True)
    return f"az://{container.container_name}"


def test_images_and_tar_files_are_fetched_when_they_are_read(container: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tar = os.urandom(5_000_000)
    names = {"data/a/é [1].jpg": b"one", "data/list.txt": b"a", "data/1.tar": tar, "data/sub/b/2.png": b""}
    url = fill(container, **names, **{"data2/x.jpg": b"other"})
    container.upload_blob("data/sub", b"", metadata={"hdi_isfolder": "true"})  # of accounts with folders
    folder = Path(local_copy(f"{url}/data"))
    assert {f"data/{path.relative_to(folder)}" for path in folder.rglob("*") if path.is_file()} == set(names)
    image = folder / "a" / "é [1].jpg"
    assert (folder / "list.txt").read_text() == "a" and is_placeholder(image)
    file = io.BufferedReader(RangeFile(folder / "1.tar"))
    file.seek(4_000_000)
    assert file.read(500_000) == tar[4_000_000:4_500_000]
    # By the MD5 an image needs one request.
    monkeypatch.setattr(storage, "check_unchanged", lambda *arguments: pytest.fail("a second request"))
    assert read_file(image) == b"one" and not is_placeholder(image)


def test_changed_and_deleted_blobs(container: Any) -> None:
    url = fill(container, **{"data/1.jpg": b"one", "data/2.jpg": b"two", "data/3.jpg": b"three"})
    folder = Path(local_copy(f"{url}/data"))
    fill(container, **{"data/1.jpg": b"ONE"})
    container.delete_blob("data/2.jpg")
    for name, text in (("1.jpg", "has changed since it was listed"), ("2.jpg", f"there is no {url}/data/2.jpg")):
        with pytest.raises(StorageError, match=text):
            read_file(folder / name)
    refresh(f"{url}/data")
    assert read_file(folder / "1.jpg") == b"ONE" and not (folder / "2.jpg").exists()
    assert read_file(folder / "3.jpg") == b"three"


def test_uploads(container: Any, tmp_path: Path) -> None:
    url, folder = f"az://{container.container_name}/runs/a", tmp_path / "run"
    (folder / "sub").mkdir(parents=True)
    for name in ("config.yaml", "sub/empty.log"):
        (folder / name).write_text("seed: 1\n" if name == "config.yaml" else "")
    upload = Upload(folder, url, 2)
    upload.send_all()
    upload.send_all()
    objects = storage.objects(url)
    assert sorted(objects) == ["config.yaml", "sub/empty.log"]
    storage.download(f"{url}/config.yaml", objects["config.yaml"], tmp_path / "fetched")
    assert (tmp_path / "fetched").read_text() == "seed: 1\n"
    storage.upload_folder(folder, f"{url}/features", last="config.yaml")
    storage.upload_folder(folder, f"{url}/features", last="config.yaml")
    upload._delete("sub/empty.log")
    upload._delete("sub/empty.log")
    assert sorted(storage.objects(url)) == ["config.yaml", "features/config.yaml", "features/sub/empty.log"]
    with pytest.raises(StorageError, match="is an object, not a folder"):
        storage.objects(f"{url}/config.yaml")
    nowhere = "az://no-container/a"
    with pytest.raises(StorageError, match=f"there is no {nowhere}"):
        storage.retry(nowhere, lambda: storage.upload(folder / "config.yaml", nowhere))


def test_wrong_names_and_credentials(container: Any, azurite: str, connect: Callable[[str], None]) -> None:
    url = fill(container, **{"data/1.jpg": b"one"})
    for wrong, text in (
        (f"{url}/nothing", f"there is no {url}/nothing"),
        ("az://no-container/data", "there is no az://no-container/data"),
        ("az://Not_Valid/data", "az://Not_Valid/data: .*invalid characters"),
    ):
        with pytest.raises(StorageError, match=text):
            local_copy(wrong)
    for wrong in (azurite.replace("Eby8", "Abc8"), "not a connection string"):
        connect(wrong)
        with pytest.raises(StorageError, match=r"access is refused \(.*\); credentials are those of adlfs") as error:
            local_copy(f"{url}/data")
        assert KEY[4:] not in str(error.value)


def test_a_server_that_is_down_is_reported_at_once(connect: Callable[[str], None]) -> None:
    """The Azure SDK would repeat the request for 84 seconds."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # not listening
        endpoint = f"BlobEndpoint=http://127.0.0.1:{closed.getsockname()[1]}/{ACCOUNT};"
        connect(f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{endpoint}")
        started = time.monotonic()
        with pytest.raises(StorageError, match=r"az://box/data: no success for 0 seconds: ServiceRequestError"):
            list(storage.list_objects("az://box/data"))
        assert time.monotonic() - started < 20
