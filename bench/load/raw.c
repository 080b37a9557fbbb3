/* Raw load generator: plain sockets, requests built once, almost no work per answer.
 *
 *   raw produce --port N [--records N] [--record-bytes N] [--in-flight N] [--acks N] ...
 *   raw fetch   --port N [--max-bytes N] ...     reads from offset 0 and starts over at the end
 *   raw idle    --port N [--max-wait-ms N] ...   long polls on an empty topic
 *
 * It exists to load a broker with a client that costs next to nothing, so that what is seen is
 * the broker.  One connection speaks to one partition at a time; `--partitions N` makes produce
 * go round the partitions with every request and spreads fetch connections over them.
 *
 * `--rate N` sends a request N times a second instead of as soon as it may; it is for one connection.
 *
 * A run ends after --seconds, or after --requests answers when that is given.  Only answers after
 * --warm-up-seconds count.  The result is one line of JSON.  `idle` prints the line `held` when
 * all its requests are on their way, so that the caller can look at the broker meanwhile.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clocks.h"
#include "durations.h"
#include "wire.h"

enum { API_PRODUCE = 0, API_FETCH = 1 };
enum { PRODUCE_VERSION = 9, FETCH_VERSION = 12 };
enum { MAX_IN_FLIGHT = 1024, EVENTS = 256 };
enum { REQUEST_OVERHEAD = 1024 };  /* header, topic name (at most 249), fixed fields */

typedef enum { PRODUCE, FETCH, IDLE } Mode;

typedef struct {
    Mode mode;
    int port, connections, in_flight, partitions;
    int records, record_bytes, acks;
    int max_bytes, max_wait_ms;
    const char *topic;
    double seconds, warm_up_s, rate;
    long requests;
} Options;

typedef struct {
    int fd, index;
    /* The one request this connection sends again and again; `patch` marks are inside it. */
    uint8_t *request;
    size_t request_bytes, sent;
    uint8_t *correlation_at, *partition_at, *offset_at;
    /* Bytes received and not yet understood. */
    uint8_t *received;
    size_t received_bytes, received_capacity;
    /* Send times of requests in flight, a ring in the order of sending. */
    double sent_at[MAX_IN_FLIGHT];
    unsigned sent_count, answered_count;
    int64_t fetch_offset;
} Connection;

typedef struct {
    unsigned long requests, bytes, records, errors;
    int first_error;
    Durations latencies;
} Tally;

static Options opt = {
    .connections = 1, .in_flight = 1, .partitions = 1, .records = 1, .record_bytes = 100,
    .acks = 1, .max_bytes = 1 << 20, .max_wait_ms = 500, .topic = "t", .seconds = 1,
};
static Tally tally;
static size_t batch_bytes;

static void die(const char *what) {
    if (errno) perror(what);
    else fprintf(stderr, "%s\n", what);
    exit(1);
}

/* ---- requests ------------------------------------------------------------------------------ */

static void put_header(Out *o, Connection *c, int api_key, int version) {
    put_i32(o, 0); /* length, set by finish_request */
    put_i16(o, (int16_t)api_key);
    put_i16(o, (int16_t)version);
    c->correlation_at = o->at;
    put_i32(o, 0);
    put_i16(o, 3);
    put_bytes(o, "raw", 3);
    put_u8(o, 0); /* no tagged fields */
}

static void finish_request(Out *o, Connection *c) {
    c->request_bytes = (size_t)(o->at - c->request);
    patch_i32(c->request, (int32_t)(c->request_bytes - 4));
}

static void build_produce(Connection *c, const uint8_t *batch) {
    Out o = {c->request};
    put_header(&o, c, API_PRODUCE, PRODUCE_VERSION);
    put_uvarint(&o, 0); /* no transactional id */
    put_i16(&o, (int16_t)opt.acks);
    put_i32(&o, 30000);
    put_uvarint(&o, 1 + 1); /* one topic */
    put_compact_string(&o, opt.topic);
    put_uvarint(&o, 1 + 1); /* one partition */
    c->partition_at = o.at;
    put_i32(&o, c->index % opt.partitions);
    put_uvarint(&o, (uint32_t)batch_bytes + 1);
    put_bytes(&o, batch, batch_bytes);
    for (int i = 0; i < 3; i++) put_u8(&o, 0); /* tagged fields of partition, topic, request */
    finish_request(&o, c);
}

static void build_fetch(Connection *c) {
    Out o = {c->request};
    put_header(&o, c, API_FETCH, FETCH_VERSION);
    put_i32(&o, -1); /* replica id: a consumer */
    put_i32(&o, opt.max_wait_ms);
    put_i32(&o, 1); /* min bytes */
    put_i32(&o, opt.max_bytes);
    put_u8(&o, 0);   /* read uncommitted */
    put_i32(&o, 0);  /* no fetch session ... */
    put_i32(&o, -1); /* ... and none wanted */
    put_uvarint(&o, 1 + 1);
    put_compact_string(&o, opt.topic);
    put_uvarint(&o, 1 + 1);
    put_i32(&o, c->index % opt.partitions);
    put_i32(&o, -1); /* current leader epoch */
    c->offset_at = o.at;
    put_i64(&o, 0);
    put_i32(&o, -1); /* last fetched epoch */
    put_i64(&o, -1); /* log start offset */
    put_i32(&o, opt.max_bytes);
    put_u8(&o, 0); /* tagged fields of the partition */
    put_u8(&o, 0); /* ... of the topic */
    put_uvarint(&o, 0 + 1); /* nothing forgotten */
    put_compact_string(&o, "");
    put_u8(&o, 0); /* ... of the request */
    finish_request(&o, c);
}

/* The request again, with the numbers that differ. */
static void prepare_next(Connection *c) {
    patch_i32(c->correlation_at, (int32_t)c->sent_count);
    if (c->partition_at)
        patch_i32(c->partition_at, (int32_t)(((unsigned)c->index + c->sent_count) %
                                             (unsigned)opt.partitions));
    if (c->offset_at) patch_i64(c->offset_at, c->fetch_offset);
    c->sent = 0;
}

/* ---- answers ------------------------------------------------------------------------------- */

static void note_error(int code) {
    if (tally.errors++ == 0) tally.first_error = code;
}

static void read_produce_answer(In in) {
    skip_tags(&in);
    if (get_uvarint(&in) != 2) die("produce answer: not one topic");
    skip(&in, get_uvarint(&in) - 1);
    if (get_uvarint(&in) != 2) die("produce answer: not one partition");
    get_i32(&in);
    int code = get_i16(&in);
    if (in.bad) die("produce answer: cut short");
    if (code) note_error(code);
    tally.bytes += batch_bytes;
    tally.records += (unsigned long)opt.records;
}

/* Counts the batches of one fetch answer and returns the offset after the last one. */
static int64_t read_batches(In in, int64_t offset) {
    while ((size_t)(in.end - in.at) >= BATCH_HEADER_BYTES) {
        In head = in;
        int64_t base_offset = get_i64(&head);
        size_t length = BATCH_LOG_OVERHEAD + (size_t)get_i32(&head);
        if (length > (size_t)(in.end - in.at)) break; /* cut off by max bytes */
        head.at = in.at + BATCH_LAST_OFFSET_DELTA_AT;
        offset = base_offset + get_i32(&head) + 1;
        head.at = in.at + BATCH_RECORD_COUNT_AT;
        tally.records += (unsigned long)get_i32(&head);
        tally.bytes += length;
        in.at += length;
    }
    return offset;
}

static void read_fetch_answer(Connection *c, In in) {
    skip_tags(&in);
    get_i32(&in); /* throttle time */
    int code = get_i16(&in);
    get_i32(&in); /* session id */
    if (!code && get_uvarint(&in) == 2) {
        skip(&in, get_uvarint(&in) - 1);
        if (get_uvarint(&in) != 2) die("fetch answer: not one partition");
        get_i32(&in);
        code = get_i16(&in);
        int64_t high_watermark = get_i64(&in);
        skip(&in, 8 + 8); /* last stable offset, log start offset */
        uint32_t aborted = get_uvarint(&in);
        if (aborted > 1) die("fetch answer: aborted transactions in a read-uncommitted fetch");
        get_i32(&in); /* preferred read replica */
        uint32_t length = get_uvarint(&in);
        if (length > 1 && has(&in, length - 1))
            c->fetch_offset = read_batches((In){in.at, in.at + length - 1, 0}, c->fetch_offset);
        if (c->fetch_offset >= high_watermark) c->fetch_offset = 0;
    }
    if (in.bad) die("fetch answer: cut short");
    if (code) note_error(code);
}

static void take_answer(Connection *c, const uint8_t *frame, size_t length) {
    In in = {frame, frame + length, 0};
    int32_t correlation = get_i32(&in);
    if (correlation != (int32_t)c->answered_count) die("answers out of order");
    note_duration(&tally.latencies, now_s() - c->sent_at[c->answered_count++ % MAX_IN_FLIGHT]);
    tally.requests++;
    if (opt.mode == PRODUCE) read_produce_answer(in);
    else read_fetch_answer(c, in);
}

/* Takes every whole frame out of the receive buffer; makes room when one does not fit. */
static void take_frames(Connection *c) {
    size_t at = 0;
    while (c->received_bytes - at >= 4) {
        In in = {c->received + at, c->received + at + 4, 0};
        size_t frame = 4 + (size_t)(uint32_t)get_i32(&in);
        if (frame > c->received_bytes - at) {
            if (frame > c->received_capacity) {
                c->received_capacity = frame + 65536;
                c->received = realloc(c->received, c->received_capacity);
                if (!c->received) die("out of memory");
            }
            break;
        }
        take_answer(c, c->received + at + 4, frame - 4);
        at += frame;
    }
    if (at == 0) return;
    c->received_bytes -= at;
    memmove(c->received, c->received + at, c->received_bytes);
}

/* ---- the loop ------------------------------------------------------------------------------ */

static void receive(Connection *c) {
    for (;;) {
        size_t room = c->received_capacity - c->received_bytes;
        ssize_t n = recv(c->fd, c->received + c->received_bytes, room, 0);
        if (n == 0) errno = 0, die("the broker closed the connection");
        if (n < 0) {
            if (errno == EAGAIN) return;
            die("recv");
        }
        c->received_bytes += (size_t)n;
        take_frames(c);
        /* Less than there was room for: the socket is empty, the next edge will tell. */
        if ((size_t)n < room) return;
    }
}

/* Sleeps until the next request is due. */
static void keep_pace(void) {
    static double due_at;
    double now = now_s();
    due_at = due_at + 1 / opt.rate > now ? due_at + 1 / opt.rate : now;
    time_t whole = (time_t)due_at;
    struct timespec until = {whole, (long)((due_at - (double)whole) * 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

static void transmit(Connection *c) {
    for (;;) {
        if (c->sent == c->request_bytes) {
            if (c->sent_count - c->answered_count >= (unsigned)opt.in_flight) return;
            if (opt.rate > 0) keep_pace();
            prepare_next(c);
            c->sent_at[c->sent_count++ % MAX_IN_FLIGHT] = now_s();
        }
        ssize_t n = send(c->fd, c->request + c->sent, c->request_bytes - c->sent, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EAGAIN) return;
            die("send");
        }
        c->sent += (size_t)n;
    }
}

static void connect_to_broker(Connection *c) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)opt.port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    c->fd = socket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
    if (c->fd < 0) die("socket");
    if (connect(c->fd, (struct sockaddr *)&to, sizeof to)) die("connect");
    int on = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
}

static Connection *open_connections(int poll) {
    Connection *all = calloc((size_t)opt.connections, sizeof *all);
    size_t capacity = opt.mode == PRODUCE ? batch_capacity(opt.records, opt.record_bytes) : 0;
    uint8_t *batch = malloc(capacity + 1);
    if (!all || !batch) die("out of memory");
    if (opt.mode == PRODUCE) {
        int64_t now_ms = (int64_t)(clock_s(CLOCK_REALTIME) * 1000);
        batch_bytes = build_batch(batch, opt.records, opt.record_bytes, now_ms);
    }
    for (int i = 0; i < opt.connections; i++) {
        Connection *c = &all[i];
        c->index = i;
        c->request = malloc(REQUEST_OVERHEAD + batch_bytes);
        c->received_capacity = opt.mode == FETCH ? (size_t)opt.max_bytes + 65536 : 16384;
        c->received = malloc(c->received_capacity);
        if (!c->request || !c->received) die("out of memory");
        if (opt.mode == PRODUCE) build_produce(c, batch);
        else build_fetch(c);
        c->sent = c->request_bytes;
        connect_to_broker(c);
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &event)) die("epoll_ctl");
    }
    free(batch);
    return all;
}

static void forget_warm_up(void) {
    tally.requests = tally.bytes = tally.records = 0;
    tally.latencies.count = 0;
}

static Window run(int poll) {
    struct epoll_event events[EVENTS];
    Window window;
    int warm = opt.warm_up_s <= 0;
    double warm_at = now_s() + opt.warm_up_s, end_at = warm_at + opt.seconds;
    window_open(&window);
    for (;;) {
        double now = now_s();
        if (!warm && now >= warm_at) {
            warm = 1;
            forget_warm_up();
            window_open(&window);
        }
        if (opt.requests ? tally.requests >= (unsigned long)opt.requests : now >= end_at) break;
        int n = epoll_wait(poll, events, EVENTS, 20);
        if (n < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < n; i++) {
            receive(events[i].data.ptr);
            transmit(events[i].data.ptr);
        }
    }
    window_close(&window);
    return window;
}

/* ---- result and options -------------------------------------------------------------------- */

static void print_result(Window w) {
    const Durations *latencies = &tally.latencies;
    sort_durations(&tally.latencies);
    printf("{\"requests\": %lu, \"bytes\": %lu, \"records\": %lu, \"errors\": %lu, "
           "\"first_error\": %d, \"seconds\": %.6f, \"client_cpu_s\": %.6f, "
           "\"broker_cpu_s\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f}\n",
           tally.requests, tally.bytes, tally.records, tally.errors, tally.first_error, w.seconds,
           w.client_cpu_s, w.broker_cpu_s, percentile_us(latencies, 0.5),
           percentile_us(latencies, 0.99), percentile_us(latencies, 0.999));
}

static void read_options(int argc, char **argv) {
    static const struct option names[] = {
        {"port", 1, 0, 'p'},       {"topic", 1, 0, 't'},        {"partitions", 1, 0, 'n'},
        {"connections", 1, 0, 'c'}, {"in-flight", 1, 0, 'i'},   {"records", 1, 0, 'r'},
        {"record-bytes", 1, 0, 'b'}, {"acks", 1, 0, 'a'},       {"max-bytes", 1, 0, 'm'},
        {"max-wait-ms", 1, 0, 'w'}, {"seconds", 1, 0, 's'},     {"warm-up-seconds", 1, 0, 'u'},
        {"requests", 1, 0, 'q'},   {"broker-pid", 1, 0, 'k'},
        {"rate", 1, 0, 'R'},       {0, 0, 0, 0}};
    if (argc < 2) errno = 0, die("usage: raw produce|fetch|idle --port N [options]");
    if (!strcmp(argv[1], "produce")) opt.mode = PRODUCE;
    else if (!strcmp(argv[1], "fetch")) opt.mode = FETCH;
    else if (!strcmp(argv[1], "idle")) opt.mode = IDLE;
    else errno = 0, die("raw: the first word is produce, fetch or idle");
    for (int o; (o = getopt_long(argc - 1, argv + 1, "", names, NULL)) != -1;) {
        switch (o) {
        case 'p': opt.port = atoi(optarg); break;
        case 't': opt.topic = optarg; break;
        case 'n': opt.partitions = atoi(optarg); break;
        case 'c': opt.connections = atoi(optarg); break;
        case 'i': opt.in_flight = atoi(optarg); break;
        case 'r': opt.records = atoi(optarg); break;
        case 'b': opt.record_bytes = atoi(optarg); break;
        case 'a': opt.acks = atoi(optarg); break;
        case 'm': opt.max_bytes = atoi(optarg); break;
        case 'w': opt.max_wait_ms = atoi(optarg); break;
        case 's': opt.seconds = atof(optarg); break;
        case 'u': opt.warm_up_s = atof(optarg); break;
        case 'q': opt.requests = atol(optarg); break;
        case 'k': watch_broker(optarg); break;
        case 'R': opt.rate = atof(optarg); break;
        default: exit(2);
        }
    }
    if (opt.mode != PRODUCE) opt.in_flight = 1; /* the next offset is known from the answer */
    if (opt.in_flight < 1 || opt.in_flight > MAX_IN_FLIGHT || opt.partitions < 1 ||
        opt.records < 1 || strlen(opt.topic) > 249 || opt.acks == 0)
        errno = 0, die("raw: a number is out of range (acks must not be 0: answers are counted)");
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    int poll = epoll_create1(0);
    Connection *all = open_connections(poll);
    if (opt.mode == IDLE) {
        for (int i = 0; i < opt.connections; i++) transmit(&all[i]);
        printf("held\n");
        fflush(stdout);
    }
    print_result(run(poll));
    if (tally.errors) fprintf(stderr, "%lu answers with an error, the first code %d\n",
                              tally.errors, tally.first_error);
    return tally.errors != 0;
}
