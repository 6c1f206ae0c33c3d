"""The access token: asked for with client credentials, kept, renewed. Specification: Authentication."""
