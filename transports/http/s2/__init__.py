"""S2 over HTTP: the forms of its data plane and of its settings, and the API that speaks them."""
