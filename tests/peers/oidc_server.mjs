// A complete OpenID provider with its own sign-in pages, before one resource: node oidc_server.mjs RESOURCE PORT
// Registration, PKCE and rotation of refresh tokens are enforced; access tokens live for four seconds, are opaque, and can be
// looked up by the resource.
import Provider from 'oidc-provider';

const [resource, port] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const provider = new Provider(issuer, {
  clients: [{
    client_id: 'the-resource', client_secret: 'the-secret-of-the-resource', redirect_uris: [], response_types: [],
    grant_types: [], token_endpoint_auth_method: 'client_secret_basic',
  }],
  scopes: ['openid', 'offline_access', 'tools'],
  pkce: { required: () => true },
  rotateRefreshToken: true,
  ttl: { AccessToken: 4, RefreshToken: 86400 },
  features: {
    devInteractions: { enabled: true },
    registration: { enabled: true },
    revocation: { enabled: true },
    introspection: { enabled: true },
    dPoP: { enabled: process.env.DPOP === '1' },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: (ctx, indicator) => {
        if (indicator !== resource) throw new Error(`no such resource: ${indicator}`);
        return { scope: 'tools', audience: resource, accessTokenFormat: 'opaque', accessTokenTTL: 4 };
      },
    },
  },
  findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
});
provider.on('server_error', (ctx, error) => console.error('server_error', error));
for (const event of ['authorization.error', 'grant.error', 'registration_create.error', 'interaction.error']) {
  provider.on(event, (ctx, error) => console.error(event, error.message, error.error_description, error.error_detail));
}
provider.listen(+port, '127.0.0.1');
