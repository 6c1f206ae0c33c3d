"""The door: logging in and out. Nothing is changed by GET, so that no preview of a link uses it up."""

import math
from http import HTTPStatus
from typing import Final

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from credhook.console.auth.forms import field, read_any_form, read_form
from credhook.console.auth.guard import cookie_name
from credhook.console.auth.login import Login
from credhook.console.auth.sessions import Sessions, session_of
from credhook.console.ui.rendering import page

log = structlog.get_logger("credhook.console")

#: Characters of a name that are kept.
_LONGEST_NAME: Final = 40


def routes(login: Login, sessions: Sessions, *, url: str | None, user: str) -> list[Route]:
    """The routes; `url` is where browsers reach the console over https, `user` the name of whoever says none."""

    def door(request: Request, problem: str = "", status: int = 200, *, code: str = "", next_: str = "/") -> Response:
        context = {"problem": problem, "by_code": login.by_code, "code": code, "next": next_, "user": user}
        return page(request, "login.html", status, title="Log in", **context)

    async def show(request: Request) -> Response:
        next_ = _local(request.query_params.get("next", "/"))
        if request.state.session:
            return RedirectResponse(next_, 303)
        return door(request, code=request.query_params.get("code", ""), next_=next_)

    async def log_in(request: Request) -> Response:
        form = await read_any_form(request)
        next_ = _local(field(form, "next"))
        wait = login.wait()
        if wait:
            log.warning("console_login_refused", reason="too many wrong tries")
            answer = door(request, f"Too many wrong tries: wait {math.ceil(wait)} s.", 429, next_=next_)
            answer.headers["Retry-After"] = str(math.ceil(wait))
            return answer
        if not login.succeeds(field(form, "token")):
            log.warning("console_login_refused", reason="wrong token")
            told = (
                "That link has been used, or is none of ours. The console has printed one that is good."
                if login.by_code
                else "That is not the token."
            )
            return door(request, told, HTTPStatus.FORBIDDEN, next_=next_)
        who = _name(field(form, "who")) or user
        log.info("console_login", who=who)
        answer = RedirectResponse(next_, 303)
        answer.set_cookie(
            cookie_name(url),
            sessions.begin(who),
            max_age=int(sessions.lasts),
            secure=url is not None,
            httponly=True,
            samesite="strict",
        )
        return answer

    async def log_out(request: Request) -> Response:
        await read_form(request)
        session = session_of(request)
        sessions.end(session)
        log.info("console_logout", who=session.who)
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(cookie_name(url), secure=url is not None, httponly=True, samesite="strict")
        return answer

    return [
        Route("/login", show),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
    ]


def _local(path: str) -> str:
    """The path, if it is one of this console's, else the first page's."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else "/"


def _name(text: str) -> str:
    """A name as it may stand in a line of the log."""
    return "".join(letter for letter in text if letter.isprintable()).strip()[:_LONGEST_NAME]
