/** Errors of the client: one tree below `MillpondError`. */

/** The codes of refused requests (docs/reference/wire-protocol.md, "NACK"). */
export const CODES = {
  0x02: "NOT_FOUND",
  0x20: "TTL_REFUSED",
  0x21: "BAD_RANGE",
  0x22: "KEY_REUSED",
  0x23: "EMPTY_DATA",
  0x24: "DATA_TOO_LARGE",
  0x25: "WRONG_ROLE",
  0x26: "BUFFER_FULL",
  0x27: "TOO_LARGE_FOR_PEER",
  0x28: "LEASE_LOST",
  0x29: "NOT_A_QUEUE",
  0x2a: "CHANNEL_EXISTS",
  0x2b: "UNKNOWN_CHANNEL",
  0x2c: "NO_LISTENER",
  0x40: "STREAM_EXISTS",
  0x41: "UNKNOWN_STREAM",
  0x42: "NON_MONOTONIC_ID",
  0x43: "TRIMMED",
  0x44: "SEQUENCE_MISMATCH",
  0x45: "FENCED",
  0x46: "PART_OF_TOPIC",
  0x47: "GROUPS_FULL",
  0x4a: "CLOSED",
  0xa0: "SLOW_DOWN",
  0xe0: "IDS_EXHAUSTED",
  0xe1: "STORAGE_FAILED",
  0xf0: "MALFORMED",
  0xf2: "NOT_NEGOTIATED",
  0xf6: "NOT_ALLOWED",
  0xfe: "OUTCOME_UNKNOWN",
} as const;

export type Code = (typeof CODES)[keyof typeof CODES] | "UNKNOWN";

/** The codes of refused handshakes. After the last three a client may try again. */
export const HELLO_CODES = {
  0x01: "NO_COMMON_VERSION",
  0xf0: "MALFORMED",
  0xf5: "AUTHENTICATION_FAILED",
  0xf6: "NOT_ALLOWED",
  0xf8: "TLS_REQUIRED",
  0xf7: "TOO_MANY_CONNECTIONS",
  0xe1: "STORAGE_FAILED",
  0xfe: "INTERNAL",
} as const;

export type HelloCode = (typeof HELLO_CODES)[keyof typeof HELLO_CODES] | "UNKNOWN";

export class MillpondError extends Error {
  override name = "MillpondError";
}

/** The node refused a request. `delayMs`: it asks for so much time before a retry. */
export class RequestError extends MillpondError {
  override name = "RequestError";
  readonly code: Code;

  constructor(
    readonly byte: number,
    readonly delayMs?: number,
  ) {
    const code: Code = byte in CODES ? CODES[byte as keyof typeof CODES] : "UNKNOWN";
    super(`refused: ${code} (0x${byte.toString(16).padStart(2, "0")})`);
    this.code = code;
  }
}

/** The connection is lost for good; requests without an answer may have been done or not. */
export class ConnectionLost extends MillpondError {
  override name = "ConnectionLost";
}

/**
 * The node refused the handshake, the channel is in another mode than requested (MODE_MISMATCH), or
 * the node has not the key that is expected, or none (PEER_MISMATCH).
 */
export class HandshakeRefused extends ConnectionLost {
  override name = "HandshakeRefused";
  readonly code: HelloCode | "MODE_MISMATCH" | "PEER_MISMATCH";

  constructor(byte: number | "MODE_MISMATCH" | "PEER_MISMATCH") {
    const known = byte as keyof typeof HELLO_CODES;
    const code = typeof byte === "string" ? byte : (HELLO_CODES[known] ?? "UNKNOWN");
    super(`the node refused the handshake: ${code}`);
    this.code = code;
  }

  /** Whether the same handshake may be accepted later. */
  get isTemporary(): boolean {
    return ["TOO_MANY_CONNECTIONS", "STORAGE_FAILED", "INTERNAL"].includes(this.code);
  }
}

/** The client was closed on this side. */
export class ClientClosed extends MillpondError {
  override name = "ClientClosed";
}

/** No message came in time. */
export class TimeoutError extends MillpondError {
  override name = "TimeoutError";
}
