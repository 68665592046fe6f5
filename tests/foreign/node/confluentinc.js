// `@confluentinc/schemaregistry`: node confluentinc.js URL
const {
  AvroDeserializer,
  AvroSerializer,
  HeaderSchemaIdSerializer,
  SchemaRegistryClient,
  SerdeType,
} = require("@confluentinc/schemaregistry");
const { answer } = require("./line.js");

const client = new SchemaRegistryClient({ baseURLs: [process.argv[2]], maxRetries: 0 });
const deserializer = new AvroDeserializer(client, SerdeType.VALUE, {});
const info = ({ schema, references }) => ({ schemaType: "AVRO", schema, references });

async function written(asked, conf, headers) {
  await client.register(`${asked.topic}-value`, info(asked), false);
  const serializer = new AvroSerializer(client, SerdeType.VALUE, { useLatestVersion: true, ...conf });
  return serializer.serialize(asked.topic, asked.value, headers);
}

answer(
  {
    register: async (asked) => client.register(asked.subject, info(asked), false),
    lookup: async (asked) => client.getIdFullResponse(asked.subject, info(asked), false),
    latest: async ({ subject }) => client.getLatestSchemaMetadata(subject),
    version: async ({ subject, version }) => client.getSchemaMetadata(subject, version, false),
    versions: async ({ subject }) => client.getAllVersions(subject),
    subjects: async () => client.getAllSubjects(),
    schema: async ({ id }) => (await client.getBySubjectAndId("", id)).schema,
    check: async (asked) => client.testSubjectCompatibility(asked.subject, info(asked)),
    level: async ({ subject }) =>
      subject === null ? client.getDefaultCompatibility() : client.getCompatibility(subject),
    set_level: async ({ subject, level }) => client.updateCompatibility(subject, level),
    delete_version: async ({ subject, version, permanent = false }) =>
      client.deleteSubjectVersion(subject, version, permanent),
    delete_subject: async ({ subject, permanent = false }) => client.deleteSubject(subject, permanent),
    write: async (asked) => (await written(asked, {})).toString("hex"),
    write_by_guid: async (asked) => {
      const headers = {};
      const data = await written(asked, { schemaIdSerializer: HeaderSchemaIdSerializer }, headers);
      return [data.toString("hex"), Object.entries(headers).map(([name, held]) => [name, held.toString("hex")])];
    },
    read_by_guid: async ({ topic, data, headers }) =>
      deserializer.deserialize(
        topic,
        Buffer.from(data, "hex"),
        Object.fromEntries(headers.map(([name, held]) => [name, Buffer.from(held, "hex")])),
      ),
    read: async ({ topic, data }) => deserializer.deserialize(topic, Buffer.from(data, "hex")),
  },
  (error) => error.errorCode,
);
