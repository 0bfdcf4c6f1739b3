"""What processes and machines share by the address of a Redis or Valkey server: limits, replies, claims, a budget."""

from fanfold.sharing.address import ShareAddress, without_password
from fanfold.sharing.budget import SharedBudget
from fanfold.sharing.hub import Sharing, shared_by
from fanfold.sharing.lease import Lease, lease_of
from fanfold.sharing.link import ShareAway, ShareRefused

__all__ = [
    "Lease",
    "ShareAddress",
    "ShareAway",
    "ShareRefused",
    "SharedBudget",
    "Sharing",
    "lease_of",
    "shared_by",
    "without_password",
]
