"""Logins through an OpenID Connect provider: settings that every start reads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from .accounts import Role


def endpoint_port(url: str) -> int:
    """The TCP port of a provider's address. Raises ValueError where it lacks TLS or a host."""
    parts = urlsplit(url)
    if not parts.hostname or parts.scheme not in ("http", "https") or parts.username is not None:
        raise ValueError(f"{url!r} is not https://HOST/…")
    # A provider on this machine may do without TLS: the bytes cross no network.
    if parts.scheme == "http" and parts.hostname not in {"localhost", "127.0.0.1", "::1"}:
        raise ValueError(f"{url!r} is not https://…: only this machine may do without TLS")
    return parts.port or (443 if parts.scheme == "https" else 80)


class OidcSettings(BaseModel):
    """How operators log in through a provider, and who of its users has which rights."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True
    )

    issuer: str | None = None
    """The OpenID Connect provider that operators may log in with, as its discovery document writes
    `issuer`. It needs the extra tidegate[oidc]."""
    client_id: str = Field("tidegate", min_length=1, max_length=255)
    """The server's name at the provider."""
    client_secret: SecretStr | None = Field(None, min_length=1, max_length=1024)
    """The server's secret at the provider. Empty: a public client."""
    url: str | None = None
    """The address of the administration in a browser. The provider must allow its page
    /login/oidc/back as the redirect URI."""
    title: str = Field("single sign-on", min_length=1, max_length=40)
    """What the login page calls the provider."""
    scopes: tuple[str, ...] = Field(("openid", "profile", "email"), max_length=20)
    """What is asked of the provider; `openid` belongs to it. Some providers send groups for the
    scope `groups` only."""
    groups_claim: str = Field("groups", min_length=1, max_length=64)
    """The claim of the ID token that has the groups of a person."""
    operators: tuple[str, ...] = Field((), max_length=100)
    """Groups of the provider whose people are operators."""
    viewers: tuple[str, ...] = Field((), max_length=100)
    """Groups of the provider whose people are viewers."""
    account_claim: Literal["email", "preferred_username"] | None = None
    """The claim that has the name of an account here, whose rights the person then has. An e-mail
    address must be verified. Take `preferred_username` only where people cannot choose it
    themselves."""

    @field_validator("issuer", "url")
    @classmethod
    def _addresses(cls, url: str | None) -> str | None:
        if url is not None:
            endpoint_port(url)
            parts = urlsplit(url)
            if parts.query or parts.fragment:
                raise ValueError(f"{url!r} has a query or a fragment: leave it out")
        return url

    @field_validator("scopes")
    @classmethod
    def _openid(cls, scopes: tuple[str, ...]) -> tuple[str, ...]:
        if "openid" not in scopes or any(not one or " " in one for one in scopes):
            raise ValueError("scopes are single words, and openid is one of them")
        return scopes

    @model_validator(mode="after")
    def _agree(self) -> OidcSettings:
        if self.issuer is None:
            return self
        if self.url is None:
            raise ValueError("oidc.issuer needs oidc.url, the address of the administration")
        if not (self.operators or self.viewers or self.account_claim):
            raise ValueError(
                "nobody could log in: name groups in operators or viewers, or a claim in "
                "account_claim"
            )
        return self

    @property
    def redirect_uri(self) -> str:
        """The page to which the provider sends browsers back."""
        return f"{(self.url or '').rstrip('/')}/login/oidc/back"

    def ports(self) -> frozenset[int]:
        """The TCP ports of the provider."""
        return frozenset() if self.issuer is None else frozenset({endpoint_port(self.issuer)})

    def role_of(self, groups: Collection[str]) -> Role | None:
        """The role of a person in these groups; None when no group gives one."""
        if not frozenset(groups).isdisjoint(self.operators):
            return Role.OPERATOR
        return None if frozenset(groups).isdisjoint(self.viewers) else Role.VIEWER
