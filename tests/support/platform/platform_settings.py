"""The settings that lead a worker or a command to a platform."""


def leading_to(url: str) -> dict[str, str]:
    """Return the variables of the platform at this URL, which grants tokens at /token."""
    platform = {"API_URL": url, "TOKEN_URL": f"{url}/token", "CLIENT_ID": "me", "CLIENT_SECRET": "s3cret"}
    return {f"CREDHOOK_{name}": value for name, value in platform.items()}
