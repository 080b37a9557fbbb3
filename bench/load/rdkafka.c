/* Load generator on librdkafka: what a real client gets, without a binding's cost on top.
 *
 *   rdkafka produce --port N --message-bytes N --batch-bytes N [--acks N] [--partitions N] ...
 *   rdkafka consume --port N [--partitions N] ...
 *   rdkafka version
 *
 * Produce keeps the queue full and counts the messages acknowledged inside the window, which
 * opens after --warm-up-seconds and lasts --seconds; the queue is emptied after it.  With
 * --messages it produces so many instead, and the window closes when all are acknowledged.
 * Consume reads all partitions from offset 0.  Its window opens with the first messages and
 * closes after --seconds or --messages, whichever comes first.
 * The result is one line of JSON.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <librdkafka/rdkafka.h>
#include <string.h>
#include <unistd.h>

#include "clocks.h"

enum { CONSUME_BATCH = 10000, GIVE_UP_AFTER_S = 30 };

typedef struct {
    const char *port, *topic, *batch_bytes, *acks, *linger_ms, *idempotence;
    int partitions, message_bytes;
    double seconds, warm_up_s;
    long messages;
} Options;

typedef struct {
    long messages, bytes, errors;
    rd_kafka_resp_err_t first_error;
} Tally;

static Options opt = {.topic = "t", .batch_bytes = "65536", .acks = "1", .linger_ms = "5",
                      .idempotence = "false", .partitions = 6, .message_bytes = 1024,
                      .seconds = 1};
static Tally tally;

static void die(const char *why) {
    fprintf(stderr, "rdkafka: %s\n", why);
    exit(1);
}

static void note_error(rd_kafka_resp_err_t code) {
    if (tally.errors++ == 0) tally.first_error = code;
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char why[256];
    if (rd_kafka_conf_set(conf, name, value, why, sizeof why) != RD_KAFKA_CONF_OK) die(why);
}

static rd_kafka_conf_t *new_conf(void) {
    char servers[64];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    snprintf(servers, sizeof servers, "127.0.0.1:%s", opt.port);
    set(conf, "bootstrap.servers", servers);
    set(conf, "client.id", "bench");
    set(conf, "log_level", "3");
    return conf;
}

static rd_kafka_t *new_client(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
    char why[512];
    rd_kafka_t *client = rd_kafka_new(type, conf, why, sizeof why);
    if (!client) die(why);
    return client;
}

/* ---- produce ------------------------------------------------------------------------------- */

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client;
    (void)opaque;
    if (message->err) note_error(message->err);
    tally.messages++;
    tally.bytes += (long)message->len;
}

static rd_kafka_t *new_producer(void) {
    rd_kafka_conf_t *conf = new_conf();
    set(conf, "batch.size", opt.batch_bytes);
    set(conf, "linger.ms", opt.linger_ms);
    set(conf, "acks", opt.acks);
    set(conf, "enable.idempotence", opt.idempotence);
    set(conf, "batch.num.messages", "1000000");
    set(conf, "message.max.bytes", "4000000");
    /* Enough to keep every partition's batches full, little enough to empty in a moment. */
    set(conf, "queue.buffering.max.messages", "1000000");
    set(conf, "queue.buffering.max.kbytes", "65536");
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    return new_client(RD_KAFKA_PRODUCER, conf);
}

/* One message, waited for: connections are up and the topic is known after it. */
static void produce_first(rd_kafka_t *client, rd_kafka_topic_t *topic, void *payload) {
    if (rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, payload, (size_t)opt.message_bytes, NULL,
                         0, NULL))
        die(rd_kafka_err2str(rd_kafka_last_error()));
    rd_kafka_flush(client, GIVE_UP_AFTER_S * 1000);
    if (tally.messages != 1 || tally.errors) die("the first message was not acknowledged");
}

static Window produce(void) {
    rd_kafka_t *client = new_producer();
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, opt.topic, NULL);
    void *payload = malloc((size_t)opt.message_bytes);
    memset(payload, 'x', (size_t)opt.message_bytes);
    produce_first(client, topic, payload);

    /* A partition gets a whole batch at a time, so that linger never cuts a batch short. */
    long burst = atol(opt.batch_bytes) / opt.message_bytes + 1;
    if (burst < 1000) burst = 1000;
    double warm_at = now_s() + opt.warm_up_s, end_at = warm_at + opt.seconds;
    Window window;
    int warm = 0;
    for (long i = 0;; i++) {
        int32_t partition = (int32_t)(i / burst % opt.partitions);
        while (rd_kafka_produce(topic, partition, RD_KAFKA_MSG_F_COPY, payload,
                                (size_t)opt.message_bytes, NULL, 0, NULL))
            rd_kafka_poll(client, 5);
        if (i % 256 && i + 1 != opt.messages) continue;
        rd_kafka_poll(client, 0);
        double now = now_s();
        if (!warm && now >= warm_at) {
            warm = 1;
            tally.messages = tally.bytes = 0;
            window_open(&window);
        }
        if (opt.messages ? i + 1 >= opt.messages : now >= end_at) break;
    }
    if (opt.messages) rd_kafka_flush(client, GIVE_UP_AFTER_S * 1000);
    window_close(&window);
    Tally counted = tally;
    rd_kafka_flush(client, GIVE_UP_AFTER_S * 1000);
    counted.errors = tally.errors + rd_kafka_outq_len(client);
    counted.first_error = tally.first_error;
    tally = counted;
    return window;
}

/* ---- consume ------------------------------------------------------------------------------- */

/* The plain consumer, without a group: what is measured is Fetch, not group membership. */
static rd_kafka_queue_t *start_consumer(void) {
    rd_kafka_conf_t *conf = new_conf();
    set(conf, "queued.max.messages.kbytes", "65536");
    set(conf, "queued.min.messages", "1000000");
    rd_kafka_t *client = new_client(RD_KAFKA_CONSUMER, conf);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, opt.topic, NULL);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(client);
    for (int32_t p = 0; p < opt.partitions; p++)
        if (rd_kafka_consume_start_queue(topic, p, 0, queue))
            die(rd_kafka_err2str(rd_kafka_last_error()));
    return queue;
}

static Window consume(void) {
    rd_kafka_queue_t *queue = start_consumer();
    rd_kafka_message_t **messages = malloc(CONSUME_BATCH * sizeof *messages);
    double give_up_at = now_s() + GIVE_UP_AFTER_S, end_at = 0;
    Window window;
    for (;;) {
        ssize_t n = rd_kafka_consume_batch_queue(queue, 20, messages, CONSUME_BATCH);
        double now = now_s();
        if (n > 0 && end_at == 0) {
            end_at = now + opt.seconds;
            window_open(&window);
        }
        for (ssize_t i = 0; i < n; i++) {
            if (messages[i]->err && messages[i]->err != RD_KAFKA_RESP_ERR__PARTITION_EOF) {
                note_error(messages[i]->err);
            } else if (!messages[i]->err) {
                tally.messages++;
                tally.bytes += (long)messages[i]->len;
            }
            rd_kafka_message_destroy(messages[i]);
        }
        if (end_at && (now >= end_at || (opt.messages && tally.messages >= opt.messages))) break;
        if (!end_at && now >= give_up_at) die("no message came");
    }
    window_close(&window);
    return window;
}

/* ---- options ------------------------------------------------------------------------------- */

static void read_options(int argc, char **argv) {
    static const struct option names[] = {
        {"port", 1, 0, 'p'},        {"topic", 1, 0, 't'},   {"partitions", 1, 0, 'n'},
        {"message-bytes", 1, 0, 'b'}, {"batch-bytes", 1, 0, 'B'}, {"acks", 1, 0, 'a'},
        {"linger-ms", 1, 0, 'l'},   {"idempotence", 1, 0, 'e'}, {"seconds", 1, 0, 's'},
        {"warm-up-seconds", 1, 0, 'u'}, {"messages", 1, 0, 'm'}, {"broker-pid", 1, 0, 'k'},
        {0, 0, 0, 0}};
    for (int o; (o = getopt_long(argc - 1, argv + 1, "", names, NULL)) != -1;) {
        switch (o) {
        case 'p': opt.port = optarg; break;
        case 't': opt.topic = optarg; break;
        case 'n': opt.partitions = atoi(optarg); break;
        case 'b': opt.message_bytes = atoi(optarg); break;
        case 'B': opt.batch_bytes = optarg; break;
        case 'a': opt.acks = optarg; break;
        case 'l': opt.linger_ms = optarg; break;
        case 'e': opt.idempotence = optarg; break;
        case 's': opt.seconds = atof(optarg); break;
        case 'u': opt.warm_up_s = atof(optarg); break;
        case 'm': opt.messages = atol(optarg); break;
        case 'k': watch_broker(optarg); break;
        default: exit(2);
        }
    }
    if (!opt.port) die("--port is missing");
    if (opt.partitions < 1 || opt.message_bytes < 1) die("a number is out of range");
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "version")) {
        printf("librdkafka %s\n", rd_kafka_version_str());
        return 0;
    }
    if (argc < 2 || (strcmp(argv[1], "produce") && strcmp(argv[1], "consume")))
        die("usage: rdkafka produce|consume|version [options]");
    read_options(argc, argv);
    Window w = strcmp(argv[1], "produce") ? consume() : produce();
    printf("{\"records\": %ld, \"bytes\": %ld, \"errors\": %ld, \"seconds\": %.6f, "
           "\"client_cpu_s\": %.6f, \"broker_cpu_s\": %.6f}\n",
           tally.messages, tally.bytes, tally.errors, w.seconds, w.client_cpu_s, w.broker_cpu_s);
    fflush(stdout);
    if (tally.errors)
        fprintf(stderr, "%ld errors, the first: %s\n", tally.errors,
                rd_kafka_err2str(tally.first_error));
    /* Closing the client in order takes longer than the measurement and changes nothing. */
    _exit(tally.errors != 0);
}
