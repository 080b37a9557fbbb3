/* End-to-end latency through librdkafka: from when a message was due to when it was received.
 *
 *   latency --port N --rate N [--acks N] [--linger-ms N] [--in-flight N] [--message-bytes N] ...
 *   latency version
 *
 * A producer and a consumer (all partitions, no group) in one process, so that one clock serves
 * both.  Message number n is due at start + n / rate, whatever happened to those before it, and
 * carries that time; its latency counts from there.  So a broker that stops for 100 ms is charged
 * with every message that was due meanwhile, not only with the one that was under way, and a
 * client that falls behind cannot hide it.  How late the client itself was in handing messages to
 * librdkafka is told too (client_late_*): what is left is librdkafka's, the network's and the
 * broker's.
 *
 * Messages due in the first --warm-up-seconds do not count, those of the --seconds after it do, and
 * the run is over when all have been received.  A message that does not come is an error.
 * The result is one line of JSON; times in it are microseconds.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "clocks.h"
#include "durations.h"

enum { GIVE_UP_AFTER_S = 30, POLL_MS = 100 };

typedef struct {
    const char *port, *topic, *acks, *linger_ms, *in_flight;
    int partitions, message_bytes;
    double rate, seconds, warm_up_s;
} Options;

/* What each message begins with.  `run` tells those of this run from any others in the topic. */
typedef struct {
    int64_t run, number, due_ns;
} Stamp;

static Options opt = {.topic = "t", .acks = "1", .linger_ms = "0",
                      .in_flight = "1000000", .partitions = 6, .message_bytes = 100, .seconds = 1};

static int64_t this_run;
static long warm_up_count, total_count; /* message numbers below the first do not count */
static int64_t *latency_ns;             /* by message number; 0: not received */
static int64_t *late_ns;                /* by message number: handed over after it was due */
static atomic_long received, errors, probes_received;
static _Atomic int64_t last_received_ns;
static atomic_int first_error;

static void die(const char *why) {
    fprintf(stderr, "latency: %s\n", why);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void note_error(rd_kafka_resp_err_t code) {
    if (atomic_fetch_add(&errors, 1) == 0) atomic_store(&first_error, code);
}

/* ---- clients ------------------------------------------------------------------------------- */

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char why[256];
    if (rd_kafka_conf_set(conf, name, value, why, sizeof why) != RD_KAFKA_CONF_OK) die(why);
}

static rd_kafka_t *new_client(rd_kafka_type_t type, rd_kafka_conf_t *conf) {
    char servers[64], why[512];
    snprintf(servers, sizeof servers, "127.0.0.1:%s", opt.port);
    set(conf, "bootstrap.servers", servers);
    set(conf, "client.id", "bench");
    set(conf, "log_level", "3");
    /* Small requests on an idle connection would wait for a delayed ACK otherwise. */
    set(conf, "socket.nagle.disable", "true");
    rd_kafka_t *client = rd_kafka_new(type, conf, why, sizeof why);
    if (!client) die(why);
    return client;
}

static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client;
    (void)opaque;
    if (message->err) note_error(message->err);
}

static rd_kafka_t *new_producer(void) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "acks", opt.acks);
    set(conf, "linger.ms", opt.linger_ms);
    set(conf, "max.in.flight.requests.per.connection", opt.in_flight);
    /* That a message was acknowledged is no news here: it is received, or an error. */
    set(conf, "delivery.report.only.error", "true");
    /* A second of a stopped broker must not stop the producer, which would be no open loop. */
    set(conf, "queue.buffering.max.messages", "1000000");
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    return new_client(RD_KAFKA_PRODUCER, conf);
}

/* The plain consumer, without a group, from the end of each partition as it stands now.  The ends
 * are asked for: where "from the end" is resolved later, it may be after the first messages. */
static rd_kafka_queue_t *start_consumer(void) {
    rd_kafka_t *client = new_client(RD_KAFKA_CONSUMER, rd_kafka_conf_new());
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, opt.topic, NULL);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(client);
    for (int32_t p = 0; p < opt.partitions; p++) {
        int64_t low, end;
        rd_kafka_resp_err_t failed = rd_kafka_query_watermark_offsets(
            client, opt.topic, p, &low, &end, GIVE_UP_AFTER_S * 1000);
        if (failed) die(rd_kafka_err2str(failed));
        if (rd_kafka_consume_start_queue(topic, p, end, queue))
            die(rd_kafka_err2str(rd_kafka_last_error()));
    }
    return queue;
}

/* ---- receive ------------------------------------------------------------------------------- */

static void on_message(rd_kafka_message_t *message, void *opaque) {
    (void)opaque;
    int64_t now = now_ns();
    if (message->err) {
        note_error(message->err);
        return;
    }
    Stamp stamp;
    if (message->len < sizeof stamp) return;
    memcpy(&stamp, message->payload, sizeof stamp);
    if (stamp.run != this_run) return;
    if (stamp.number < 0) {
        atomic_fetch_add(&probes_received, 1);
    } else if (stamp.number < total_count && latency_ns[stamp.number] == 0) {
        latency_ns[stamp.number] = now - stamp.due_ns;
        atomic_store(&last_received_ns, now);
        atomic_fetch_add(&received, 1);
    }
}

/* Callbacks, because the calls that return messages in batches wait until a batch is full. */
static void *receive(void *queue) {
    for (;;) rd_kafka_consume_callback_queue(queue, POLL_MS, on_message, NULL);
    return NULL;
}

/* ---- send ---------------------------------------------------------------------------------- */

static void send_one(rd_kafka_t *client, rd_kafka_topic_t *topic, char *payload, int64_t number,
                     int32_t partition, int64_t due_ns) {
    Stamp stamp = {this_run, number, due_ns};
    memcpy(payload, &stamp, sizeof stamp);
    while (rd_kafka_produce(topic, partition, RD_KAFKA_MSG_F_COPY, payload,
                            (size_t)opt.message_bytes, NULL, 0, NULL)) {
        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
            die(rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(client, 1);
    }
}

/* One message to each partition and back: all connections are up and all fetches under way. */
static void probe(rd_kafka_t *client, rd_kafka_topic_t *topic, char *payload) {
    for (int32_t p = 0; p < opt.partitions; p++) send_one(client, topic, payload, -1, p, 0);
    double give_up_at = now_s() + GIVE_UP_AFTER_S;
    while (atomic_load(&probes_received) < opt.partitions) {
        rd_kafka_poll(client, 10);
        if (atomic_load(&errors)) die(rd_kafka_err2str(atomic_load(&first_error)));
        if (now_s() > give_up_at) die("the first messages did not come back");
    }
}

static void sleep_until(int64_t at_ns) {
    struct timespec t = {at_ns / 1000000000, at_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) continue;
}

/* Sends every message when it is due, and returns when the last one is sent. */
static void send_all(rd_kafka_t *client, rd_kafka_topic_t *topic, char *payload, int64_t start_ns,
                     Window *window) {
    for (long i = 0; i < total_count; i++) {
        int64_t due = start_ns + (int64_t)((double)i * 1e9 / opt.rate), now = now_ns();
        if (now < due) {
            rd_kafka_poll(client, 0);
            sleep_until(due);
            now = now_ns();
        }
        if (i == warm_up_count) window_open(window);
        late_ns[i] = now - due;
        send_one(client, topic, payload, i, (int32_t)(i % opt.partitions), due);
    }
    window_close(window);
}

static void wait_for_the_rest(rd_kafka_t *client) {
    double give_up_at = now_s() + GIVE_UP_AFTER_S;
    while (atomic_load(&received) < total_count && !atomic_load(&errors)) {
        rd_kafka_poll(client, 1);
        if (now_s() > give_up_at) {
            fprintf(stderr, "latency: %ld of %ld messages had not come back %d s after the last\n",
                    total_count - atomic_load(&received), total_count, GIVE_UP_AFTER_S);
            _exit(1);
        }
    }
}

/* ---- result -------------------------------------------------------------------------------- */

static Durations counted_of(const int64_t *by_number) {
    Durations counted = {0};
    for (long i = warm_up_count; i < total_count; i++)
        note_duration(&counted, (double)by_number[i] / 1e9);
    sort_durations(&counted);
    return counted;
}

static void print_result(const Window *window, int64_t start_ns) {
    static const struct {
        const char *name;
        double share;
    } points[] = {{"p10", .1},  {"p25", .25}, {"p50", .5},   {"p75", .75},   {"p90", .9},
                  {"p95", .95}, {"p99", .99}, {"p999", .999}, {"max", 1}};
    long count = total_count - warm_up_count;
    int64_t first_due = start_ns + (int64_t)((double)warm_up_count * 1e9 / opt.rate);
    double took_s = (double)(atomic_load(&last_received_ns) - first_due) / 1e9;
    Durations latency = counted_of(latency_ns), late = counted_of(late_ns);
    double sum_us = 0;
    for (size_t i = 0; i < latency.count; i++) sum_us += latency.us[i];
    printf("{\"records\": %ld, \"bytes\": %ld, \"errors\": %ld, \"seconds\": %.6f, "
           "\"client_cpu_s\": %.6f, \"broker_cpu_s\": %.6f, \"rate\": %.1f, \"mean_us\": %.1f",
           count, count * opt.message_bytes, atomic_load(&errors), window->seconds,
           window->client_cpu_s, window->broker_cpu_s, (double)count / took_s,
           sum_us / (double)count);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++)
        printf(", \"%s_us\": %.1f", points[i].name, percentile_us(&latency, points[i].share));
    printf(", \"client_late_p50_us\": %.1f, \"client_late_p99_us\": %.1f}\n",
           percentile_us(&late, .5), percentile_us(&late, .99));
}

/* ---- options ------------------------------------------------------------------------------- */

static void read_options(int argc, char **argv) {
    static const struct option names[] = {
        {"port", 1, 0, 'p'},        {"topic", 1, 0, 't'},     {"partitions", 1, 0, 'n'},
        {"message-bytes", 1, 0, 'b'}, {"acks", 1, 0, 'a'},    {"linger-ms", 1, 0, 'l'},
        {"rate", 1, 0, 'r'},        {"seconds", 1, 0, 's'},   {"warm-up-seconds", 1, 0, 'u'},
        {"in-flight", 1, 0, 'f'},   {"broker-pid", 1, 0, 'k'}, {0, 0, 0, 0}};
    for (int o; (o = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        switch (o) {
        case 'p': opt.port = optarg; break;
        case 't': opt.topic = optarg; break;
        case 'n': opt.partitions = atoi(optarg); break;
        case 'b': opt.message_bytes = atoi(optarg); break;
        case 'a': opt.acks = optarg; break;
        case 'l': opt.linger_ms = optarg; break;
        case 'f': opt.in_flight = optarg; break;
        case 'r': opt.rate = atof(optarg); break;
        case 's': opt.seconds = atof(optarg); break;
        case 'u': opt.warm_up_s = atof(optarg); break;
        case 'k': watch_broker(optarg); break;
        default: exit(2);
        }
    }
    if (!opt.port) die("--port is missing");
    if (!(opt.rate > 0)) die("--rate must be above 0");
    if (opt.partitions < 1 || opt.warm_up_s < 0) die("a number is out of range");
    if (opt.message_bytes < (int)sizeof(Stamp)) die("--message-bytes must be 24 or more");
    warm_up_count = (long)(opt.rate * opt.warm_up_s);
    total_count = warm_up_count + (long)(opt.rate * opt.seconds);
    if (total_count <= warm_up_count) die("--seconds is too short for a message at this rate");
}

static void prepare(void) {
    this_run = now_ns() ^ ((int64_t)getpid() << 40);
    latency_ns = calloc((size_t)total_count, sizeof *latency_ns);
    late_ns = calloc((size_t)total_count, sizeof *late_ns);
    if (!latency_ns || !late_ns) die("not enough memory for so many messages");
    /* Written now: a first touch during the run is a page fault, which would count. */
    memset(late_ns, 0, (size_t)total_count * sizeof *late_ns);
    memset(latency_ns, 0, (size_t)total_count * sizeof *latency_ns);
    /* Linux lets a sleep last 50 us longer by default, as much as the interval at 20,000/s. */
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "version")) {
        printf("librdkafka %s\n", rd_kafka_version_str());
        return 0;
    }
    read_options(argc, argv);
    prepare();
    char *payload = malloc((size_t)opt.message_bytes);
    memset(payload, 'x', (size_t)opt.message_bytes);
    rd_kafka_queue_t *queue = start_consumer();
    rd_kafka_t *producer = new_producer();
    rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, opt.topic, NULL);
    pthread_t receiver;
    if (pthread_create(&receiver, NULL, receive, queue)) die("no thread for the consumer");
    probe(producer, topic, payload);

    Window window;
    int64_t start_ns = now_ns() + 1000000;
    send_all(producer, topic, payload, start_ns, &window);
    wait_for_the_rest(producer);
    if (atomic_load(&errors)) {
        fprintf(stderr, "%ld errors, the first: %s\n", atomic_load(&errors),
                rd_kafka_err2str(atomic_load(&first_error)));
        _exit(1);
    }
    print_result(&window, start_ns);
    fflush(stdout);
    /* Closing the clients in order takes longer than the measurement and changes nothing. */
    _exit(0);
}
