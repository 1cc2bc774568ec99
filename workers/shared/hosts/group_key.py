"""One secret for all processes of a group: with it their connections between hosts are authenticated and encrypted.

ZeroMQ's CURVE (https://rfc.zeromq.org/spec/26/) with one key pair, made from the token that the operator hands to every
host. Whoever does not know the token cannot complete a handshake, in either direction; each connection has fresh keys,
so what was recorded stays secret when the token becomes known. Members of a group are not protected from each other.
"""

import hashlib
import secrets
from functools import lru_cache
from typing import Any, NamedTuple

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

_DOMAIN = "echelon"
_SALT = b"echelon group key 1"


class GroupKey(NamedTuple):
    """A Curve25519 key pair in ZeroMQ's text form, 40 characters each."""

    public: bytes
    secret: bytes


@lru_cache(maxsize=4)
def group_key(token: str) -> GroupKey:
    """The key pair of a token; slow on purpose (50 ms), so that tokens cannot be tried out fast."""
    secret = z85.encode(hashlib.scrypt(token.encode(), salt=_SALT, n=2**14, r=8, p=1, dklen=32))
    return GroupKey(zmq.curve_public(secret), secret)


class GroupContext(zmq.Context["zmq.Socket[Any]"]):
    """A context whose listening sockets admit the holders of a token, where there is one, and nobody else."""

    _authenticator: ThreadAuthenticator | None = None

    def __init__(self, token: str) -> None:
        super().__init__()
        if token:
            self._authenticator = ThreadAuthenticator(self)
            self._authenticator.configure_curve_callback(
                _DOMAIN, credentials_provider=_Members(group_key(token).public)
            )
            self._authenticator.start()

    def term(self) -> None:
        """See `zmq.Context`."""
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        super().term()


def protect(socket: "zmq.Socket[Any]", token: str, *, listens: bool) -> None:
    """Makes a socket speak to holders of `token` only; to be called before it binds or connects.

    One that listens refuses everybody unless its context is a `GroupContext`.
    """
    key = group_key(token)
    socket.curve_secretkey, socket.curve_publickey = key.secret, key.public
    if listens:
        socket.curve_server = True
        socket.zap_domain = _DOMAIN.encode()
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    else:
        socket.curve_serverkey = key.public


class _Members:
    """What the authenticator asks about a key that a client has proved to own."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether `key` is the group's."""
        return secrets.compare_digest(key, self._public)
