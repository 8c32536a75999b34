"""Published runs at Hugging Face: names such as `hf:USER/NAME`, download and upload."""

import re
from pathlib import Path
from typing import Any

from jaxrl.core.errors import UsageError, brief, is_installed, one_line

PREFIX = "hf:"
PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
REPOSITORY = re.compile(rf"({PART}/{PART})(?:@([A-Za-z0-9._/-]+))?", re.ASCII)
LONGEST_NAME = 96  # characters, as Hugging Face has it
# Of a published folder what playing reads; the rest is for people.
PLAYED = ("config.json", "metadata.json", "metrics.jsonl", "checkpoints/*")
REPLACED = ("checkpoints/*", "policies/*", "curves.png", "report.html", "metrics.jsonl")
MARK = "published.json"  # by which a publication is known as ours, with the names of its files


def is_hub_name(path: Any) -> bool:
    """Returns whether a path is `hf:USER/NAME`, or is meant to be."""
    return isinstance(path, str) and path.startswith(PREFIX)


def check_hub_name(name: str) -> tuple[str, str | None]:
    """("USER/NAME", revision) of `hf:USER/NAME` or `hf:USER/NAME@REVISION`.

    Raises:
        UsageError: it is no name that Hugging Face takes.
    """
    match = REPOSITORY.fullmatch(name.removeprefix(PREFIX))
    allowed = match is not None and not re.search(r"--|\.\.|\.git$", match[1])
    if not allowed or len(match[1]) > LONGEST_NAME:
        raise UsageError(
            f"{brief(name)} is no name at Hugging Face: give {PREFIX}USER/NAME, of letters, "
            f"digits and single -, _ and . between them, {LONGEST_NAME} characters at most"
        )
    return match[1], match[2]


def require_hub(what: str, package: str = "huggingface_hub") -> None:
    """Raises UsageError where a package of the extra `hub` is not installed."""
    if not is_installed(package):
        name = package.replace("_", "-")
        raise UsageError(f'{what} needs {name}, which is not installed: pip install "jaxrl[hub]"')


def downloaded(path: Any) -> Any:
    """The folder of a published run: for `hf:USER/NAME` a download, any other path as it is.

    What is in the cache already is not downloaded again.

    Raises:
        UsageError: a bad name, no such repository, or no network.
    """
    if not is_hub_name(path):
        return path
    name, revision = check_hub_name(path)
    require_hub(path)
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(name, revision=revision, allow_patterns=list(PLAYED))
    except Exception as error:  # of the network, of Hugging Face, of the disk
        raise UsageError(f"{path} cannot be downloaded: {one_line(error)}") from None


def upload(folder: Path, path: str, *, private: bool) -> str:
    """Uploads a published folder to `hf:USER/NAME`, made if it is missing; returns its address.

    One commit, which takes the place of an earlier one's checkpoints, policies and pictures.

    Raises:
        UsageError: no network, Hugging Face refuses, a repository with files of another kind, or
            a public one where a private one was asked for.
    """
    from huggingface_hub import HfApi

    name, _ = check_hub_name(path)
    try:
        api = HfApi()
        address = api.create_repo(name, private=private, exist_ok=True)
        there = set(api.list_repo_files(name)) - {".gitattributes"}
        if there and MARK not in there:
            raise UsageError("its files were not made by jaxrl publish")
        if private and not api.repo_info(name).private:
            raise UsageError("it is public already, and private was asked for")
        api.upload_folder(
            repo_id=name,
            folder_path=folder,
            commit_message="Published by jaxrl",
            delete_patterns=list(REPLACED),
        )
    except Exception as error:  # of the network, of Hugging Face
        raise UsageError(f"{path} cannot be uploaded: {one_line(error)}") from None
    return str(address)
