"""The API's side of accounts: API tokens and users. Passwords are changed on the page only."""

from __future__ import annotations

from server.admin import schema, schema_account
from server.admin.accounts import ApiToken, Role, User
from server.admin.app import Admin
from server.admin.router import Asked, Operation
from server.admin.web import Answer, Problem, json_answer


class AccountApi:
    """The operations on accounts, bound to one application."""

    def __init__(self, admin: Admin) -> None:
        self.admin = admin
        self.context = admin.context

    async def tokens(self, asked: Asked) -> Answer:
        mine = _owner(asked)
        every = asked.call.who is not None and asked.call.who.role is Role.OPERATOR
        held = self.admin.accounts.tokens.values()
        rows = [_token(t) for t in held if every or t.owner == mine]
        return json_answer(schema_account.TokensOut(tokens=rows))

    async def token_issue(self, asked: Asked) -> Answer:
        body, who = asked.body, asked.call.who
        role = Role(body.role)
        if who is None or not who.role.may(role):
            raise Problem(403, "A token cannot do more than you.")
        now = asked.call.now
        expires = None if body.days is None else now + body.days * 86_400.0
        secret, token = self.admin.accounts.issue_token(
            body.label, role, _owner(asked), now, expires
        )
        self.context.log("account", asked.who, f"issued API token {token.serial} ({body.label})")
        return json_answer(_token(token, secret), 201)

    async def token_drop(self, asked: Asked) -> Answer:
        serial, who = asked.params.serial, asked.call.who
        found = next((t for t in self.admin.accounts.tokens.values() if t.serial == serial), None)
        every = who is not None and who.role is Role.OPERATOR
        if found is None or not (every or found.owner == _owner(asked)):
            raise Problem(404, f"There is no API token {serial}.")
        self.admin.accounts.drop_token(serial)
        self.context.log("account", asked.who, f"revoked API token {serial}")
        return Answer(204)

    async def users(self, asked: Asked) -> Answer:
        held = sorted(self.admin.accounts.users.values(), key=lambda user: user.name)
        return json_answer(schema_account.UsersOut(users=[_user(user) for user in held]))

    async def user_add(self, asked: Asked) -> Answer:
        body = asked.body
        if body.name in self.admin.accounts.users:
            raise Problem(409, f"There is already a user {body.name}.")
        user = await self.admin.accounts.add_user(
            body.name, Role(body.role), body.password, asked.call.now
        )
        self.context.log("account", asked.who, f"added user {user.name} ({user.role})")
        return json_answer(_user(user), 201)

    async def user_drop(self, asked: Asked) -> Answer:
        name = asked.params.name
        if name not in self.admin.accounts.users:
            raise Problem(404, f"There is no user {name}.")
        self.admin.accounts.drop_user(name)
        self.admin.sessions.end_all(name)
        self.context.log("account", asked.who, f"removed user {name}")
        return Answer(204)


def _owner(asked: Asked) -> str:
    """The user behind the call; for a token `owner/label` its owner."""
    who = asked.call.who
    if who is None:
        return ""
    return who.user.name if who.user else who.name.partition("/")[0]


def _token(token: ApiToken, secret: str | None = None) -> schema_account.TokenOut:
    return schema_account.TokenOut(
        serial=token.serial,
        label=token.label,
        role=token.role,
        owner=token.owner,
        created_s=token.created_s,
        expires_s=token.expires_s,
        used_s=token.used_s,
        secret=secret,
    )


def _user(user: User) -> schema_account.UserOut:
    return schema_account.UserOut(
        name=user.name,
        role=user.role,
        created_s=user.created_s,
        must_change=user.must_change,
        one_time_codes=user.totp_secret is not None,
    )


def operations(admin: Admin) -> list[Operation]:
    """Operations on accounts; paths are relative to the API's root."""
    api, op, s = AccountApi(admin), Role.OPERATOR, schema_account
    return [
        Operation(
            *("listTokens", "GET", "/tokens", "API tokens.", api.tokens),
            tag="account",
            answer=s.TokensOut,
        ),
        Operation(
            *("issueToken", "POST", "/tokens", "Issue an API token.", api.token_issue),
            tag="account",
            body=s.TokenIn,
            answer=s.TokenOut,
            status=201,
        ),
        Operation(
            *("revokeToken", "DELETE", "/tokens/{serial}", "Revoke an API token.", api.token_drop),
            tag="account",
            params=schema.SerialPath,
            status=204,
        ),
        Operation(
            *("listUsers", "GET", "/users", "Users.", api.users, op),
            tag="account",
            answer=s.UsersOut,
        ),
        Operation(
            *("addUser", "POST", "/users", "Add a user.", api.user_add, op),
            tag="account",
            body=s.UserIn,
            answer=s.UserOut,
            status=201,
        ),
        Operation(
            *("removeUser", "DELETE", "/users/{name}", "Remove a user.", api.user_drop, op),
            tag="account",
            params=s.NamePath,
            status=204,
        ),
    ]
