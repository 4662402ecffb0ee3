"""Canaille, an identity provider, with two people, a group and one client.

usage: python -m tests.oidc_provider PORT REDIRECT_URI
"""

from __future__ import annotations

import datetime
import os
import sys

CLIENT = ("tide", "client-secret")
#: Of both people.
PASSWORD = "a password at the provider"


def main(port: int, redirect_uri: str) -> None:
    """Serve until it is ended."""
    os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "true"
    from canaille import create_app
    from canaille.app import models
    from joserfc.jwk import RSAKey
    from werkzeug.serving import make_server

    key = RSAKey.generate_key(2048)
    key.ensure_kid()
    application = create_app(
        {
            "SECRET_KEY": os.urandom(24).hex(),
            "SERVER_NAME": f"127.0.0.1:{port}",
            "PREFERRED_URL_SCHEME": "http",
            "CANAILLE": {"DATABASE": "memory", "JAVASCRIPT": False, "LOGGING": None},
            "CANAILLE_OIDC": {"ACTIVE_JWKS": [key.as_dict(private=True)]},
        }
    )
    backend = application.backend
    with application.app_context():
        people = [
            models.User(
                user_name=name,
                formatted_name=name.title(),
                family_name=name,
                display_name=name,
                emails=[f"{name}@example.org"],
                password=PASSWORD,
            )
            for name in ("ada", "eve")
        ]
        for person in people:
            backend.save(person)
        backend.save(models.Group(display_name="mirror operators", members=people[:1]))
        client = models.Client(
            client_id=CLIENT[0],
            client_secret=CLIENT[1],
            client_name="Tidegate",
            client_uri="http://127.0.0.1",
            redirect_uris=[redirect_uri],
            client_id_issued_at=datetime.datetime.now(datetime.UTC),
            grant_types=["authorization_code"],
            response_types=["code"],
            scope=["openid", "email", "profile", "groups"],
            token_endpoint_auth_method="client_secret_basic",
        )
        backend.save(client)
        client.audience = [client]
        backend.save(client)
    make_server("127.0.0.1", port, application, threaded=True).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
