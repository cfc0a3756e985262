"""A virtual world that runs the production control and AppMaster cores on recorded workloads."""
