"""What moves between a device and the memory of its host takes."""

from __future__ import annotations

from shardopt.hardware.cluster import Link


def host_seconds(link: Link | None, size_bytes: int) -> float:
    """Seconds of one message that nothing runs beside; 0 where the link is not known, as for
    programs that others have laid out."""
    if link is None or not size_bytes:
        return 0.0
    return link.latency_seconds + size_bytes / link.bandwidth_bytes_per_second
