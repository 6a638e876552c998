"""The RustLog client: `client` for async programs, `sync` for blocking ones."""
