"""Protection of connections to PostgreSQL: encryption, and passwords in clear text.

Knows which connections leave this machine and what a URL asks for. Does not connect.
"""

from __future__ import annotations

import os
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from paceline.core.errors import warn_user

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg import Connection as Session
    from sqlalchemy import URL

# Modes in which no password and no log leaves this machine without encryption.
_ENCRYPTED = ("require", "verify-ca", "verify-full")
# The version of libpq from which on `require_auth` exists.
_WITH_REQUIREMENTS = 160000
# Servers about which the user was warned.
_warned: set[str] = set()


def protect_password(url: URL) -> dict[str, str]:
    """Return the options that keep a password from being sent in clear text to another machine.

    Empty if the URL or the environment decides that, if the connection must be encrypted, or if it
    stays on this machine.
    """
    from psycopg import pq

    query = url.query
    if (
        "require_auth" in query
        or os.environ.get("PGREQUIREAUTH")
        or pq.version() < _WITH_REQUIREMENTS
    ):
        return {}
    if find_mode(query) in _ENCRYPTED or all(map(is_local, list_hosts(url))):
        return {}
    return {"require_auth": "!password"}


def warn_of_clear_text(session: Session[Any], name: str, query: Mapping[str, Any]) -> None:
    """Warn once if a connection to another machine is not encrypted, unless the URL asks so."""
    info = session.info
    host = info.hostaddr or info.host
    if session.pgconn.ssl_in_use or is_local(host) or find_mode(query) == "disable":
        return
    if name not in _warned:
        _warned.add(name)
        warn_user(
            f"the connection to {name} is not encrypted: others on the network can read and change "
            "what is sent; add sslmode=verify-full to the URL, or sslmode=disable if that is meant."
        )


def explain_refusal(message: str) -> str | None:
    """Return what to do if a connection was refused for its protection; None: it was not."""
    if "authentication method requirement" in message:
        return (
            "asks for a kind of authentication that was refused, such as the password in clear "
            "text: add sslmode=verify-full to the URL to encrypt the connection, or "
            "require_auth=password to send the password all the same"
        )
    if "server does not support SSL" in message or "certificate" in message:
        return (
            "does not offer the encryption that sslmode asks for: check the server's certificate, "
            "or the sslmode and sslrootcert of the URL"
        )
    return None


def find_mode(query: Mapping[str, Any]) -> str:
    """Return the sslmode of a connection."""
    return str(query.get("sslmode") or os.environ.get("PGSSLMODE") or "prefer")


def list_hosts(url: URL) -> list[str]:
    """Return the hosts that a URL may lead to; an empty one is the default socket."""
    given: Any = url.host or url.query.get("host") or os.environ.get("PGHOST") or ""
    hosts = [given] if isinstance(given, str) else list(given)
    return [host for each in hosts for host in each.split(",")]


def is_local(host: str) -> bool:
    """Return whether a connection to this host stays on this machine.

    >>> is_local("/run/postgresql"), is_local("localhost"), is_local("::1"), is_local("10.0.0.7")
    (True, True, True, False)
    """
    if host in ("", "localhost") or host.startswith(("/", "@")):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
