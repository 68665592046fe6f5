import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.Encoder;
import org.apache.avro.io.EncoderFactory;
import org.springframework.cloud.schema.registry.SchemaReference;
import org.springframework.cloud.schema.registry.client.ConfluentSchemaRegistryClient;
import org.springframework.web.client.HttpStatusCodeException;

/**
 * `ConfluentSchemaRegistryClient` of Spring, and Java's Avro for the bytes behind an id, which that client
 * leaves to its users: java -cp JARS Spring.java URL. One JSON object a line, as line.py has it.
 */
public class Spring {
    static final ObjectMapper JSON = new ObjectMapper();
    static final ConfluentSchemaRegistryClient CLIENT = new ConfluentSchemaRegistryClient();

    public static void main(String[] arguments) throws Exception {
        CLIENT.setEndpoint(arguments[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ObjectNode told = JSON.createObjectNode();
            try {
                told.set("result", answer(JSON.readTree(line)));
            } catch (Exception error) {
                told.putObject("error").put("code", code(error)).put("message", error.toString());
            }
            System.out.println(">" + JSON.writeValueAsString(told));
        }
    }

    static JsonNode answer(JsonNode asked) throws Exception {
        String subject = asked.path("subject").asText();
        switch (asked.get("call").asText()) {
            case "register":
                return JSON.valueToTree(register(subject, asked.get("schema").asText()));
            case "version":
                int version = asked.get("version").asInt();
                String text = CLIENT.fetch(new SchemaReference(subject, version, "avro"));
                return JSON.createObjectNode().put("schema", text);
            case "schema":
                return JSON.valueToTree(CLIENT.fetch(asked.get("id").asInt()));
            case "write":
                return JSON.valueToTree(write(asked));
            case "read":
                return read(HexFormat.of().parseHex(asked.get("data").asText()));
            default:
                throw new IllegalArgumentException(asked.get("call").asText());
        }
    }

    static int register(String subject, String schema) {
        return CLIENT.register(subject, "avro", schema).getId();
    }

    static String write(JsonNode asked) throws Exception {
        String text = asked.get("schema").asText();
        Schema schema = new Schema.Parser().parse(text);
        String value = JSON.writeValueAsString(asked.get("value"));
        Object datum = new GenericDatumReader<Object>(schema)
            .read(null, DecoderFactory.get().jsonDecoder(schema, value));
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream frame = new DataOutputStream(bytes);
        frame.writeByte(0);
        frame.writeInt(register(asked.get("topic").asText() + "-value", text));
        Encoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
        new GenericDatumWriter<Object>(schema).write(datum, encoder);
        encoder.flush();
        return HexFormat.of().formatHex(bytes.toByteArray());
    }

    static JsonNode read(byte[] data) throws Exception {
        ByteBuffer frame = ByteBuffer.wrap(data);
        if (frame.get() != 0) {
            throw new IllegalArgumentException("no magic byte");
        }
        Schema schema = new Schema.Parser().parse(CLIENT.fetch(frame.getInt()));
        Object datum = new GenericDatumReader<Object>(schema)
            .read(null, DecoderFactory.get().binaryDecoder(data, 5, data.length - 5, null));
        return JSON.readTree(datum.toString());
    }

    /** What the registry said, where Spring keeps it. */
    static Integer code(Throwable error) throws Exception {
        for (Throwable each = error; each != null; each = each.getCause()) {
            if (each instanceof HttpStatusCodeException) {
                String body = ((HttpStatusCodeException) each).getResponseBodyAsString();
                return JSON.readTree(body).get("error_code").asInt();
            }
        }
        return null;
    }
}
