"""Which addresses the encoder may dial for an image."""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Addresses that clouds serve secrets on although they are not private by any registry.
_METADATA = frozenset({ipaddress.ip_address("168.63.129.16")})
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether an address is on the public internet, whatever it is wrapped in."""
    ip = ipaddress.ip_address(address)
    return all(
        part.is_global and not part.is_multicast and part not in _METADATA
        for part in (ip, *_embedded(ip))
    )


def _embedded(ip: Address) -> tuple[Address, ...]:
    """IPv4 addresses that an IPv6 address leads to."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ()
    found: list[Address | None] = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
    if ip in _NAT64:
        found.append(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
    return tuple(part for part in found if part is not None)
