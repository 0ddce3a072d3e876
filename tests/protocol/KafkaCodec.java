import com.fasterxml.jackson.core.json.JsonReadFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.json.JsonMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.BinaryNode;
import com.fasterxml.jackson.databind.node.BooleanNode;
import com.fasterxml.jackson.databind.node.DoubleNode;
import com.fasterxml.jackson.databind.node.IntNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.LongNode;
import com.fasterxml.jackson.databind.node.NullNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.fasterxml.jackson.databind.node.TextNode;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.RawTaggedField;

/**
 * Apache's own message classes over a pipe, for tests/protocol/test_kafka_clients.py. Run it in source-file mode with the
 * peer's jars as class path.
 *
 * A question is an int32 length and that many bytes: a word, the kind of the message ("request", "response", "data",
 * "request header", "response header"), its API key (int16), its name (for data), the version (int16), and then:
 *
 *   versions:  nothing. Answer: the first and the last stable version, int16 each; a last below the first means none. Then
 *              the name of Apache's class, and a byte that is 1 when random messages of it can be made.
 *   echo:      the bytes of messages (int32 count; int32 length and bytes of each). Answer: for each message the bytes that
 *              Apache's class writes after it has read them, and Apache's JSON.
 *   rewrite:   another version (int16) and the bytes of messages, as for echo. Answer: for each message a byte 1 and the
 *              bytes that Apache's class writes in the other version, or a byte 0 when it refuses.
 *   random:    a seed (int64), a count (int32), the longest length (int32). Answer: for each message its bytes, its bytes
 *              with unknown tagged fields added, and its JSON.
 *
 * Short texts are in writeUTF's form; long ones are UTF-8 after an int32 length. An answer is an int32 length and that many
 * bytes: 1 and the answer, or 0 and the text of a failure.
 */
public final class KafkaCodec {
    private static final JsonMapper MAPPER =
            JsonMapper.builder().enable(JsonReadFeature.ALLOW_JAVA_COMMENTS).build();
    private static final String[] DATA_PACKAGES = {
        "org.apache.kafka.common.message.",
        "org.apache.kafka.common.metadata.",
        "org.apache.kafka.coordinator.group.generated.",
        "org.apache.kafka.coordinator.transaction.generated.",
        "org.apache.kafka.server.log.remote.metadata.storage.generated.",
    };

    public static void main(String[] arguments) throws IOException {
        var in = new DataInputStream(new BufferedInputStream(System.in));
        var out = new DataOutputStream(new BufferedOutputStream(System.out));
        System.setOut(System.err);
        while (true) {
            byte[] question;
            try {
                question = in.readNBytes(in.readInt());
            } catch (EOFException end) {
                return;
            }
            byte[] answer = answer(question);
            out.writeInt(answer.length);
            out.write(answer);
            out.flush();
        }
    }

    private static byte[] answer(byte[] question) throws IOException {
        var bytes = new java.io.ByteArrayOutputStream();
        var out = new DataOutputStream(bytes);
        out.writeByte(1);
        try {
            var in = new DataInputStream(new java.io.ByteArrayInputStream(question));
            String word = in.readUTF();
            var kind = new Kind(in.readUTF(), in.readShort(), in.readUTF());
            short version = in.readShort();
            switch (word) {
                case "versions" -> versions(kind, out);
                case "echo" -> echo(kind, version, in, out);
                case "rewrite" -> rewrite(kind, version, in, out);
                case "random" -> random(kind, version, in, out);
                default -> throw new IllegalArgumentException("no such word: " + word);
            }
            return bytes.toByteArray();
        } catch (Exception | LinkageError failure) {
            bytes.reset();
            bytes.write(0);
            failure.printStackTrace(new PrintStream(bytes, true, StandardCharsets.UTF_8));
            return bytes.toByteArray();
        }
    }

    private static void versions(Kind kind, DataOutputStream out) throws Exception {
        Codec codec = kind.codec();
        out.writeShort(codec == null ? 0 : codec.lowest());
        out.writeShort(codec == null ? -1 : codec.highestStable());
        out.writeUTF(codec == null ? "" : codec.name());
        out.writeBoolean(codec != null && codec.definition != null);
    }

    private static void echo(Kind kind, short version, DataInputStream in, DataOutputStream out) throws Exception {
        Codec codec = kind.codec();
        short own = kind.versionOf(version);
        for (int left = in.readInt(); left > 0; left--) {
            Message message = codec.read(in.readNBytes(in.readInt()), own);
            put(out, codec.write(message, own));
            put(out, codec.json(message, own));
        }
    }

    private static void rewrite(Kind kind, short version, DataInputStream in, DataOutputStream out) throws Exception {
        Codec codec = kind.codec();
        short other = in.readShort();
        for (int left = in.readInt(); left > 0; left--) {
            Message message = codec.read(in.readNBytes(in.readInt()), version);
            byte[] written;
            try {
                written = codec.write(message, other);
            } catch (UnsupportedVersionException | NullPointerException refused) {
                out.writeByte(0);
                continue;
            }
            out.writeByte(1);
            put(out, written);
        }
    }

    private static void random(Kind kind, short version, DataInputStream in, DataOutputStream out) throws Exception {
        Codec codec = kind.codec();
        short own = kind.versionOf(version);
        long seed = in.readLong();
        int count = in.readInt();
        int longest = in.readInt();
        for (int number = 0; number < count; number++) {
            var dice = new Random(seed + number);
            ObjectNode node = new Generator(dice, longest).message(codec.definition(), own);
            if (kind.is("request header")) {
                node.put("requestApiKey", kind.key()).put("requestApiVersion", version);
            }
            Message message = codec.fromJson(node, own);
            byte[] plain = codec.write(message, own);
            put(out, plain);
            byte[] text = codec.json(message, own);
            if (codec.isFlexible(own)) {
                Tags.strew(message, dice);
            }
            put(out, codec.write(message, own));
            put(out, text);
        }
    }

    private static void put(DataOutputStream out, byte[] bytes) throws IOException {
        out.writeInt(bytes.length);
        out.write(bytes);
    }

    /** The message of a question. */
    private record Kind(String kind, short key, String name) {
        private static final Map<Kind, Codec> CODECS = new HashMap<>();

        boolean is(String other) {
            return kind.equals(other);
        }

        /** The codec; null when this release lacks the message. */
        Codec codec() throws Exception {
            if (!CODECS.containsKey(this)) {
                Class<?> type = type();
                CODECS.put(this, type == null ? null : new Codec(type));
            }
            return CODECS.get(this);
        }

        private Class<?> type() {
            if (is("request header")) {
                return org.apache.kafka.common.message.RequestHeaderData.class;
            }
            if (is("response header")) {
                return org.apache.kafka.common.message.ResponseHeaderData.class;
            }
            if (is("data")) {
                return found(name);
            }
            for (ApiMessageType api : ApiMessageType.values()) {
                if (api.apiKey() == key) {
                    return found(api.name + (is("request") ? "RequestData" : "ResponseData"));
                }
            }
            return null;
        }

        private static Class<?> found(String name) {
            for (String prefix : DATA_PACKAGES) {
                try {
                    return Class.forName(prefix + name);
                } catch (ClassNotFoundException elsewhere) {
                    // It may be in the next package.
                }
            }
            return null;
        }

        /** The header's version, which follows from the request's. */
        short versionOf(short version) {
            if (is("request header")) {
                return ApiMessageType.fromApiKey(key).requestHeaderVersion(version);
            }
            return is("response header") ? ApiMessageType.fromApiKey(key).responseHeaderVersion(version) : version;
        }
    }

    /** A generated class, its JSON converter and its definition. */
    private static final class Codec {
        private final Class<?> type;
        private final Method toJson;
        private final Method fromJson;
        private final JsonNode definition;

        Codec(Class<?> type) throws Exception {
            this.type = type;
            Class<?> converter = Class.forName(type.getName() + "JsonConverter");
            toJson = converter.getMethod("write", type, short.class, boolean.class);
            fromJson = converter.getMethod("read", JsonNode.class, short.class);
            definition = read(nameOf(type));
        }

        /** The class's definition from its jar; null when the jar has none. */
        private static JsonNode read(String name) throws IOException {
            for (String directory : new String[] {"common/message/", "common/metadata/", "message/"}) {
                String path = directory + name + ".json";
                try (InputStream file = KafkaCodec.class.getClassLoader().getResourceAsStream(path)) {
                    if (file != null) {
                        return MAPPER.readTree(file);
                    }
                }
            }
            return null;
        }

        JsonNode definition() {
            if (definition == null) {
                throw new IllegalStateException(type + ": its jar has no definition");
            }
            return definition;
        }

        boolean isFlexible(short version) {
            return definition.path("flexibleVersions").isTextual()
                    && within(definition.get("flexibleVersions").asText(), version);
        }

        private Message empty() throws ReflectiveOperationException {
            return (Message) type.getDeclaredConstructor().newInstance();
        }

        String name() {
            return nameOf(type);
        }

        private static String nameOf(Class<?> type) {
            return type.getSimpleName().replaceFirst("Data$", "");
        }

        short lowest() throws ReflectiveOperationException {
            return empty().lowestSupportedVersion();
        }

        short highestStable() throws Exception {
            JsonNode request = name().endsWith("Response") ? read(name().replaceFirst("Response$", "Request")) : definition;
            boolean unstable = request != null && request.path("latestVersionUnstable").asBoolean();
            return (short) (empty().highestSupportedVersion() - (unstable ? 1 : 0));
        }

        Message read(byte[] bytes, short version) throws ReflectiveOperationException {
            Message message = empty();
            var buffer = ByteBuffer.wrap(bytes);
            message.read(new ByteBufferAccessor(buffer), version);
            if (buffer.hasRemaining()) {
                throw new IllegalArgumentException(buffer.remaining() + " bytes were not read");
            }
            return message;
        }

        byte[] write(Message message, short version) {
            var sizes = new ObjectSerializationCache();
            var buffer = ByteBuffer.allocate(message.size(sizes, version));
            message.write(new ByteBufferAccessor(buffer), sizes, version);
            if (buffer.hasRemaining()) {
                throw new IllegalStateException(buffer.remaining() + " bytes were not written");
            }
            return buffer.array();
        }

        byte[] json(Message message, short version) throws ReflectiveOperationException {
            return toJson.invoke(null, message, version, false).toString().getBytes(StandardCharsets.UTF_8);
        }

        Message fromJson(JsonNode node, short version) throws ReflectiveOperationException {
            return (Message) fromJson.invoke(null, node, version);
        }
    }

    /** Whether "none", "3", "0-4" or "2+" contains the version. */
    private static boolean within(String versions, short version) {
        if (versions.equals("none")) {
            return false;
        }
        if (versions.endsWith("+")) {
            return version >= Short.parseShort(versions.substring(0, versions.length() - 1));
        }
        String[] ends = versions.split("-");
        return version >= Short.parseShort(ends[0]) && version <= Short.parseShort(ends[ends.length - 1]);
    }

    /** Makes random messages as JSON from their definitions. */
    private record Generator(Random dice, int longest) {
        private static final String[] LETTERS = {"a", "Z", "0", "-", "\"", "\\", "\n", "\u0001", "é", "日", "\uD83E\uDD80"};

        ObjectNode message(JsonNode definition, short version) {
            var structs = new HashMap<String, JsonNode>();
            for (JsonNode struct : definition.path("commonStructs")) {
                structs.put(struct.get("name").asText(), struct.get("fields"));
            }
            collect(definition.get("fields"), structs);
            return struct(definition.get("fields"), structs, version);
        }

        private static void collect(JsonNode fields, Map<String, JsonNode> structs) {
            for (JsonNode field : fields) {
                if (field.has("fields")) {
                    structs.put(element(field.get("type").asText()), field.get("fields"));
                    collect(field.get("fields"), structs);
                }
            }
        }

        private static String element(String type) {
            return type.startsWith("[]") ? type.substring(2) : type;
        }

        private ObjectNode struct(JsonNode fields, Map<String, JsonNode> structs, short version) {
            ObjectNode node = JsonNodeFactory.instance.objectNode();
            for (JsonNode field : fields) {
                boolean tagged = within(field.path("taggedVersions").asText("none"), version);
                String versions = field.path("versions").asText(field.path("taggedVersions").asText("none"));
                if (within(versions, version) && !(tagged && dice.nextInt(4) == 0)) {
                    node.set(camelCase(field.get("name").asText()), field(field, structs, version));
                }
            }
            return node;
        }

        private static String camelCase(String name) {
            return name.substring(0, 1).toLowerCase() + name.substring(1);
        }

        private JsonNode field(JsonNode field, Map<String, JsonNode> structs, short version) {
            if (within(field.path("nullableVersions").asText("none"), version) && dice.nextInt(4) == 0) {
                return NullNode.instance;
            }
            String type = field.get("type").asText();
            if (!type.startsWith("[]")) {
                return value(type, structs, version);
            }
            ArrayNode array = JsonNodeFactory.instance.arrayNode();
            for (int left = dice.nextInt(longest < 100 ? 3 : 4); left > 0; left--) {
                array.add(value(type.substring(2), structs, version));
            }
            return array;
        }

        private JsonNode value(String type, Map<String, JsonNode> structs, short version) {
            return switch (type) {
                case "bool" -> BooleanNode.valueOf(dice.nextBoolean());
                case "int8" -> IntNode.valueOf((int) number(Byte.MIN_VALUE, Byte.MAX_VALUE));
                case "int16" -> IntNode.valueOf((int) number(Short.MIN_VALUE, Short.MAX_VALUE));
                case "uint16" -> IntNode.valueOf((int) number(0, 0xffff));
                case "int32" -> IntNode.valueOf((int) number(Integer.MIN_VALUE, Integer.MAX_VALUE));
                case "uint32" -> LongNode.valueOf(number(0, 0xffffffffL));
                case "int64" -> LongNode.valueOf(number(Long.MIN_VALUE, Long.MAX_VALUE));
                case "float64" -> DoubleNode.valueOf(real());
                case "uuid" -> TextNode.valueOf(uuid().toString());
                case "string" -> TextNode.valueOf(text());
                case "bytes", "records" -> BinaryNode.valueOf(bytes());
                default -> struct(structs.get(type), structs, version);
            };
        }

        private long number(long lowest, long highest) {
            return switch (dice.nextInt(6)) {
                case 0 -> lowest;
                case 1 -> highest;
                case 2 -> 0;
                case 3 -> lowest < 0 ? -1 : 1;
                default -> lowest + Math.floorMod(dice.nextLong(), Math.max(highest - lowest, 1));
            };
        }

        /** Only numbers that every Java's Double.toString prints alike: before 19 it gave some a digit too many. */
        private double real() {
            return switch (dice.nextInt(6)) {
                case 0 -> Double.NEGATIVE_INFINITY;
                case 1 -> Double.NaN;
                case 2 -> -0.0;
                case 3 -> Double.MAX_VALUE;
                default -> dice.nextInt() / 8.0;
            };
        }

        private Uuid uuid() {
            return dice.nextInt(6) == 0 ? Uuid.ZERO_UUID : new Uuid(dice.nextLong(), dice.nextLong());
        }

        /** Rarely the longest string; else a length near the one where a compact length needs another byte. */
        private String text() {
            if (longest > 1000 && dice.nextInt(500) == 0) {
                return LETTERS[LETTERS.length - 1].repeat(Short.MAX_VALUE / 4);
            }
            var text = new StringBuilder();
            for (int left = length(); left > 0; left--) {
                text.append(LETTERS[dice.nextInt(LETTERS.length)]);
            }
            return text.toString();
        }

        private byte[] bytes() {
            var bytes = new byte[length()];
            dice.nextBytes(bytes);
            return bytes;
        }

        private int length() {
            int[] lengths = {0, 1, 2, 5, 9, 126, 127, 128, 300};
            return Math.min(lengths[dice.nextInt(lengths.length)], longest);
        }
    }

    /** Adds tagged fields of a newer release, which Apache's classes keep. */
    private static final class Tags {
        static void strew(Message message, Random dice) throws ReflectiveOperationException {
            for (int left = dice.nextInt(3), tag = 100; left > 0; left--) {
                tag += 1 + dice.nextInt(1 << 28);
                var bytes = new byte[dice.nextInt(200)];
                dice.nextBytes(bytes);
                message.unknownTaggedFields().add(new RawTaggedField(tag, bytes));
            }
            for (Message inner : inside(message)) {
                strew(inner, dice);
            }
        }

        /** The structs in a message, without those at their defaults, which the version may lack. */
        private static List<Message> inside(Message message) throws ReflectiveOperationException {
            var found = new ArrayList<Message>();
            for (Field field : message.getClass().getDeclaredFields()) {
                if (Modifier.isStatic(field.getModifiers())) {
                    continue;
                }
                field.setAccessible(true);
                Object value = field.get(message);
                Collection<?> values = value instanceof Collection<?> all ? all : value == null ? List.of() : List.of(value);
                for (Object each : values) {
                    if (each instanceof Message inner && !inner.equals(each.getClass().getDeclaredConstructor().newInstance())) {
                        found.add(inner);
                    }
                }
            }
            return found;
        }
    }
}
