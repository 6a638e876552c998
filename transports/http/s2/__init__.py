"""S2 over HTTP: the API, and the codecs of its requests and responses."""
