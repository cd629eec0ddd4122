import { BinaryWriter, WireType } from "@bufbuild/protobuf/wire";

/** Element types that the graphs use, with their `TensorProto.DataType` numbers. */
const elementTypes = { float32: 1, int32: 6, int64: 7, bool: 9 } as const;
export type ElementType = keyof typeof elementTypes;

export type Attribute = number | string | readonly number[] | { readonly float: number };
/** A fixed size, or the name of a size that may differ from run to run. */
export type Dimension = number | string;

/** `AttributeProto.AttributeType`. */
const attributeType = { float: 1, int: 2, string: 3, ints: 7 } as const;
const opset = 17;
const irVersion = 8;

/** The domain of the operators that only ONNX Runtime has (FusedMatMul, QuickGelu). */
export const microsoft = "com.microsoft";

type Message = Uint8Array<ArrayBuffer>;

const encode = (write: (w: BinaryWriter) => void): Message => {
  const writer = new BinaryWriter();
  write(writer);
  return writer.finish();
};
const bytes = (w: BinaryWriter, field: number, value: Uint8Array): void => {
  w.tag(field, WireType.LengthDelimited).bytes(value);
};
const text = (w: BinaryWriter, field: number, value: string): void => {
  w.tag(field, WireType.LengthDelimited).string(value);
};
const integer = (w: BinaryWriter, field: number, value: number): void => {
  w.tag(field, WireType.Varint).int64(value);
};

function encodeAttribute(name: string, value: Attribute): Message {
  return encode((w) => {
    text(w, 1, name);
    if (typeof value === "number") {
      integer(w, 3, value);
      integer(w, 20, attributeType.int);
    } else if (typeof value === "string") {
      text(w, 4, value);
      integer(w, 20, attributeType.string);
    } else if ("float" in value) {
      w.tag(2, WireType.Bit32).float(value.float);
      integer(w, 20, attributeType.float);
    } else {
      for (const item of value) integer(w, 8, item);
      integer(w, 20, attributeType.ints);
    }
  });
}

function encodeValueInfo(name: string, type: ElementType, shape: readonly Dimension[]): Message {
  const dimension = (d: Dimension): Message =>
    encode((w) => (typeof d === "number" ? integer(w, 1, d) : text(w, 2, d)));
  const shapeProto = encode((w) => {
    for (const d of shape) bytes(w, 1, dimension(d));
  });
  const tensorType = encode((w) => {
    integer(w, 1, elementTypes[type]);
    bytes(w, 2, shapeProto);
  });
  return encode((w) => {
    text(w, 1, name);
    bytes(
      w,
      2,
      encode((t) => bytes(t, 1, tensorType)),
    );
  });
}

function encodeTensor(name: string, shape: readonly number[], value: Float32Array | BigInt64Array) {
  return encode((w) => {
    for (const d of shape) integer(w, 1, d);
    integer(w, 2, elementTypes[value instanceof Float32Array ? "float32" : "int64"]);
    text(w, 8, name);
    bytes(w, 9, new Uint8Array(value.buffer, value.byteOffset, value.byteLength));
  });
}

interface NodeSpec {
  readonly op: string;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly attributes: Attributes;
  readonly domain: string;
}
type Attributes = Readonly<Record<string, Attribute>>;

/** Collects nodes; every method that makes a value returns its name. */
export interface OnnxGraph {
  input(name: string, type: ElementType, shape: readonly Dimension[]): string;
  node(op: string, inputs: readonly string[], attributes?: Attributes, domain?: string): string;
  /** For operators with several outputs. */
  nodes(
    op: string,
    inputs: readonly string[],
    outputCount: number,
    attributes?: Attributes,
  ): string[];
  /** An int64 vector constant. */
  ints(values: readonly number[]): string;
  /** A float32 scalar constant. */
  float(value: number): string;
  /** Makes `value`, computed by a node and not yet an output, the graph's output `name`. */
  output(name: string, value: string, type: ElementType, shape: readonly Dimension[]): void;
  /** `ModelProto` bytes. */
  encode(): Message;
}

function encodeNode(spec: NodeSpec, index: number, nameOf: (value: string) => string): Message {
  return encode((w) => {
    for (const value of spec.inputs) text(w, 1, nameOf(value));
    for (const value of spec.outputs) text(w, 2, nameOf(value));
    text(w, 3, `${spec.op}_${index}`);
    text(w, 4, spec.op);
    for (const [name, value] of Object.entries(spec.attributes))
      bytes(w, 5, encodeAttribute(name, value));
    text(w, 7, spec.domain);
  });
}

function encodeModel(graph: Message): Message {
  const operators = (domain: string, version: number): Message =>
    encode((w) => {
      text(w, 1, domain);
      integer(w, 2, version);
    });
  return encode((w) => {
    integer(w, 1, irVersion);
    text(w, 2, "outrigger");
    bytes(w, 7, graph);
    bytes(w, 8, operators("", opset));
    bytes(w, 8, operators(microsoft, 1));
  });
}

/**
 * Builds one ONNX model (opset 17, IR 8). Field numbers: onnx/onnx.proto in the ONNX repository;
 * the operators are documented in onnx/docs/Operators.md and ONNX Runtime's ContribOperators.md.
 */
export function createOnnxGraph(graphName: string): OnnxGraph {
  const specs: NodeSpec[] = [];
  const initializers = new Map<string, Message>();
  const inputs: Message[] = [];
  const outputs: Message[] = [];
  // Outputs are named after the fact, not through an Identity node, which would copy them.
  const outputNames = new Map<string, string>();
  let nextValue = 0;

  const constant = (name: string, shape: number[], value: Float32Array | BigInt64Array): string => {
    if (!initializers.has(name)) initializers.set(name, encodeTensor(name, shape, value));
    return name;
  };
  const graph: OnnxGraph = {
    input(name, type, shape) {
      inputs.push(encodeValueInfo(name, type, shape));
      return name;
    },
    node: (op, from, attributes = {}, domain = "") => {
      const value = `value_${nextValue++}`;
      specs.push({ op, inputs: from, outputs: [value], attributes, domain });
      return value;
    },
    nodes(op, from, outputCount, attributes = {}) {
      const values = Array.from({ length: outputCount }, () => `value_${nextValue++}`);
      specs.push({ op, inputs: from, outputs: values, attributes, domain: "" });
      return values;
    },
    ints: (values) =>
      constant(`ints_${values.join("_")}`, [values.length], BigInt64Array.from(values, BigInt)),
    float: (value) => constant(`float_${value}`, [], Float32Array.of(value)),
    output(name, value, type, shape) {
      if (outputNames.has(value)) throw new RangeError(`${value} is already an output`);
      outputNames.set(value, name);
      outputs.push(encodeValueInfo(name, type, shape));
    },
    encode() {
      const nameOf = (value: string): string => outputNames.get(value) ?? value;
      const graphMessage = encode((w) => {
        for (const [index, spec] of specs.entries()) bytes(w, 1, encodeNode(spec, index, nameOf));
        text(w, 2, graphName);
        for (const tensor of initializers.values()) bytes(w, 5, tensor);
        for (const value of inputs) bytes(w, 11, value);
        for (const value of outputs) bytes(w, 12, value);
      });
      return encodeModel(graphMessage);
    },
  };
  return graph;
}
