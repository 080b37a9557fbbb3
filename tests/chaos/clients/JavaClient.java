// The Java client as a writer, a reader and a copier. It does what writers.py, readers.py and
// copiers.py do, and notes the same operations; its arguments are the fields of a Job, name=value.

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.zip.CRC32;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class JavaClient {
    static final String END_MARKER = "end";
    static final int GAVE_UP = 3;
    static final int HUNG = 4;
    static final int ABORTED = 6;
    static final String PADDING = "abcdefghijklmnopqrstuvwxyz0123456789".repeat(32);

    static Map<String, String> job = new HashMap<>();
    static BufferedWriter out;
    static volatile double rate;
    static volatile boolean isFinishing;
    static volatile boolean isStopping;
    static volatile long movedNs = System.nanoTime();

    public static void main(String[] arguments) throws Exception {
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            job.put(argument.substring(0, at), argument.substring(at + 1));
        }
        rate = Double.parseDouble(job.getOrDefault("rate", "500"));
        Path file = Path.of(text("folder"), text("process") + ".jsonl");
        out = Files.newBufferedWriter(
            file, StandardCharsets.UTF_8, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        note("info", "open", about(), "");
        start(JavaClient::obey);
        try {
            switch (text("role")) {
                case "writer" -> write();
                case "reader" -> read();
                default -> copy();
            }
        } catch (KafkaException error) {
            note("info", "died", quoted(error.toString()), "");
            Runtime.getRuntime().halt(GAVE_UP);
        }
        Runtime.getRuntime().halt(0);
    }

    static String text(String name) {
        return job.getOrDefault(name, "");
    }

    static int number(String name) {
        return Integer.parseInt(text(name));
    }

    static String about() {
        String process = text("process");
        String group = text("group").isEmpty()
            ? process.substring(0, process.lastIndexOf('.')) : text("group");
        return "{\"role\":" + quoted(text("role")) + ",\"client\":\"java\",\"topic\":"
            + quoted(text("topic")) + ",\"source\":" + quoted(text("topic")) + ",\"target\":"
            + quoted(text("target")) + ",\"group\":" + quoted(group) + "}";
    }

    static void start(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
    }

    /** Read commands from standard input; its end means to stop. */
    static void obey() {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                if (line.startsWith("rate ")) {
                    rate = Double.parseDouble(line.substring(5));
                } else if (line.equals("finish")) {
                    isFinishing = true;
                }
            }
        } catch (IOException error) {
            // The parent is gone.
        }
        isStopping = true;
        pause(5000);
        Runtime.getRuntime().halt(GAVE_UP);
    }

    static boolean isOver() {
        return isFinishing || isStopping;
    }

    static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    // -- the history --------------------------------------------------------------------------

    static String quoted(String text) {
        StringBuilder found = new StringBuilder("\"");
        for (char c : text.substring(0, Math.min(500, text.length())).toCharArray()) {
            if (c == '"' || c == '\\') {
                found.append('\\').append(c);
            } else {
                found.append(c < ' ' ? ' ' : c);
            }
        }
        return found.append('"').toString();
    }

    static synchronized void note(String type, String f, String value, String error) {
        try {
            out.write("{\"process\":" + quoted(text("process")) + ",\"type\":\"" + type
                + "\",\"f\":\"" + f + "\",\"value\":" + value + ",\"t_ns\":" + System.nanoTime()
                + (error.isEmpty() ? "" : ",\"error\":" + quoted(error)) + "}\n");
            out.flush();
        } catch (IOException failure) {
            throw new IllegalStateException(failure);
        }
    }

    static byte[] encode(String partition, long number, long transaction, long source) {
        String text = text("process") + "|" + partition + "|" + number + "|" + transaction + "|"
            + source + "|";
        int missing = number("size") - text.length() - 9;
        if (missing > 0) {
            int start = (int) (number % 36);
            text += PADDING.substring(start, Math.min(start + missing, PADDING.length()));
        }
        return (text + String.format("|%08x", checksum(text))).getBytes(StandardCharsets.US_ASCII);
    }

    static long checksum(String text) {
        CRC32 crc = new CRC32();
        crc.update(text.getBytes(StandardCharsets.ISO_8859_1));
        return crc.getValue();
    }

    record Payload(String writer, String partition, long number, long transaction, long source) {}

    /** Return what a value says about itself, or null if it is damaged. */
    static Payload decode(byte[] value) {
        if (value == null || value.length < 9) {
            return null;
        }
        String text = new String(value, StandardCharsets.ISO_8859_1);
        String body = text.substring(0, text.length() - 9);
        if (!String.format("%08x", checksum(body)).equals(text.substring(text.length() - 8))) {
            return null;
        }
        String[] fields = body.split("\\|", 6);
        return new Payload(fields[0], fields[1], Long.parseLong(fields[2]),
            Long.parseLong(fields[3]), Long.parseLong(fields[4]));
    }

    // -- settings -----------------------------------------------------------------------------

    static Properties shared() {
        Properties found = new Properties();
        found.put("bootstrap.servers", text("bootstrap"));
        found.put("request.timeout.ms", text("answer_ms"));
        found.put("reconnect.backoff.ms", "50");
        found.put("reconnect.backoff.max.ms", "250");
        found.put("retry.backoff.ms", "50");
        found.put("metadata.max.age.ms", "5000");
        return found;
    }

    static KafkaProducer<byte[], byte[]> producer() {
        Properties settings = shared();
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        settings.put("acks", "all");
        settings.put("enable.idempotence", "true");
        settings.put("linger.ms", "5");
        if (text("role").equals("copier")) {
            settings.put("transactional.id", text("transactional_id"));
            settings.put("transaction.timeout.ms", text("transaction_timeout_ms"));
            settings.put("delivery.timeout.ms", text("transaction_timeout_ms"));
            settings.put("max.block.ms", text("transaction_timeout_ms"));
        } else {
            settings.put("delivery.timeout.ms", text("patience_ms"));
            settings.put("max.block.ms", "250");
        }
        return new KafkaProducer<>(settings);
    }

    static KafkaConsumer<byte[], byte[]> consumer() {
        Properties settings = shared();
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "none");
        settings.put("isolation.level", text("isolation"));
        if (!text("group").isEmpty()) {
            settings.put("group.id", text("group"));
        }
        return new KafkaConsumer<>(settings);
    }

    static List<TopicPartition> places() {
        List<TopicPartition> found = new ArrayList<>();
        for (int index = 0; index < number("partitions"); index++) {
            found.add(new TopicPartition(text("topic"), index));
        }
        return found;
    }

    // -- the writer ---------------------------------------------------------------------------

    /** Acknowledgements and failures, joined into runs; each run is {first, count, offset}. */
    static final Map<Integer, List<long[]>> acked = new TreeMap<>();
    static final Map<String, List<long[]>> failed = new TreeMap<>();
    static int[] outstanding;

    static void write() {
        KafkaProducer<byte[], byte[]> producer = producer();
        int partitions = number("partitions");
        outstanding = new int[partitions];
        long[] next = new long[partitions];
        double[] due = new double[partitions];
        long lastNs = System.nanoTime();
        while (!isOver()) {
            long nowNs = System.nanoTime();
            double elapsedS = Math.min((nowNs - lastNs) / 1e9, 0.5);
            lastNs = nowNs;
            int limit = (int) Math.max(200, rate / partitions);
            for (int index = 0; index < partitions; index++) {
                due[index] = Math.min(due[index] + rate / partitions * elapsedS, limit);
                int count = Math.min((int) due[index], limit - waiting(index));
                if (count > 0) {
                    due[index] -= count;
                    send(producer, index, next[index], count);
                    next[index] += count;
                }
            }
            pause(Math.max(0, 20 - (System.nanoTime() - nowNs) / 1_000_000));
            flush();
        }
        long deadlineNs = System.nanoTime() + (number("patience_ms") + 5000) * 1_000_000L;
        while (!isStopping && System.nanoTime() < deadlineNs && anythingWaits()) {
            pause(50);
            flush();
        }
        flush();
    }

    static int waiting(int index) {
        synchronized (acked) {
            return outstanding[index];
        }
    }

    static boolean anythingWaits() {
        synchronized (acked) {
            for (int count : outstanding) {
                if (count > 0) {
                    return true;
                }
            }
            return false;
        }
    }

    static void send(KafkaProducer<byte[], byte[]> producer, int index, long first, int count) {
        String partition = text("topic") + "-" + index;
        String value = "[" + quoted(partition) + "," + first + "," + (first + count) + ",-1]";
        note("invoke", "send", value, "");
        synchronized (acked) {
            outstanding[index] += count;
        }
        for (long number = first; number < first + count; number++) {
            long mine = number;
            byte[] body = encode(partition, number, -1, -1);
            producer.send(new ProducerRecord<>(text("topic"), index, null, body), (done, error) -> {
                synchronized (acked) {
                    outstanding[index]--;
                    if (error == null) {
                        long offset = done.hasOffset() ? done.offset() : -1;
                        join(acked.computeIfAbsent(index, i -> new ArrayList<>()), mine, offset);
                    } else {
                        String key = index + " " + error.getClass().getSimpleName();
                        join(failed.computeIfAbsent(key, i -> new ArrayList<>()), mine, -1);
                    }
                }
            });
        }
    }

    static void join(List<long[]> runs, long number, long offset) {
        if (!runs.isEmpty()) {
            long[] last = runs.get(runs.size() - 1);
            long expected = last[2] < 0 ? -1 : last[2] + last[1];
            if (last[0] + last[1] == number && expected == offset) {
                last[1]++;
                return;
            }
        }
        runs.add(new long[] {number, 1, offset});
    }

    static void flush() {
        Map<Integer, List<long[]>> good;
        Map<String, List<long[]>> bad;
        synchronized (acked) {
            good = new TreeMap<>(acked);
            bad = new TreeMap<>(failed);
            acked.clear();
            failed.clear();
        }
        good.forEach((index, runs) -> note("ok", "send", runs(index, runs, 3), ""));
        bad.forEach((key, runs) -> {
            String[] parts = key.split(" ", 2);
            note("info", "send", runs(Integer.parseInt(parts[0]), runs, 2), parts[1]);
        });
    }

    static String runs(int index, List<long[]> runs, int fields) {
        StringBuilder found = new StringBuilder();
        for (long[] run : runs) {
            found.append(found.length() == 0 ? "[" : ",[").append(run[0]).append(',').append(run[1]);
            found.append(fields == 3 ? "," + run[2] + "]" : "]");
        }
        return "[" + quoted(text("topic") + "-" + index) + ",[" + found + "]]";
    }

    // -- the reader ---------------------------------------------------------------------------

    static void read() {
        KafkaConsumer<byte[], byte[]> consumer = consumer();
        consumer.assign(places());
        for (TopicPartition place : places()) {
            consumer.seek(place, 0);
            note("ok", "assign", "[" + quoted(place.toString()) + ",0]", "");
        }
        while (!isOver()) {
            try {
                var records = consumer.poll(Duration.ofMillis(200));
                for (TopicPartition place : records.partitions()) {
                    took(place, records.records(place));
                }
            } catch (OffsetOutOfRangeException error) {
                note("info", "poll", "[" + quoted(text("topic") + "-?") + ",-1]", error.toString());
                Runtime.getRuntime().halt(GAVE_UP);
            } catch (KafkaException error) {
                String said = error.toString();
                boolean isDamage = said.contains("corrupt") || said.contains("CRC");
                if (isDamage) {
                    note("info", "poll", "[" + quoted(text("topic") + "-?") + ",-1]", "damaged");
                }
                note("info", "error", quoted(said), "");
                pause(200);
            }
        }
    }

    static void took(TopicPartition place, List<ConsumerRecord<byte[], byte[]>> records) {
        String partition = place.topic() + "-" + place.partition();
        List<Object[]> runs = new ArrayList<>();
        long end = -1;
        for (ConsumerRecord<byte[], byte[]> record : records) {
            Payload found = decode(record.value());
            if (found == null) {
                String value = "[" + quoted(partition) + "," + record.offset() + "]";
                note("info", "poll", value, "damaged");
                continue;
            }
            Object[] last = runs.isEmpty() ? null : runs.get(runs.size() - 1);
            if (last != null && follows(last, record.offset(), found)) {
                last[1] = (long) last[1] + 1;
            } else {
                runs.add(new Object[] {record.offset(), 1L, found});
            }
            end = found.writer().equals(END_MARKER) ? record.offset() : end;
        }
        StringBuilder text = new StringBuilder();
        for (Object[] run : runs) {
            Payload found = (Payload) run[2];
            text.append(text.length() == 0 ? "[" : ",[").append(run[0]).append(',').append(run[1]);
            text.append(',').append(quoted(found.writer())).append(',').append(found.number());
            text.append(',').append(found.transaction()).append(',').append(found.source());
            text.append(']');
        }
        if (text.length() > 0) {
            note("ok", "poll", "[" + quoted(partition) + ",[" + text + "]]", "");
        }
        if (end >= 0) {
            note("ok", "end", "[" + quoted(partition) + "," + end + "]", "");
        }
    }

    static boolean follows(Object[] run, long offset, Payload found) {
        Payload first = (Payload) run[2];
        long count = (long) run[1];
        return (long) run[0] + count == offset
            && first.writer().equals(found.writer())
            && first.number() + count == found.number()
            && first.transaction() == found.transaction()
            && (first.source() < 0 ? -1 : first.source() + count) == found.source();
    }

    // -- the copier ---------------------------------------------------------------------------

    static void copy() {
        start(() -> {
            while (System.nanoTime() - movedNs < 15_000_000_000L) {
                pause(200);
            }
            note("info", "died", "\"hung\"", "");
            Runtime.getRuntime().halt(HUNG);
        });
        job.put("isolation", "read_committed");
        KafkaProducer<byte[], byte[]> producer = producer();
        KafkaConsumer<byte[], byte[]> consumer = consumer();
        persist(producer::initTransactions);
        note("ok", "init", quoted(text("transactional_id")), "");
        consumer.assign(places());
        rewind(consumer);
        long[] next = new long[number("partitions")];
        Set<Integer> ended = new HashSet<>();
        for (int transaction = 1; !isOver();) {
            List<ConsumerRecord<byte[], byte[]>> batch = gather(consumer);
            if (!batch.isEmpty()) {
                copy(producer, consumer, batch, transaction, next, ended);
                transaction++;
            }
        }
    }

    static void persist(Runnable work) {
        while (true) {
            movedNs = System.nanoTime();
            try {
                work.run();
                return;
            } catch (TimeoutException error) {
                note("info", "error", quoted(error.toString()), "");
            }
        }
    }

    static List<ConsumerRecord<byte[], byte[]>> gather(KafkaConsumer<byte[], byte[]> consumer) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        long lastNs = System.nanoTime();
        while (found.size() < number("transaction_records") && !isOver()) {
            movedNs = System.nanoTime();
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                found.add(record);
                lastNs = System.nanoTime();
            }
            if (!found.isEmpty() && System.nanoTime() - lastNs > 300_000_000L) {
                break;
            }
        }
        return found;
    }

    static void copy(
            KafkaProducer<byte[], byte[]> producer, KafkaConsumer<byte[], byte[]> consumer,
            List<ConsumerRecord<byte[], byte[]>> batch, int transaction, long[] next,
            Set<Integer> ended) {
        Map<TopicPartition, OffsetAndMetadata> positions = new LinkedHashMap<>();
        Map<Integer, List<Long>> sources = new TreeMap<>();
        Map<Integer, Long> markers = new TreeMap<>();
        for (ConsumerRecord<byte[], byte[]> record : batch) {
            TopicPartition place = new TopicPartition(record.topic(), record.partition());
            positions.put(place, new OffsetAndMetadata(record.offset() + 1));
            Payload found = decode(record.value());
            if (found != null && found.writer().equals(END_MARKER)) {
                markers.put(record.partition(), record.offset());
            } else {
                sources.computeIfAbsent(record.partition(), i -> new ArrayList<>())
                    .add(record.offset());
            }
        }
        note("invoke", "begin", String.valueOf(transaction), "");
        producer.beginTransaction();
        sources.forEach((index, offsets) -> {
            String target = text("target") + "-" + index;
            long first = next[index];
            next[index] += offsets.size();
            note("invoke", "send", "[" + quoted(target) + "," + first + "," + next[index] + ","
                + transaction + "]", "");
            for (int at = 0; at < offsets.size(); at++) {
                byte[] value = encode(target, first + at, transaction, offsets.get(at));
                producer.send(new ProducerRecord<>(text("target"), index, null, value));
            }
        });
        producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
        if (transaction % ABORTED == ABORTED - 1) {
            persist(producer::abortTransaction);
            note("ok", "abort", String.valueOf(transaction), "");
            rewind(consumer);
            return;
        }
        StringBuilder offsets = new StringBuilder();
        positions.forEach((place, at) -> offsets.append(offsets.length() == 0 ? "" : ",")
            .append(quoted(place.toString())).append(':').append(at.offset()));
        String value = "[" + transaction + ",{" + offsets + "}]";
        note("invoke", "commit", value, "");
        persist(producer::commitTransaction);
        note("ok", "commit", value, "");
        markers.forEach((index, offset) -> {
            if (ended.add(index)) {
                note("ok", "end", "[" + quoted(text("topic") + "-" + index) + "," + offset + "]", "");
            }
        });
    }

    /** Go back to the committed offsets. */
    static void rewind(KafkaConsumer<byte[], byte[]> consumer) {
        Map<TopicPartition, OffsetAndMetadata> found = new HashMap<>();
        StringBuilder names = new StringBuilder();
        for (TopicPartition place : places()) {
            names.append(names.length() == 0 ? "" : ",").append(quoted(place.toString()));
        }
        persist(() -> {
            note("invoke", "committed", "[" + names + "]", "");
            found.putAll(consumer.committed(new HashSet<>(places()), Duration.ofSeconds(5)));
        });
        StringBuilder offsets = new StringBuilder();
        for (TopicPartition place : places()) {
            OffsetAndMetadata position = found.get(place);
            offsets.append(offsets.length() == 0 ? "" : ",").append(quoted(place.toString()));
            offsets.append(':').append(position == null ? -1 : position.offset());
            consumer.seek(place, position == null ? 0 : position.offset());
        }
        note("ok", "committed", "{" + offsets + "}", "");
    }
}
