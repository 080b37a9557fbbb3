/* Load generator on librdkafka: what a real client gets, without a binding's cost on top.
 *
 *   rdkafka produce --port N --message-bytes N --batch-bytes N [--acks N] [--partitions N] ...
 *   rdkafka consume --port N [--partitions N] ...
 *   rdkafka version
 *
 * Produce keeps the queue full and counts the messages acknowledged inside the window, which
 * opens after --warm-up-seconds and lasts --seconds; the queue is emptied after it.  With
 * --messages it produces so many instead, and the window closes when all are acknowledged.
 * --compression is one of librdkafka's codecs, --idempotence true or false (with --acks all).
 * A partition gets --burst messages before the next has its turn; 0 stands for 1,000 messages or a
 * batch, whichever is more, so that linger does not cut batches short.
 *
 * With --transaction-messages N it produces N messages, spread over the partitions one by one,
 * commits, and begins again.  The window then opens and closes between two transactions, and what
 * counts are messages that were committed inside it.
 *
 * Consume reads all partitions from offset 0, or with --tail N the last N messages of each and
 * what follows.  Its window opens with the first messages and closes after --seconds or --messages,
 * whichever comes first.
 * The result is one line of JSON; bytes are those of message values before compression.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <librdkafka/rdkafka.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "clocks.h"
#include "durations.h"
#include "messages.h"

enum { CONSUME_BATCH = 10000, GIVE_UP_AFTER_S = 30, GIVE_UP_AFTER_MS = GIVE_UP_AFTER_S * 1000 };

typedef struct {
    const char *port, *topic, *batch_bytes, *acks, *linger_ms, *idempotence, *compression;
    int partitions, message_bytes, transaction_messages;
    double seconds, warm_up_s;
    long messages, burst, tail;
} Options;

typedef struct {
    long messages, bytes, transactions, errors, unacknowledged;
    rd_kafka_resp_err_t first_error;
} Tally;

static Options opt = {.topic = "t", .batch_bytes = "65536", .acks = "1", .linger_ms = "5",
                      .idempotence = "false", .compression = "none", .partitions = 6,
                      .message_bytes = 1024, .seconds = 1};
static Tally tally;
static Durations commits;

__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *why, ...) {
    va_list words;
    va_start(words, why);
    fputs("rdkafka: ", stderr);
    vfprintf(stderr, why, words);
    fputs("\n", stderr);
    va_end(words);
    exit(1);
}

static void note_error(rd_kafka_resp_err_t code) {
    if (tally.errors++ == 0) tally.first_error = code;
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char why[256];
    if (rd_kafka_conf_set(conf, name, value, why, sizeof why) != RD_KAFKA_CONF_OK) die("%s", why);
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
    if (!client) die("%s", why);
    return client;
}

/* ---- produce ------------------------------------------------------------------------------- */

typedef struct {
    rd_kafka_t *client;
    rd_kafka_topic_t *topic;
    Messages messages;
} Producer;

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client;
    (void)opaque;
    if (message->err) {
        note_error(message->err);
        return;
    }
    tally.messages++;
    tally.bytes += (long)message->len;
}

static Producer new_producer(void) {
    char transactional_id[32];
    rd_kafka_conf_t *conf = new_conf();
    set(conf, "batch.size", opt.batch_bytes);
    set(conf, "linger.ms", opt.linger_ms);
    set(conf, "acks", opt.acks);
    set(conf, "compression.type", opt.compression);
    set(conf, "enable.idempotence", opt.idempotence);
    set(conf, "batch.num.messages", "1000000");
    set(conf, "message.max.bytes", "4000000");
    /* Enough to keep every partition's batches full, little enough to empty in a moment. */
    set(conf, "queue.buffering.max.messages", "1000000");
    set(conf, "queue.buffering.max.kbytes", "65536");
    if (opt.transaction_messages) {
        snprintf(transactional_id, sizeof transactional_id, "bench-%d", (int)getpid());
        set(conf, "transactional.id", transactional_id);
    }
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    Producer made = {.client = new_client(RD_KAFKA_PRODUCER, conf)};
    made.topic = rd_kafka_topic_new(made.client, opt.topic, NULL);
    made.messages = make_messages((size_t)opt.message_bytes);
    return made;
}

/* Message number i, to this partition.  Where the queue is full, answers are waited for. */
static void send_message(Producer *p, long i, int32_t partition) {
    double give_up_at = 0;
    long acknowledged = tally.messages;
    while (rd_kafka_produce(p->topic, partition, RD_KAFKA_MSG_F_COPY, message_at(&p->messages, i),
                            (size_t)opt.message_bytes, NULL, 0, NULL)) {
        rd_kafka_resp_err_t why = rd_kafka_last_error();
        if (why != RD_KAFKA_RESP_ERR__QUEUE_FULL) die("%s", rd_kafka_err2str(why));
        rd_kafka_poll(p->client, 5);
        if (tally.errors) die("%s", rd_kafka_err2str(tally.first_error));
        if (give_up_at == 0 || tally.messages != acknowledged)
            give_up_at = now_s() + GIVE_UP_AFTER_S;
        acknowledged = tally.messages;
        if (now_s() > give_up_at)
            die("no message was acknowledged in %d s, %d wait", GIVE_UP_AFTER_S,
                rd_kafka_outq_len(p->client));
    }
}

/* One message, waited for: connections are up and the topic is known after it. */
static void produce_first(Producer *p) {
    send_message(p, 0, 0);
    rd_kafka_flush(p->client, GIVE_UP_AFTER_MS);
    if (tally.errors) die("the first message: %s", rd_kafka_err2str(tally.first_error));
    if (tally.messages != 1) die("the first message was not acknowledged in %d s", GIVE_UP_AFTER_S);
}

static void forget_warm_up(void) {
    tally.messages = tally.bytes = tally.transactions = 0;
    commits.count = 0;
}

/* What is acknowledged after the window does not count, but it must be acknowledged. */
static void empty_queue(Producer *p) {
    Tally counted = tally;
    rd_kafka_flush(p->client, GIVE_UP_AFTER_MS);
    counted.errors = tally.errors;
    counted.first_error = tally.first_error;
    counted.unacknowledged = rd_kafka_outq_len(p->client);
    tally = counted;
}

static Window produce(void) {
    Producer p = new_producer();
    produce_first(&p);

    long burst = opt.burst ? opt.burst : atol(opt.batch_bytes) / opt.message_bytes + 1;
    if (!opt.burst && burst < 1000) burst = 1000;
    double warm_at = now_s() + opt.warm_up_s, end_at = warm_at + opt.seconds;
    Window window;
    int warm = 0;
    for (long i = 0;; i++) {
        send_message(&p, i, (int32_t)(i / burst % opt.partitions));
        if (i % 256 && i + 1 != opt.messages) continue;
        rd_kafka_poll(p.client, 0);
        double now = now_s();
        if (!warm && now >= warm_at) {
            warm = 1;
            forget_warm_up();
            window_open(&window);
        }
        if (opt.messages ? i + 1 >= opt.messages : now >= end_at) break;
    }
    if (opt.messages) rd_kafka_flush(p.client, GIVE_UP_AFTER_MS);
    window_close(&window);
    empty_queue(&p);
    return window;
}

/* ---- transactions -------------------------------------------------------------------------- */

static void must(const char *what, rd_kafka_error_t *error) {
    if (error) die("%s: %s", what, rd_kafka_error_string(error));
}

/* Begin, produce, commit.  The commit is timed from its call, so it holds the wait for what has
 * not been acknowledged yet, as it does for every caller. */
static void run_transaction(Producer *p) {
    static long sent;
    must("begin", rd_kafka_begin_transaction(p->client));
    for (int i = 0; i < opt.transaction_messages; i++, sent++)
        send_message(p, sent, (int32_t)(sent % opt.partitions));
    double began = now_s();
    must("commit", rd_kafka_commit_transaction(p->client, GIVE_UP_AFTER_MS));
    note_duration(&commits, now_s() - began);
    tally.transactions++;
}

static Window produce_in_transactions(void) {
    Producer p = new_producer();
    must("init", rd_kafka_init_transactions(p.client, GIVE_UP_AFTER_MS));
    run_transaction(&p);
    double warm_at = now_s() + opt.warm_up_s;
    while (now_s() < warm_at) run_transaction(&p);

    Window window;
    forget_warm_up();
    window_open(&window);
    double end_at = now_s() + opt.seconds;
    while (opt.messages ? tally.messages < opt.messages : now_s() < end_at) {
        run_transaction(&p);
        if (tally.errors) break;
    }
    window_close(&window);
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
    int64_t from = opt.tail ? RD_KAFKA_OFFSET_TAIL(opt.tail) : 0;
    for (int32_t p = 0; p < opt.partitions; p++)
        if (rd_kafka_consume_start_queue(topic, p, from, queue))
            die("%s", rd_kafka_err2str(rd_kafka_last_error()));
    return queue;
}

static void take_message(rd_kafka_message_t *message) {
    if (!message->err) {
        tally.messages++;
        tally.bytes += (long)message->len;
    } else if (message->err != RD_KAFKA_RESP_ERR__PARTITION_EOF) {
        note_error(message->err);
    }
    rd_kafka_message_destroy(message);
}

static Window consume(void) {
    rd_kafka_queue_t *queue = start_consumer();
    rd_kafka_message_t **messages = malloc(CONSUME_BATCH * sizeof *messages);
    double give_up_at = now_s() + GIVE_UP_AFTER_S, end_at = 0;
    Window window;
    for (;;) {
        ssize_t n = rd_kafka_consume_batch_queue(queue, 20, messages, CONSUME_BATCH);
        double now = now_s();
        if (n > 0) {
            give_up_at = now + GIVE_UP_AFTER_S;
            if (end_at == 0) {
                end_at = now + opt.seconds;
                window_open(&window);
            }
        }
        for (ssize_t i = 0; i < n; i++) take_message(messages[i]);
        if (end_at && (now >= end_at || (opt.messages && tally.messages >= opt.messages))) break;
        if (now >= give_up_at && (opt.messages || !end_at))
            die("no message came in %d s, after %ld messages%s%s", GIVE_UP_AFTER_S,
                tally.messages, tally.errors ? ": " : "",
                tally.errors ? rd_kafka_err2str(tally.first_error) : "");
    }
    window_close(&window);
    return window;
}

/* ---- result and options -------------------------------------------------------------------- */

static void print_result(Window w) {
    printf("{\"records\": %ld, \"bytes\": %ld, \"errors\": %ld, \"seconds\": %.6f, "
           "\"client_cpu_s\": %.6f, \"broker_cpu_s\": %.6f",
           tally.messages, tally.bytes, tally.errors + tally.unacknowledged, w.seconds,
           w.client_cpu_s, w.broker_cpu_s);
    if (opt.transaction_messages) {
        sort_durations(&commits);
        printf(", \"transactions\": %ld, \"commit_p50_us\": %.1f, \"commit_p99_us\": %.1f",
               tally.transactions, percentile_us(&commits, 0.5), percentile_us(&commits, 0.99));
    }
    printf("}\n");
    fflush(stdout);
    if (tally.errors)
        fprintf(stderr, "%ld messages failed, the first: %s\n", tally.errors,
                rd_kafka_err2str(tally.first_error));
    if (tally.unacknowledged)
        fprintf(stderr, "%ld messages were not acknowledged in %d s\n", tally.unacknowledged,
                GIVE_UP_AFTER_S);
}

static void read_options(int argc, char **argv) {
    static const struct option names[] = {
        {"port", 1, 0, 'p'},        {"topic", 1, 0, 't'},   {"partitions", 1, 0, 'n'},
        {"message-bytes", 1, 0, 'b'}, {"batch-bytes", 1, 0, 'B'}, {"acks", 1, 0, 'a'},
        {"linger-ms", 1, 0, 'l'},   {"idempotence", 1, 0, 'e'}, {"seconds", 1, 0, 's'},
        {"warm-up-seconds", 1, 0, 'u'}, {"messages", 1, 0, 'm'}, {"broker-pid", 1, 0, 'k'},
        {"compression", 1, 0, 'c'}, {"transaction-messages", 1, 0, 'x'},
        {"burst", 1, 0, 'r'},       {"tail", 1, 0, 'T'},    {0, 0, 0, 0}};
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
        case 'c': opt.compression = optarg; break;
        case 'r': opt.burst = atol(optarg); break;
        case 'T': opt.tail = atol(optarg); break;
        case 'x': opt.transaction_messages = atoi(optarg); break;
        case 'k': watch_broker(optarg); break;
        default: exit(2);
        }
    }
    if (!opt.port) die("--port is missing");
    if (opt.partitions < 1 || opt.message_bytes < 1 || opt.transaction_messages < 0 ||
        opt.burst < 0 || opt.tail < 0)
        die("a number is out of range");
    if (opt.transaction_messages) opt.acks = "all", opt.idempotence = "true";
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "version")) {
        printf("librdkafka %s\n", rd_kafka_version_str());
        return 0;
    }
    if (argc < 2 || (strcmp(argv[1], "produce") && strcmp(argv[1], "consume")))
        die("usage: rdkafka produce|consume|version [options]");
    read_options(argc, argv);
    if (!strcmp(argv[1], "consume")) print_result(consume());
    else print_result(opt.transaction_messages ? produce_in_transactions() : produce());
    /* Closing the client in order takes longer than the measurement and changes nothing. */
    _exit(tally.errors + tally.unacknowledged != 0);
}
