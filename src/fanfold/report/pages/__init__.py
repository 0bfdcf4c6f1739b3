"""The pages of a run as JSON-like payloads: the server sends them, and a saved page has them inside."""
