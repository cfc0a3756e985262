"""A virtual address that two or more front ends hold in turn: VRRPv3 (RFC 9568) by keepalived, unicast."""
