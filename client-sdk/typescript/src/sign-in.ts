/** Signs a user in at a protected server. */

import { spawn } from "node:child_process";

import type { Client } from "./client.js";
import { type SignIn, SignInState } from "./proto.js";
import type { RequestOptions } from "./rpc.js";

/** How long one request waits for the end of a sign-in. */
const WAIT_MS = 20_000;

/** A sign-in ended without success. */
export class SignInError extends Error {
  /** The sign-in. */
  readonly signIn: SignIn;

  constructor(signIn: SignIn) {
    super(`the sign-in at ${signIn.serverId} ended as ${signIn.state}${signIn.failure && `: ${signIn.failure}`}`);
    this.name = "SignInError";
    this.signIn = signIn;
  }
}

/** Settings of {@link Client.signIn}. */
export interface SignInOptions extends RequestOptions {
  /** Scopes to ask for beside those that are needed and those that were granted before. */
  scopes?: string[];
  /**
   * Shows the user where to go on. Default: opens a browser where there is a screen, and prints the URL on standard error in
   * any case.
   */
  show?: (url: string, signIn: SignIn) => void | Promise<void>;
}

/** Opens a URL in the user's browser; whether there was one to start. Only `https:` and `http:`. */
export function openBrowser(url: string): Promise<boolean> {
  const { protocol, href } = new URL(url);
  if (protocol !== "https:" && protocol !== "http:") {
    throw new TypeError(`a browser is opened for https: and http: only, not for ${protocol}`);
  }
  const screen = process.platform === "darwin" || process.env["DISPLAY"] || process.env["WAYLAND_DISPLAY"];
  if (!screen) {
    return Promise.resolve(false);
  }
  const program = process.platform === "darwin" ? "open" : "xdg-open";
  return new Promise((resolve) => {
    const browser = spawn(program, [href], { stdio: "ignore", detached: true });
    browser.once("error", () => resolve(false));
    browser.once("spawn", () => resolve(true));
    browser.unref();
  });
}

async function showAndPrint(url: string): Promise<void> {
  process.stderr.write(`Sign in at: ${url}\n`);
  await openBrowser(url);
}

/** Begins a sign-in, shows where the user goes on, and waits for the end. */
export async function signIn(client: Client, serverId: string, options: SignInOptions): Promise<SignIn> {
  const { scopes = [], show = showAndPrint, ...request } = options;
  let current = await client.startSignIn(serverId, scopes, request);
  await show(current.authUrl, current);
  while (
    current.state === SignInState.SIGN_IN_STATE_PENDING ||
    current.state === SignInState.SIGN_IN_STATE_REDEEMING
  ) {
    current = await client.getSignIn(current.id, WAIT_MS, request);
  }
  if (current.state !== SignInState.SIGN_IN_STATE_SUCCEEDED) {
    throw new SignInError(current);
  }
  return current;
}
