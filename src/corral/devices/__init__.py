"""Device probes: NVIDIA, AMD and simulated devices behind one port."""
