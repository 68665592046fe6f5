// `@confluentinc/schemaregistry`: node confluentinc.js URL
const { AvroDeserializer, AvroSerializer, SchemaRegistryClient, SerdeType } = require("@confluentinc/schemaregistry");
const { answer } = require("./line.js");

const client = new SchemaRegistryClient({ baseURLs: [process.argv[2]], maxRetries: 0 });
const deserializer = new AvroDeserializer(client, SerdeType.VALUE, {});
const info = ({ schema, references }) => ({ schemaType: "AVRO", schema, references });

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
    write: async (asked) => {
      const subject = `${asked.topic}-value`;
      await client.register(subject, info(asked), false);
      const serializer = new AvroSerializer(client, SerdeType.VALUE, { useLatestVersion: true });
      return (await serializer.serialize(asked.topic, asked.value)).toString("hex");
    },
    read: async ({ topic, data }) => deserializer.deserialize(topic, Buffer.from(data, "hex")),
  },
  (error) => error.errorCode,
);
