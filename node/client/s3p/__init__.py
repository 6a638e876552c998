"""The S3P client: `client` for async programs, `sync` for blocking ones."""
