"""The command line, `millpond`: one module per command family.

Each has `add_parser(subparsers)`, which adds its command, and `run(args)`, which carries it out and
gives the exit code. `main` imports only the module of the command that was asked for.
"""
