import { toBinary } from "@bufbuild/protobuf";
import {
  type ConnectRequest,
  ConnectRequestSchema,
} from "../../proto/gen/outrigger/v1/sample_stream_pb.ts";

/** A message up the stream: in the generated form, or a record as it lies in the spool. */
export type UpMessage = ConnectRequest | { readonly recordBytes: Uint8Array };

/** `ConnectRequest.record` is field 2 with length-delimited wire type. */
const recordTag = (ConnectRequestSchema.field.record.number << 3) | 2;

/** Wire bytes of a message; a spooled record is not decoded for it. */
export function connectRequestBytes(message: UpMessage): Buffer {
  if (!("recordBytes" in message)) return Buffer.from(toBinary(ConnectRequestSchema, message));
  const { recordBytes } = message;
  const head = [recordTag];
  let length = recordBytes.length;
  for (; length > 127; length >>>= 7) head.push((length & 127) | 128);
  head.push(length);
  return Buffer.concat([Uint8Array.from(head), recordBytes]);
}
