"""Who may do what: the access file, tokens, what holds without any rule."""
