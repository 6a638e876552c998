"""What `millpond pipeline` does, command by command."""
