"""Who may ask the server of ``shh serve``: whoever has the token, under a name that is ours.

**Names.** A page of somebody else's can give its own name the address of this machine (DNS rebinding); a browser then
takes our answers for that page's. But it sends the name along, in the header Host. So a name must be declared. An
address needs not: nobody can rebind it.

**Token.** It comes once, as ``/?token=...``, or in the header Authorization. The answer to the first is a cookie, and a
page that goes on to the address without the token: so no referrer and no log of ours holds it. The cookie is
SameSite=Strict, so that no other site can ask in the name of who has it, and HttpOnly. It holds a digest of the token:
cookies also reach other ports of the same host. All comparisons take the same time whatever is wrong.

**Who can read the token.** It is written nowhere: a new one is printed once, on standard output. One that shall outlive
a restart is in a file of the operator's, which nobody else may open.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import string
import urllib.parse
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dp_transforms.views.page.html_text import SERVED_POLICY, ServedFile

_HEADERS = {
    "Content-Security-Policy": f"{SERVED_POLICY}; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# A redirect by the server would still count as a step from the site with the link, and so go without a strict cookie.
_ONWARD = '<!doctype html><meta http-equiv="refresh" content="0;url=./"><title>shh</title><a href="./">Go on</a>'

# For browsers that have no token: a form that asks for it. It is sent to this server alone, as the address above.
_ASK = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>A token is needed</title><style>$style</style><h1>A token is needed</h1>$wrong
<form action="./"><p><label>Token <input name="token" type="password" autocomplete="off" required autofocus></label>
<button>Open the page</button></p></form>
<p>shh serve prints it at the end of the address, after ?token=, or it is the line in the --token-file.</p></html>"""
_STYLE = """body { max-width: 34rem; margin: 3rem auto; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif; }
input, button { font: inherit; padding: .3rem .6rem; }"""
_ASK_POLICY = (
    f"default-src 'none'; style-src '{ServedFile.of('ask.css', _STYLE).integrity}'; base-uri 'none';"
    " form-action 'self'; frame-ancestors 'none'"
)
_WRONG = "<p role=alert>This is not the token.</p>"


def new_token() -> str:
    return secrets.token_urlsafe(32)


class Access:
    """An ASGI application before another one: it answers what may not be asked, and adds headers to all answers.

    token: None if everybody may ask who reaches the server. names: under which it is reached, besides addresses.
    port: that of the server, for the name of the cookie.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, names: Collection[str], port: int) -> None:
        self._app = app
        self._token = token
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}
        self._cookie = f"shh-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """What is answered in place of what was asked for; None if it may be asked for."""
        headers = Headers(scope=scope)
        if not self._is_our_name(headers.getlist("host")):
            return PlainTextResponse(
                "This server is not reached under this name. Name it with: shh serve --name NAME\n", 421
            )
        if scope["path"] != "/" and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return PlainTextResponse("Another site may not ask for this.\n", 403)
        if self._token is None or self._has_token(headers):
            return None
        given = urllib.parse.parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if scope["path"] == "/" and len(given) == 1 and _same(given[0], self._token):
            answer = HTMLResponse(_ONWARD)
            answer.set_cookie(self._cookie, self._digest(), httponly=True, samesite="strict", path="/")
            return answer
        if scope["path"] == "/" and "text/html" in headers.get("accept", ""):
            page = string.Template(_ASK).substitute(style=_STYLE, wrong=_WRONG if given else "")
            return HTMLResponse(page, 401, {"Content-Security-Policy": _ASK_POLICY})
        return PlainTextResponse(
            "A token is needed. Open the address that shh serve prints, with ?token= and the token at its end.\n",
            401,
            {"WWW-Authenticate": "Bearer"},
        )

    def _is_our_name(self, hosts: list[str]) -> bool:
        if len(hosts) != 1:
            return False
        try:
            name = urllib.parse.urlsplit(f"//{hosts[0]}").hostname or ""
        except ValueError:
            return False
        if name.rstrip(".") in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _has_token(self, headers: Headers) -> bool:
        assert self._token is not None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(given.strip(), self._token):
            return True
        cookies = cookie_parser("; ".join(headers.getlist("cookie")))
        return _same(cookies.get(self._cookie, ""), self._digest())

    def _digest(self) -> str:
        assert self._token is not None
        return hmac.new(self._token.encode(), b"cookie of shh serve", hashlib.sha256).hexdigest()


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())
