"""The signed metadata of a publish directory: a TUF repository, written with python-tuf.

Root names the valid keys and is signed offline. Targets lists all files that followers may fetch,
by length and digest. Snapshot pins one state of targets (no mix-and-match attack). Timestamp pins
the newest snapshot for a few days (no freeze attack). Versions only rise (no rollback attack). A
new version comes into force when `metadata/timestamp.json` is replaced.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from securesystemslib.signer import CryptoSigner
from tuf.api.exceptions import RepositoryError, StorageError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, TargetFile, Targets, Timestamp
from tuf.api.serialization import DeserializationError

from ...protocol.channel import Index, decode_index, encode_index, index_path
from ...protocol.disk.durable import sync_filesystem, write_whole

ONLINE_ROLES = ("targets", "snapshot", "timestamp")


class Lifetimes(NamedTuple):
    """Days for which metadata hold."""

    #: Root is signed by hand with an offline key: ten years.
    root_days: int = 3650
    #: Targets and snapshot expire a year after the last change; a publish renews them after half.
    targets_days: int = 365
    snapshot_days: int = 365
    #: The longest time for which an attacker can hide a new version from a follower.
    timestamp_days: int = 14


TUNING = Lifetimes()


class RepositoryProblem(Exception):
    """The publish directory or its keys are not usable; the message says what to do."""


def check_private(keys: Path, served: Path) -> None:
    """Raise RepositoryProblem when the private keys lie in a folder that is served."""
    if keys.resolve().is_relative_to(served.resolve()):
        raise RepositoryProblem(
            f"The keys in {keys} would be served with {served}: name a folder outside by --keys."
        )


def make_key(path: Path, passphrase: str | None = None) -> CryptoSigner:
    """Generate an Ed25519 key and write it (PKCS#8, mode 0600). Returns its signer."""
    private = Ed25519PrivateKey.generate()
    lock: KeySerializationEncryption = NoEncryption()
    if passphrase:
        lock = BestAvailableEncryption(passphrase.encode())
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock), mode=0o600)
    return CryptoSigner(private)


def load_key(path: Path, passphrase: str | None = None) -> CryptoSigner:
    try:
        data = path.read_bytes()
    except OSError as fault:
        raise RepositoryProblem(
            f"The key {path} cannot be read ({fault.strerror}); name its folder with --keys."
        ) from fault
    try:
        private = load_pem_private_key(data, passphrase.encode() if passphrase else None)
    except (ValueError, TypeError) as fault:
        raise RepositoryProblem(
            f"The key {path} cannot be opened: wrong passphrase, or not a private key."
        ) from fault
    if not isinstance(private, Ed25519PrivateKey):
        raise RepositoryProblem(f"The key {path} is not an Ed25519 key.")
    return CryptoSigner(private)


def initialise(publish: Path, keys: Path, now: datetime, passphrase: str | None = None) -> bytes:
    """Make the keys and an empty repository. Returns the bytes of the root metadata.

    An existing repository gets a new root: same root key, new online keys and expiry. A run that
    died is completed by running it again.
    """
    check_private(keys, publish)
    roots = _roots(publish)
    root_key = keys / "root.pem"
    signer = load_key(root_key, passphrase) if root_key.exists() or roots else None
    if roots:
        root: Metadata[Root] = Metadata[Root].from_file(str(roots[-1]))
        root.signed.version += 1
        for role in ONLINE_ROLES:
            for keyid in list(root.signed.roles[role].keyids):
                root.signed.revoke_key(keyid, role)
    else:
        signer = signer or make_key(root_key, passphrase)
        root = Metadata(Root(consistent_snapshot=True))
        root.signed.add_key(signer.public_key, "root")
    assert signer is not None
    root.signed.expires = now + timedelta(days=TUNING.root_days)
    for role in ONLINE_ROLES:
        root.signed.add_key(make_key(keys / f"{role}.pem").public_key, role)
    root.sign(signer)
    data = root.to_bytes()
    write_whole(publish / "metadata" / f"{root.signed.version}.root.json", data)
    write_whole(publish / "metadata" / "root.json", data)
    Repository(publish, keys).commit({}, set(), now)
    return data


def _roots(publish: Path) -> list[Path]:
    found = list((publish / "metadata").glob("*.root.json"))
    return sorted(found, key=lambda path: int(path.name.split(".")[0]))


@dataclass(frozen=True, slots=True)
class _State:
    """The committed online metadata."""

    timestamp: Metadata[Timestamp]
    snapshot: Metadata[Snapshot]
    targets: Metadata[Targets]


def _is_half_expired(signed: Targets | Snapshot, days: int, now: datetime) -> bool:
    return signed.expires - now < timedelta(days=days) / 2


def _signed_by(metadata: Metadata[Targets] | Metadata[Snapshot], key: CryptoSigner) -> bool:
    return key.public_key.keyid in metadata.signatures


class Repository:
    """Reads and commits the signed metadata of one publish directory. Hold the publish lock."""

    def __init__(self, publish: Path, keys: Path) -> None:
        self._publish = publish
        self._metadata = publish / "metadata"
        self._targets = publish / "targets"
        self._keys = keys

    @property
    def exists(self) -> bool:
        return (self._metadata / "timestamp.json").exists()

    def _state(self) -> _State:
        if not self.exists:
            return _State(Metadata(Timestamp()), Metadata(Snapshot()), Metadata(Targets()))
        folder = self._metadata
        try:
            timestamp = Metadata[Timestamp].from_file(str(folder / "timestamp.json"))
            version = timestamp.signed.snapshot_meta.version
            snapshot = Metadata[Snapshot].from_file(str(folder / f"{version}.snapshot.json"))
            version = snapshot.signed.meta["targets.json"].version
            targets = Metadata[Targets].from_file(str(folder / f"{version}.targets.json"))
        except (RepositoryError, StorageError, DeserializationError, KeyError) as fault:
            raise RepositoryProblem(
                f"The signed metadata in {folder} cannot be read ({fault}); restore it from a "
                "backup or from a follower's copy."
            ) from fault
        return _State(timestamp, snapshot, targets)

    def target_file(self, path: str, sha256: str) -> Path:
        """The file of a target with this content (TUF consistent snapshots)."""
        folder, _, name = path.rpartition("/")
        return self._targets / folder / f"{sha256}.{name}"

    def index(self, channel: str) -> Index:
        """The channel's committed index. Before the first publish it is empty."""
        target = self._state().targets.signed.targets.get(index_path(channel))
        if target is None:
            return Index(channel)
        return decode_index(self.target_file(target.path, target.hashes["sha256"]).read_bytes())

    def latest(self) -> dict[str, int]:
        """The latest version of each channel that has one."""
        found = {}
        for path in self.targets():
            channel, _, name = path.rpartition("/")
            if name == "index.json" and (latest := self.index(channel).latest) is not None:
                found[channel] = latest.version
        return found

    def targets(self) -> dict[str, TargetFile]:
        return dict(self._state().targets.signed.targets)

    def commit_index(self, index: Index, added: dict[str, tuple[str, int]], now: datetime) -> None:
        """Commit a channel's new index and the update files that it names.

        `added`: target path -> (SHA-256, bytes) of files already at `target_file`. Targets that the
        index does not name any more leave the metadata; `sweep` removes their files.
        """
        data = encode_index(index)
        target = TargetFile.from_data(index_path(index.channel), data, ["sha256"])
        write_whole(self.target_file(target.path, target.hashes["sha256"]), data)
        named = {edge.target_path(index.channel) for edge in index.edges}
        prefix = index.channel + "/"
        gone = [path for path in self.targets() if path.startswith(prefix) and path not in named]
        wanted = {
            path: TargetFile(length, {"sha256": sha256}, path)
            for path, (sha256, length) in added.items()
            if path in named
        }
        wanted[target.path] = target
        self.commit(wanted, {path for path in gone if path not in wanted}, now)

    def commit(self, added: dict[str, TargetFile], removed: set[str], now: datetime) -> None:
        """Sign a new state with these targets added and removed. Renew half-expired signatures."""
        state = self._state()
        keys = {role: self._key(role) for role in ONLINE_ROLES}
        targets, snapshot, timestamp = (
            state.targets.signed,
            state.snapshot.signed,
            state.timestamp.signed,
        )
        renew = _is_half_expired(targets, TUNING.targets_days, now) or not _signed_by(
            state.targets, keys["targets"]
        )
        changed = bool(added or removed or renew)
        if changed:
            targets.targets.update(added)
            for path in removed:
                targets.targets.pop(path, None)
            targets.version += 1
            targets.expires = now + timedelta(days=TUNING.targets_days)
            self._write(f"{targets.version}.targets.json", state.targets, keys["targets"])
        renew = _is_half_expired(snapshot, TUNING.snapshot_days, now) or not _signed_by(
            state.snapshot, keys["snapshot"]
        )
        if changed or renew:
            snapshot.meta["targets.json"] = MetaFile(targets.version)
            snapshot.version += 1
            snapshot.expires = now + timedelta(days=TUNING.snapshot_days)
            name = f"{snapshot.version}.snapshot.json"
            data = self._write(name, state.snapshot, keys["snapshot"])
            timestamp.snapshot_meta = MetaFile.from_data(snapshot.version, data, ["sha256"])
        timestamp.version += 1
        timestamp.expires = now + timedelta(days=TUNING.timestamp_days)
        sync_filesystem(self._publish)
        self._write("timestamp.json", state.timestamp, keys["timestamp"])

    def _key(self, role: str) -> CryptoSigner:
        key = load_key(self._keys / f"{role}.pem")
        root = Metadata[Root].from_file(str(_roots(self._publish)[-1])).signed
        if key.public_key.keyid not in root.roles[role].keyids:
            raise RepositoryProblem(
                f"The {role} key in {self._keys} is not one this repository's root names; "
                "name the right --keys, or run `tidegate mirror init` again with the root key."
            )
        return key

    def _write(
        self,
        name: str,
        metadata: Metadata[Targets] | Metadata[Snapshot] | Metadata[Timestamp],
        key: CryptoSigner,
    ) -> bytes:
        metadata.sign(key)
        data = metadata.to_bytes()
        write_whole(self._metadata / name, data)
        return data

    def sweep(self) -> None:
        """Remove target and metadata files that the committed state does not name."""
        state = self._state()
        snapshot, targets = state.snapshot.signed, state.targets.signed
        named = {
            self.target_file(target.path, target.hashes["sha256"])
            for target in targets.targets.values()
        }
        for folder, _, names in os.walk(self._targets):
            for name in names:
                path = Path(folder, name)
                if path not in named:
                    path.unlink(missing_ok=True)
        current = {"snapshot": snapshot.version, "targets": targets.version}
        for role, version in current.items():
            for path in self._metadata.glob(f"*.{role}.json"):
                # A follower that is reading now needs the generation before.
                if int(path.name.split(".")[0]) < version - 1:
                    path.unlink(missing_ok=True)


def utc(now: float) -> datetime:
    """Seconds since 1970 as a UTC time in whole seconds, as TUF requires."""
    return datetime.fromtimestamp(int(now), UTC)
