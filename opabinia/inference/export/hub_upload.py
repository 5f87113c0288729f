"""Uploads of exported folders to the Hugging Face Hub, with the user's own token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast

from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

from opabinia.config import ConfigError, Problem
from opabinia.models.weights.download import can_connect

_ERRORS = cast("tuple[type[Exception], ...]", (OSError, ValueError, *HfHubHTTPError.__bases__))
"""Errors of the hub's client; its HTTP library depends on its version."""

_LOCAL_PATH = r"(?:[:,-] |\[)['\"]?((?:[/~]|[A-Za-z]:\\)[^\s'\",\]}]+)"
"""An absolute path as a value or an item of a list in YAML."""


class Destination(NamedTuple):
    """A repository of models on the hub.

    Attributes:
        name: ``OWNER/NAME``.
        account: the user whose token is used.
        private: whether only its owner can read it.
        exists: whether it is there already.
    """

    name: str
    account: str
    private: bool
    exists: bool

    @property
    def url(self) -> str:
        """The page of the repository."""
        return f"{constants.ENDPOINT}/{self.name}"


def find_destination(name: str, *, public: bool) -> Destination:
    """Look up the repository to upload to.

    Args:
        name: ``OWNER/NAME``.
        public: whether everybody may read it.

    Raises:
        ConfigError: the name is invalid, there is no token, the hub cannot be reached or refuses it, or the repository
            exists with the other visibility.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise _error(f"{name}: a repository of the Hugging Face Hub is named OWNER/NAME")
    if get_token() is None:
        raise _error("there is no token of the Hugging Face Hub: `hf auth login` stores one; HF_TOKEN is read, too")
    if not can_connect(constants.ENDPOINT):
        raise _error(f"there is no connection to {constants.ENDPOINT}")
    hub = HfApi(endpoint=constants.ENDPOINT)
    with _hub_errors("the Hugging Face Hub refuses: "):
        account = hub.whoami()["name"]
        try:
            private = bool(hub.model_info(name).private)
        except RepositoryNotFoundError:
            return Destination(name, account, not public, exists=False)
    if private == public:
        remedy = "without --public it stays so" if private else "add --public, or change that on its page"
        raise _error(f"{name} exists and is {'private' if private else 'public'}: {remedy}")
    return Destination(name, account, private, exists=True)


def describe_upload(folder: Path, destination: Destination) -> list[str]:
    """Return lines with the destination, visibility and files of an upload, and the local paths in ``config.yaml``."""
    state = "replaces its files of these names" if destination.exists else "a new repository"
    readers = "private: only its owner can read it" if destination.private else "PUBLIC: everybody can read it"
    lines = [f"upload to {destination.url} as {destination.account}, {state}; {readers}"]
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines += [f"  {path.relative_to(folder)} ({path.stat().st_size / 1e6:.3f} MB)" for path in files]
    text = (folder / "config.yaml").read_text(encoding="utf-8")
    if paths := sorted(set(re.findall(_LOCAL_PATH, text))):
        lines.append(f"config.yaml names paths of this machine: {', '.join(paths)}")
    return lines


def upload(folder: Path, destination: Destination) -> None:
    """Create the repository where it does not exist, and upload all files of a folder in one commit.

    Raises:
        ConfigError: the hub cannot be reached, or refuses; the folder stays.
    """
    hub = HfApi(endpoint=constants.ENDPOINT)
    with _hub_errors(f"{folder} is complete but not uploaded (`hf upload {destination.name} {folder}` retries): "):
        hub.create_repo(destination.name, private=destination.private, exist_ok=True)
        hub.upload_folder(repo_id=destination.name, folder_path=folder, commit_message="Export of Opabinia")


@contextmanager
def _hub_errors(prefix: str) -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        raise _error(prefix + " ".join(str(error).split())) from error


def _error(message: str) -> ConfigError:
    return ConfigError(Problem("command line", "--push", message))
