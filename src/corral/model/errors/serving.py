"""What is wrong with services and their front ends."""

from __future__ import annotations

from corral.model.errors.asking import Conflict
from corral.model.errors.tree import CorralError, UsageError


class CertificateInvalid(UsageError):
    """A certificate has expired, is not valid yet, does not belong to its key, or cannot be read."""

    code = "CERTIFICATE_INVALID"


class ProxyRefused(Conflict):
    """The proxy does not take this configuration, of which it named ``lines``; it goes on with the one that it has."""

    code = "PROXY_REFUSED"
    lines: tuple[int, ...] = ()


class ProxyFault(CorralError):
    """The proxy of a front end does not start or does not answer; it is started again."""

    code = "PROXY_FAULT"
    retryable = True


class FaultElsewhere(Conflict):
    """What a drill would break does not run on this machine; run it where it does."""

    code = "FAULT_ELSEWHERE"
