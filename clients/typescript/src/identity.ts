/**
 * Identities: Ed25519 keys, and the proof of both ends (docs/reference/wire-protocol.md,
 * "Identities"). The keys are those of WebCrypto, so that a page can keep one that no script reads.
 */

import { HandshakeRefused } from "./errors.ts";
import * as p from "./packets.ts";

const PKCS8 = Uint8Array.of(0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20);
const PREFIX = "p2pbuf auth v1\0";
const KEY_BYTES = 32;
const SIGNATURE_BYTES = 64;

/** A new key pair. With `extractable` its secret key can be read, as to store it in a file. */
export async function newIdentity({ extractable = false } = {}): Promise<CryptoKeyPair> {
  const made = await crypto.subtle.generateKey("Ed25519", extractable, ["sign", "verify"]);
  return made as CryptoKeyPair;
}

/** The key pair of a seed of 32 bytes. */
export async function identityOf(seed: Uint8Array): Promise<CryptoKeyPair> {
  if (seed.length !== KEY_BYTES) throw new RangeError("a seed has 32 bytes");
  const key = p.concat(PKCS8, seed) as Uint8Array<ArrayBuffer>;
  const readable = await crypto.subtle.importKey("pkcs8", key, "Ed25519", true, ["sign"]);
  const { x } = await crypto.subtle.exportKey("jwk", readable);
  const jwk = { kty: "OKP", crv: "Ed25519", x: x! };
  return {
    privateKey: await crypto.subtle.importKey("pkcs8", key, "Ed25519", false, ["sign"]),
    publicKey: await crypto.subtle.importKey("jwk", jwk, "Ed25519", true, ["verify"]),
  };
}

/** The public key, 32 bytes: what a node trusts (`millpond peer add NAME --key`). */
export async function publicKeyOf(pair: CryptoKeyPair): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey));
}

/** One handshake: the HELLO that was sent, and the answer to the node's CHALLENGE. */
export class Proof {
  private constructor(
    private readonly pair: CryptoKeyPair,
    private readonly own: Uint8Array,
    private readonly expected: Uint8Array | undefined,
    readonly hello: Uint8Array,
  ) {}

  static async begin(pair: CryptoKeyPair, peer: Uint8Array | undefined, hello: p.Hello): Promise<Proof> {
    const publicKey = await publicKeyOf(pair);
    const nonce = crypto.getRandomValues(new Uint8Array(KEY_BYTES));
    return new Proof(pair, publicKey, peer, p.hello({ ...hello, publicKey, nonce }));
  }

  /** The AUTH for a CHALLENGE. HandshakeRefused where the node is not the one that is expected. */
  async answer(challenge: Uint8Array): Promise<Uint8Array> {
    const { publicKey, signature, unsigned } = p.readChallenge(challenge);
    const isNode = publicKey?.length === KEY_BYTES && signature?.length === SIGNATURE_BYTES;
    if (!isNode || same(publicKey, this.own) || (this.expected && !same(publicKey, this.expected))) {
      throw new HandshakeRefused("PEER_MISMATCH");
    }
    const signed = p.concat(
      new TextEncoder().encode(PREFIX),
      p.u32(this.hello.length),
      this.hello,
      p.u32(unsigned.length),
      unsigned,
    );
    const transcript = new Uint8Array(await crypto.subtle.digest("SHA-256", signed as BufferSource));
    const key = await crypto.subtle.importKey("raw", publicKey as BufferSource, "Ed25519", false, ["verify"]);
    const text = p.concat(Uint8Array.of(0x53), transcript);
    const isProved = await crypto.subtle.verify("Ed25519", key, signature as BufferSource, text as BufferSource);
    if (!isProved) throw new HandshakeRefused("PEER_MISMATCH");
    const ours = p.concat(Uint8Array.of(0x43), transcript) as BufferSource;
    return p.auth(new Uint8Array(await crypto.subtle.sign("Ed25519", this.pair.privateKey, ours)));
  }
}

function same(one: Uint8Array, other: Uint8Array): boolean {
  return one.length === other.length && one.every((byte, at) => byte === other[at]);
}
