// A certified OpenID Connect provider with two users, for the tests of sign-in.
import { Provider } from "oidc-provider";

const [port, redirect] = [Number(process.argv[2]), process.argv[3]];
const groups = { carol: ["hpc-staff", "others"], alice: ["others"] };
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    {
      client_id: "jobsight",
      client_secret: "secret of the client",
      redirect_uris: [redirect],
      grant_types: ["authorization_code"],
      response_types: ["code"],
    },
  ],
  pkce: { required: () => true },
  claims: { openid: ["sub"], profile: ["preferred_username", "groups"] },
  cookies: { keys: ["a key of the tests"] },
  features: { devInteractions: { enabled: true } },
  findAccount: async (_, id) => ({
    accountId: id,
    claims: async () => ({ sub: `subject-${id}`, preferred_username: id, groups: groups[id] ?? [] }),
  }),
});
provider.listen(port, "127.0.0.1", () => console.log("listening"));
