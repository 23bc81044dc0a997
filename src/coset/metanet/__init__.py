"""Networks that read weights, and how far any reader of weights sees the symmetries of what it reads."""

from coset.metanet._audit import audit
from coset.metanet.auditing.result import Audit, OrbitChange

__all__ = ["Audit", "OrbitChange", "audit"]
