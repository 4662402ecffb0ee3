"""Signed URLs: a store or CDN sends a file to a client that shows one, until it expires.

S3 takes presigned URLs of Signature Version 4, CloudFront a canned policy, Fastly the token of its
manual ("Enabling URL token validation"), and nginx the hash of its module secure_link.
"""

from __future__ import annotations

import base64
import configparser
import contextlib
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, quote_from_bytes, unquote, urlencode, urlsplit

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

#: How long a signed URL holds: a client that resumes with the old one may come back so late.
SIGNED_S = 3600


class Signer(Protocol):
    """Makes the URLs of an origin."""

    def __call__(self, method: str, path: bytes, now: float, mark: str = "") -> str:
        """The URL for a method and a decoded path below the origin, signed at this Unix time.

        `mark` is a parameter more in its query, of unreserved characters and after `X-` in order.
        """


def url_below(base: str, path: bytes, *query: str) -> str:
    """The URL of a file with this decoded path below `base`, which ends in a slash."""
    text = "&".join(part for part in query if part)
    # What S3 leaves as it is in a path.
    return base + quote_from_bytes(path, safe="/-_.~") + (f"?{text}" if text else "")


def unsigned(base: str) -> Signer:
    """All clients may read these files."""
    return lambda method, path, now, mark="": url_below(base, path, mark)


def s3_signer(base: str, region: str, key_id: str, secret: str, token: str = "") -> Signer:
    """Signature Version 4 in the query: header `host` alone is signed, and no body.

    `token` is that of a session, whose keys hold for hours.
    """
    session = {"X-Amz-Security-Token": token} if token else {}

    def sign(method: str, path: bytes, now: float, mark: str = "") -> str:
        url = urlsplit(url_below(base, path))
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        scope = f"{stamp[:8]}/{region}/s3/aws4_request"
        query = urlencode(
            {
                "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
                "X-Amz-Credential": f"{key_id}/{scope}",
                "X-Amz-Date": stamp,
                "X-Amz-Expires": str(SIGNED_S),
                **session,
                "X-Amz-SignedHeaders": "host",
            },
            quote_via=quote,
            safe="-_.~",
        ) + (f"&{mark}" if mark else "")
        asked = f"{method}\n{url.path}\n{query}\nhost:{url.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
        digest = hashlib.sha256(asked.encode("ascii")).hexdigest()
        key = f"AWS4{secret}".encode()
        for word in scope.split("/"):
            key = hmac.digest(key, word.encode(), "sha256")
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        return f"{url.geturl()}?{query}&X-Amz-Signature={signature}"

    return sign


def secure_link_signer(base: str, secret: str) -> Signer:
    """`secure_link_md5 "$secure_link_expires$uri SECRET"`: nginx hashes the decoded path."""

    def sign(method: str, path: bytes, now: float, mark: str = "") -> str:
        url = url_below(base, path)
        expires = str(int(now) + SIGNED_S)
        hashed = expires + unquote(urlsplit(url).path, "latin-1") + " "
        digest = hashlib.md5(hashed.encode("latin-1") + secret.encode()).digest()
        text = base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")
        return url_below(base, path, f"md5={text}", f"expires={expires}", mark)

    return sign


def fastly_signer(base: str, secret: str) -> Signer:
    """`token=EXPIRES_SIGNATURE`: SHA-1 by a key in Base64 over the path as sent and the time."""
    key = base64.b64decode(secret, validate=True)

    def sign(method: str, path: bytes, now: float, mark: str = "") -> str:
        url, expires = url_below(base, path), str(int(now) + SIGNED_S)
        signed = hmac.digest(key, (urlsplit(url).path + expires).encode("ascii"), "sha1")
        return url_below(base, path, f"token={expires}_{signed.hex()}", mark)

    return sign


def cloudfront_signer(base: str, key_pair: str, key: RSAPrivateKey) -> Signer:
    """CloudFront's canned policy: RSA and SHA-1 over a JSON document without blanks."""
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.hashes import SHA1

    def sign(method: str, path: bytes, now: float, mark: str = "") -> str:
        url = url_below(base, path, mark)
        expires = int(now) + SIGNED_S
        condition = {"DateLessThan": {"AWS:EpochTime": expires}}
        policy = {"Statement": [{"Resource": url, "Condition": condition}]}
        text = json.dumps(policy, separators=(",", ":")).encode("ascii")
        signature = base64.b64encode(key.sign(text, PKCS1v15(), SHA1()))
        safe = signature.translate(bytes.maketrans(b"+=/", b"-_~")).decode("ascii")
        own = (f"Expires={expires}", f"Signature={safe}", f"Key-Pair-Id={key_pair}")
        return url_below(base, path, mark, *own)

    return sign


def signer_of(base: str, way: str, file: Path | None) -> Signer:
    """The signer of a setting, see `settings.GateSettings.sign`.

    `file` has the secret: for S3 the credentials as the AWS tools have them, for CloudFront a
    private key (PEM), for others a line. Raises ValueError with what is wrong, and OSError.
    """
    kind, _, name = way.partition(":")
    if not way:
        return unsigned(base)
    if file is None:
        raise ValueError(f"{kind} needs a file with its secret")
    if kind == "secure-link":
        return secure_link_signer(base, file.read_text("utf-8").strip())
    if kind == "fastly":
        try:
            return fastly_signer(base, file.read_text("ascii").strip())
        except ValueError:
            raise ValueError(f"{file} has no key in Base64") from None
    if kind == "cloudfront":
        return cloudfront_signer(base, name, _read_key(file))
    return _renewed_s3_signer(base, name, file)


def _renewed_s3_signer(base: str, region: str, file: Path) -> Signer:
    """Reads its keys anew when the file changes, as a session's do; keeps them if it cannot."""
    read_at, signer = file.stat().st_mtime_ns, s3_signer(base, region, *_read_aws_keys(file))

    def sign(method: str, path: bytes, now: float, mark: str = "") -> str:
        nonlocal read_at, signer
        with contextlib.suppress(OSError, ValueError):
            changed_at = file.stat().st_mtime_ns
            if changed_at != read_at:
                signer = s3_signer(base, region, *_read_aws_keys(file))
                read_at = changed_at
        return signer(method, path, now, mark)

    return sign


def _read_aws_keys(file: Path) -> tuple[str, str, str]:
    """Key, secret and session token of the first section."""
    found = configparser.ConfigParser(interpolation=None)
    try:
        found.read_string(file.read_text("utf-8"))
        section = found[found.sections()[0]]
        token = section.get("aws_session_token", "")
        return section["aws_access_key_id"], section["aws_secret_access_key"], token
    except (configparser.Error, IndexError, KeyError) as fault:
        raise ValueError(
            f"{file} needs a section with aws_access_key_id and aws_secret_access_key"
        ) from fault


def _read_key(file: Path) -> RSAPrivateKey:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    with contextlib.suppress(ValueError, TypeError):
        key = load_pem_private_key(file.read_bytes(), None)
        if isinstance(key, RSAPrivateKey):
            return key
    raise ValueError(f"{file} has no private RSA key without a password")
