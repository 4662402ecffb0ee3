"""What the API declares (names, scopes, shapes of its operations), and the routes of the pages."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tidegate.server.accounts.accounts import Scope
from tidegate.server.admin.router import Router, openapi
from tidegate.server.admin.shapes import NumberPath
from tidegate.server.admin.site import MODULES
from tidegate.server.control.problems import Problem

#: Operations that change something and are open to more than their module's scope.
OWN = {"issueToken", "revokeToken"}


def router() -> Router:
    found = Router()
    for module in MODULES:
        found.add(module.pages.routes)
        found.add(module.api.routes)
    return found


def test_every_operation_is_named_once_says_what_it_does_and_what_it_needs() -> None:
    operations = [route for route in router().routes if route.tag]
    names = [route.name for route in operations]
    assert len(names) > 40
    assert [name for name, count in Counter(names).items() if count > 1] == []
    for route in operations:
        assert route.summary.endswith("."), route.name
        acts = route.method != "GET" and route.name not in OWN
        assert (route.scope is not Scope.READ) or not acts, route.name


def test_pages_that_change_something_need_a_scope_or_ones_own_account() -> None:
    for route in router().routes:
        if not route.tag and route.method == "POST" and route.scope is Scope.READ:
            own = ("/account", "/logout", "/theme", "/zone", "/login")
            assert route.path.startswith(own), route.path


def test_the_document_describes_every_operation_and_resolves() -> None:
    found = router()
    document = openapi((r for r in found.routes if r.tag), "1")
    text = json.dumps(document)
    for name in {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in document["components"]["schemas"]
    described = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    declared = {(r.method, r.path) for r in found.routes if r.tag}
    assert described == declared
    settings = document["paths"]["/api/v1/settings"]
    assert [p["name"] for p in settings["put"]["parameters"]] == ["If-Match"]
    assert "Needs the scope policy." in settings["put"]["description"]
    assert document["paths"]["/api/v1/openapi.json"]["get"]["security"] == []
    own = document["paths"]["/api/v1/openapi.json"]["get"]["responses"]
    assert own["200"]["content"]["application/json"]["schema"] == {"type": "object"}
    assert "414" in own
    patch = document["paths"]["/api/v1/settings"]["patch"]["responses"]
    assert {"412", "413", "414"} <= set(patch)
    path = document["paths"]["/api/v1/tickets/{number}"]["delete"]["parameters"][0]
    assert (path["in"], path["required"]) == ("path", True)
    assert path["schema"]["maximum"] == NumberPath.model_fields["number"].metadata[1].le


def test_routes_are_found_by_method_and_path() -> None:
    found = router()
    route, params = found.find("HEAD", "/queue/ticket/12/expire")
    assert (route.method, params) == ("GET", {"number": "12"})
    assert found.find("GET", "/policy/preview/k/edit")[0].path.endswith("/edit")
    assert found.find("GET", "/policy/preview/k/picture/a%2Fb")[1]["side"] == "a/b"
    with pytest.raises(Problem) as missing:
        found.find("GET", "/queue/ticket/12")
    assert missing.value.status == 404
    with pytest.raises(Problem) as wrong:
        found.find("DELETE", "/queue")
    assert wrong.value.status == 405
    assert dict(wrong.value.headers)["allow"] == "GET, HEAD"
