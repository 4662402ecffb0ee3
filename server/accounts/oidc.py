"""Logs operators in through an OpenID Connect provider: authorization code flow with PKCE.

Laws:
- Nothing is kept between the two halves of a login. State, nonce and PKCE verifier follow from a
  random id in a signed cookie of the browser that began it, so only that browser can end it.
- Only the configured issuer is asked, over TLS, at its own port, without redirects, within bounds
  of time and size.
- An ID token counts if a key of the issuer signed it with an asymmetric algorithm, for this client,
  this login and this time. Sources: OpenID Connect Core 1.0, 3.1.3.7; RFC 7636; RFC 9207; RFC 9700.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote_plus, urlencode

from itsdangerous import BadData, URLSafeSerializer

from ..control.alert_messages import NoRedirect
from ..control.problems import Problem
from .accounts import ProviderLogin
from .hashing import Asker, OneAtATime
from .oidc_settings import OidcSettings, endpoint_port

#: Blocks; gives the body of what is at a URL, to which a form may be sent. Raises OSError.
Fetch = Callable[[str, Mapping[str, str] | None, Mapping[str, str]], bytes]


class OidcTuning(NamedTuple):
    """Bounds of a login and of what the provider may answer."""

    #: A login ends this long after it began: a person types a password and a one-time code.
    login_s: float = 600.0
    #: One request to the provider, from its start to its last byte.
    fetch_s: float = 10.0
    #: A discovery document has 2 to 10 kB, a set of keys or an answer with an ID token less.
    answer_bytes: int = 256 * 1024
    #: The provider's documents are asked for again after this time, so that a withdrawn key ends.
    documents_s: float = 3600.0
    #: An unknown key lets them be asked for again after this time: keys are changed at any time.
    new_key_s: float = 60.0
    #: The clocks of provider and server may differ by this much.
    skew_s: int = 120


TUNING = OidcTuning()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One login that a browser began. `way` is where it goes afterwards."""

    way: str
    state: str
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)

    @property
    def challenge(self) -> str:
        """What the provider is told of the verifier (RFC 7636, 4.2)."""
        return _base64(hashlib.sha256(self.verifier.encode()).digest())


@dataclass(frozen=True, slots=True)
class Attempts:
    """Begins logins and finds them again by the browser's cookie; `key` is the server's secret."""

    key: bytes = field(repr=False)

    def _serializer(self) -> URLSafeSerializer:
        options = {"digest_method": hashlib.sha256}
        return URLSafeSerializer(self.key, salt="tidegate.admin.oidc", signer_kwargs=options)

    def _attempt(self, ident: str, way: str) -> Attempt:
        def secret(name: str) -> str:
            told = f"oidc:{name}:{ident}".encode()
            return _base64(hmac.new(self.key, told, hashlib.sha256).digest())

        return Attempt(way, secret("state"), secret("nonce"), secret("verifier"))

    def begin(self, way: str, now: float) -> tuple[str, Attempt]:
        """A new login, and the cookie that finds it."""
        ident = secrets.token_urlsafe(24)
        return str(self._serializer().dumps([ident, way, now])), self._attempt(ident, way)

    def find(self, cookie: str, state: str, now: float) -> Attempt:
        """The login of this cookie, to which `state` belongs. Raises Problem."""
        try:
            ident, way, began_s = self._serializer().loads(cookie)
        except BadData:
            ident, way, began_s = "", "/", 0.0
        attempt = self._attempt(ident, way)
        fits = hmac.compare_digest(attempt.state.encode(), state.encode("utf-8", "replace"))
        if not (ident and fits and 0.0 <= now - began_s <= TUNING.login_s):
            raise Problem(
                400, "This login was begun in another browser or too long ago. Please begin again."
            )
        return attempt


@dataclass(slots=True)
class _Documents:
    """What the provider publishes of itself, read at `read_s`."""

    about: dict[str, Any]
    keys: Any
    read_s: float


class Provider:
    """The configured provider. `turns` bounds what it is asked at once; `fetch` blocks."""

    def __init__(self, settings: OidcSettings, turns: OneAtATime, fetch: Fetch) -> None:
        self.settings = settings
        self._turns = turns
        self._fetch = fetch
        self._documents: _Documents | None = None

    async def login_url(self, attempt: Attempt, asker: Asker, now: float) -> str:
        """Where the browser is sent. Raises Problem, and what `asker.begin` raises."""
        documents = self._documents
        if documents is None or now - documents.read_s > TUNING.documents_s:
            documents = await self._turns(asker, lambda: self._current(now))
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self.settings.redirect_uri,
            "scope": " ".join(self.settings.scopes),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": attempt.challenge,
            "code_challenge_method": "S256",
        }
        place = documents.about["authorization_endpoint"]
        return f"{place}{'&' if '?' in place else '?'}{urlencode(query)}"

    async def person(
        self, query: Mapping[str, Sequence[str]], attempt: Attempt, asker: Asker, now: float
    ) -> ProviderLogin:
        """Who came back with this query. Raises Problem, and what `asker.begin` raises."""
        if any(len(values) != 1 for values in query.values()):
            raise Problem(401, "The address of this page has a field twice. Please begin again.")
        given = {name: values[0] for name, values in query.items()}
        # Checked before anything of the answer is used: another provider's code must not be sent.
        if given.get("iss", self.settings.issuer) != self.settings.issuer:
            raise Problem(401, "The answer came from another provider. Please begin again.")
        if "error" in given:
            fault = given["error"] if re.fullmatch(r"[a-z_]{1,40}", given["error"]) else "a fault"
            raise Problem(401, f"The provider did not log you in: {fault}.")
        if not given.get("code"):
            raise Problem(401, "The provider sent no code. Please begin again.")
        claims: dict[str, Any] = await self._turns(asker, lambda: self._claims(given, attempt, now))
        return self._person(claims)

    def _claims(self, given: Mapping[str, str], attempt: Attempt, now: float) -> dict[str, Any]:
        """The claims of the ID token for a code; blocks."""
        documents = self._current(now)
        if "iss" not in given and documents.about.get(
            "authorization_response_iss_parameter_supported"
        ):
            raise Problem(401, "The answer does not say which provider it is of.")
        token = self._token(documents.about, given["code"], attempt)
        from joserfc.errors import JoseError

        try:
            try:
                found = _decoded(token, documents.keys)
            except (JoseError, ValueError):
                if now - documents.read_s < TUNING.new_key_s:
                    raise
                found = _decoded(token, self._read(now).keys)
            _registry(self.settings, attempt, now).validate(found.claims)
        except (JoseError, ValueError) as fault:
            raise Problem(401, f"The provider's ID token is not valid: {fault}.") from None
        audience, party = found.claims["aud"], found.claims.get("azp", self.settings.client_id)
        several = isinstance(audience, list) and len(audience) > 1
        if party != self.settings.client_id or (several and "azp" not in found.claims):
            raise Problem(401, "The provider's ID token is for another client.")
        return dict(found.claims)

    def _token(self, about: Mapping[str, Any], code: str, attempt: Attempt) -> str:
        settings = self.settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": settings.redirect_uri,
            "code_verifier": attempt.verifier,
        }
        fields = {"Accept": "application/json"}
        ways = about.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        secret = settings.client_secret.get_secret_value() if settings.client_secret else None
        if secret is None:
            form["client_id"] = settings.client_id
        elif "client_secret_basic" in ways:
            # RFC 6749, 2.3.1: both are encoded as in a form first.
            pair = f"{quote_plus(settings.client_id)}:{quote_plus(secret)}"
            fields["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": settings.client_id, "client_secret": secret}
        token = self._json(str(about["token_endpoint"]), form, fields).get("id_token")
        if not isinstance(token, str):
            raise Problem(401, "The provider sent no ID token.")
        return token

    def _current(self, now: float) -> _Documents:
        """What the provider publishes; blocks where it must be asked again."""
        if self._documents is None or now - self._documents.read_s > TUNING.documents_s:
            return self._read(now)
        return self._documents

    def _read(self, now: float) -> _Documents:
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        issuer = self.settings.issuer or ""
        about = self._json(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if about.get("issuer") != issuer:
            raise Problem(503, "The provider calls itself otherwise than the setting oidc.issuer.")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            try:
                port = endpoint_port(str(about.get(name)))
            except ValueError as fault:
                raise Problem(503, f"The provider's {name} cannot be used: {fault}.") from None
            # The server may connect to no other port, see `server.app.confinement`.
            if name != "authorization_endpoint" and port not in self.settings.ports():
                raise Problem(503, f"The provider's {name} has another port than its issuer.")
        try:
            keys = KeySet.import_key_set(self._json(str(about["jwks_uri"])))  # type: ignore[arg-type]
        except (JoseError, ValueError, KeyError, TypeError) as fault:
            raise Problem(503, f"The provider's keys cannot be read: {fault}.") from None
        self._documents = _Documents(about, keys, now)
        return self._documents

    def _json(
        self,
        url: str,
        form: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        try:
            found = json.loads(self._fetch(url, form, fields or {}))
        except (OSError, ValueError, RecursionError) as fault:
            told = f"The provider at {url.split('?')[0]} gave no usable answer: {fault}."
            raise Problem(503, told) from fault
        if not isinstance(found, dict):
            raise Problem(503, f"The provider at {url} gave no JSON object.")
        return found

    def _person(self, claims: Mapping[str, Any]) -> ProviderLogin:
        settings = self.settings

        def text(name: str) -> str:
            found = claims.get(name)
            return found if isinstance(found, str) else ""

        email = text("email") if claims.get("email_verified") is True else ""
        names = {"email": email, "preferred_username": text("preferred_username")}
        groups = claims.get(settings.groups_claim)
        held = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
        return ProviderLogin(
            subject=f"{settings.issuer} {claims['sub']}",
            name=names["preferred_username"] or email or text("sub"),
            account=names.get(settings.account_claim or "", ""),
            role=settings.role_of([one for one in held if isinstance(one, str)]),
        )


def _decoded(token: str, keys: Any) -> Any:
    """A token that one of these keys signed. Raises JoseError or ValueError."""
    from joserfc import jwt

    # Asymmetric ones only: who knows the client's secret must not be able to sign.
    rsa = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]
    curves = ["ES256", "ES384", "ES512", "EdDSA", "Ed25519"]
    return jwt.decode(token, keys, algorithms=rsa + curves)


def _registry(settings: OidcSettings, attempt: Attempt, now: float) -> Any:
    """What the claims of an ID token must say."""
    from joserfc.jwt import JWTClaimsRegistry

    return JWTClaimsRegistry(
        now=int(now),
        leeway=TUNING.skew_s,
        iss={"essential": True, "value": settings.issuer or ""},
        aud={"essential": True, "value": settings.client_id},
        nonce={"essential": True, "value": attempt.nonce},
        sub={"essential": True},
        exp={"essential": True},
        iat={"essential": True},
    )


def fetch(url: str, form: Mapping[str, str] | None, fields: Mapping[str, str]) -> bytes:
    """A `Fetch` by HTTP. A refusal's error of OAuth (RFC 6749, 5.2) is in the OSError."""
    data = urlencode(form).encode() if form is not None else None
    request = urllib.request.Request(url, data, {"User-Agent": "Tidegate", **fields})
    end_s = time.monotonic() + TUNING.fetch_s
    try:
        with urllib.request.build_opener(NoRedirect()).open(request, None, TUNING.fetch_s) as found:
            return _bounded(found.read1, end_s)
    except urllib.error.HTTPError as refusal:
        with refusal:
            told = f"status {refusal.code}"
            try:
                error = json.loads(_bounded(refusal.read, end_s))["error"]
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                raise OSError(told) from None
            raise OSError(f"{told}, {str(error)[:40]!r}") from None


def _bounded(read: Callable[[int], bytes], end_s: float) -> bytes:
    found = bytearray()
    while piece := read(65_536):
        found += piece
        if len(found) > TUNING.answer_bytes:
            raise OSError(f"the answer has more than {TUNING.answer_bytes} bytes")
        if time.monotonic() > end_s:
            raise OSError(f"the answer took longer than {TUNING.fetch_s:g} s")
    return bytes(found)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
