// `@kafkajs/confluent-schema-registry`: node kafkajs.js URL
const { SchemaRegistry, SchemaType } = require("@kafkajs/confluent-schema-registry");
const { answer } = require("./line.js");

const client = new SchemaRegistry({ host: process.argv[2], retry: { retries: 0 } });
const confluent = ({ schema, references }) => ({ type: SchemaType.AVRO, schema, references });

// It keeps a subject's level by itself, and refuses to register under another than it is told.
const register = async (asked) => {
  const compatibility = asked.level ?? "BACKWARD";
  return (await client.register(confluent(asked), { subject: asked.subject, compatibility })).id;
};

answer(
  {
    register,
    lookup: async (asked) => ({ id: await client.getRegistryIdBySchema(asked.subject, confluent(asked)) }),
    latest: async ({ subject }) => ({ id: await client.getLatestSchemaId(subject) }),
    version: async ({ subject, version }) => ({ id: await client.getRegistryId(subject, version) }),
    schema: async ({ id }) => JSON.stringify((await client.getSchema(id)).schema({ exportAttrs: true })),
    write: async (asked) => {
      const id = await register({ ...asked, subject: `${asked.topic}-value` });
      return (await client.encode(id, asked.value)).toString("hex");
    },
    read: async ({ data }) => client.decode(Buffer.from(data, "hex")),
  },
  // It keeps the message of the registry and HTTP's code alone.
  (error) => error.status,
);
