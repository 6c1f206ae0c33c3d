"""The OpenAPI documents that the sandbox publishes."""

import httpx


def test_the_documents_describe_every_path_that_is_routed(api: httpx.Client) -> None:
    platform_paths = api.get("/openapi.json").json()["paths"]
    sandbox_paths = api.get("/sandbox/openapi.json").json()["paths"]
    specified = {
        ("post", "/me-creds/api/presets/credentials"),
        ("get", "/me-creds/api/templates/credentials/{id}"),
        ("post", "/me-creds/api/certificates/csrs/{id}/import"),
        ("post", "/me-creds/api/trusted-entities"),
        ("post", "/me-creds/api/endpoints"),
        ("get", "/me-creds/api/endpoints"),
        ("delete", "/me-creds/api/endpoints/{id}"),
        ("post", "/consumer-onboarding/api/users"),
        ("get", "/consumer-onboarding/api/users"),
        ("get", "/consumer-onboarding/api/users/by-external-identifier/{externalIdentifier}"),
        ("get", "/consumer-onboarding/api/users/{username}/external-identifier"),
        ("patch", "/consumer-onboarding/api/users/{username}/idp-link"),
        ("post", "/me-wallet/api/credentials"),
        ("post", "/realms/{realm}/protocol/openid-connect/token"),
    }
    assert specified <= {(method, path) for path, methods in platform_paths.items() for method in methods}
    assert all(path.startswith("/sandbox/") for path in sandbox_paths)
