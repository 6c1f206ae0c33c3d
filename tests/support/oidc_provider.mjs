// npm's oidc-provider with one client, for tests/integration/test_oauth_servers.py.
// Arguments: the way that the client authenticates, and a resource that tokens may be for.
import Provider from "oidc-provider";

const [method, resource] = process.argv.slice(2);
const provider = new Provider("http://127.0.0.1", {
  clients: [
    {
      client_id: "me:the worker",
      client_secret: "p%w+ /~:",
      grant_types: ["client_credentials"],
      redirect_uris: [],
      response_types: [],
      token_endpoint_auth_method: method,
      scope: "read write",
    },
  ],
  scopes: ["read", "write"],
  features: {
    clientCredentials: { enabled: true },
    introspection: { enabled: true },
    devInteractions: { enabled: false },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      getResourceServerInfo: (_, asked) => {
        if (asked !== resource) throw new Error("unknown resource");
        return { scope: "read write", accessTokenTTL: 120, accessTokenFormat: "jwt", audience: resource };
      },
    },
  },
});
const server = provider.listen(0, "127.0.0.1", () => console.log(server.address().port));
