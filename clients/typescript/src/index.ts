/** Millpond for browsers and Node: `const channel = await connect("ws://127.0.0.1:7401", "chat/1")`. */

export { Channel, Message, connect } from "./channel.ts";
export type { ConnectOptions, PutOptions, Receipt, Event } from "./channel.ts";
export {
  ClientClosed,
  CODES,
  ConnectionLost,
  HandshakeRefused,
  HELLO_CODES,
  MillpondError,
  RequestError,
  TimeoutError,
} from "./errors.ts";
export { identityOf, newIdentity, publicKeyOf } from "./identity.ts";
export type { Job, JobOptions, JobResult, Jobs, PutJob } from "./jobs.ts";
export type { Value } from "./msgpack.ts";
export type { Appended, ReadRecords, StreamRecord, Streams, StreamSettings } from "./streams.ts";
export type { Code, HelloCode } from "./errors.ts";
export type { Durability, Mode, Role } from "./packets.ts";
