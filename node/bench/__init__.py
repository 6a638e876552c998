"""What `millpond bench` runs: loads on a node, checks of its answers, and figures."""
