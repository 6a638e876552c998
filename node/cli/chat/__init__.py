"""`millpond chat`: the command, its dialogue on a terminal, and its requests to the node."""
