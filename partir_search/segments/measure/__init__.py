"""Seconds of segments: on the devices at hand, on one device, or by a compiler without hardware."""
