"""What a failing connection says to its user: which server, what happened, and what to look at next."""

from __future__ import annotations

import os
import socket
import ssl

from topics.client.errors import BadAddress, BadAnswer, TimedOut, Unreachable
from topics.client.transport.address import Address
from topics.client.transport.answer import Malformed
from topics.errors import TopicsError


def explain(error: Exception, address: Address, *, sent: bool, reused: bool = False) -> TopicsError:
    """An error of the socket, of TLS or of the parser, as what a caller may catch."""
    if isinstance(error, TopicsError):
        return error
    if isinstance(error, ssl.SSLCertVerificationError):
        return BadAddress(
            f"the certificate of {address} is not trusted: {error.verify_message}; "
            "name the authority with ca=, in the program or in a profile"
        )
    if isinstance(error, ssl.SSLError):
        return Unreachable(f"no TLS connection to {address}: {error.reason or error}", sent=sent, reused=reused)
    if isinstance(error, Malformed):
        return BadAnswer(f"{address}: {error}")
    if isinstance(error, socket.gaierror):
        return Unreachable(f"cannot reach {address}: the host {address.peer[0]} is not known")
    # A timeout of the kernel's own looks like a socket that does not block.
    if isinstance(error, TimeoutError | BlockingIOError):
        return TimedOut(f"{address} did not answer in time", sent=sent, reused=reused)
    # An event loop has words of its own for what the kernel reports.
    reason = os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else str(error)
    return Unreachable(
        f"cannot reach {address}: {reason or type(error).__name__}; is the server running?", sent=sent, reused=reused
    )


def refused_tunnel(address: Address, status: int) -> TopicsError:
    """The proxy opens no tunnel."""
    assert address.proxy is not None
    proxy = f"{address.proxy.host}:{address.proxy.port}"
    if status == 407:
        return BadAddress(f"the proxy {proxy} wants credentials: http://user:password@{proxy}")
    return Unreachable(f"the proxy {proxy} opens no tunnel to {address.url} (it answered {status})")


def exhausted(address: Address, size: int) -> TimedOut:
    """Every connection of the pool was in use for too long."""
    return TimedOut(f"all {size} connections to {address} are in use; raise connections_max, or run less at once")
