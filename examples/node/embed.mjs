// Embed over gRPC from Node.js; the contract is read as it is, nothing is generated.
//   npm install @grpc/grpc-js @grpc/proto-loader
//   node embed.mjs
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const protos = process.env.PROTOS ?? fileURLToPath(new URL("../../protos", import.meta.url));
const options = { includeDirs: [protos], longs: Number, enums: String, oneofs: true };
const definition = loader.loadSync("tensorway/v1/embedding.proto", options);
const { EmbeddingService } = grpc.loadPackageDefinition(definition).tensorway.v1;

const client = new EmbeddingService(
  process.env.ROUTER ?? "127.0.0.1:50051",
  grpc.credentials.createInsecure(),
  // The default of 4 MiB is too little for large batches.
  { "grpc.max_receive_message_length": 64 * 1024 * 1024 },
);

function embed(model, texts) {
  const request = { model, texts: { texts } };
  const deadline = Date.now() + 60_000;
  return new Promise((resolve, reject) =>
    client.Embed(request, { deadline }, (error, answer) => (error ? reject(error) : resolve(answer))),
  );
}

const answer = await embed("minilm", ["hello world", "goodbye"]);
for (const { index = 0, values } of answer.embeddings) {
  console.log(index, values.length, values.slice(0, 3));
}
await embed("no-such-model", ["hello"]).catch((error) => console.log("refused:", error.details));
client.close();
