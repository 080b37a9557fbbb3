/* The messages that librdkafka sends: JSON text, different in every message.
 *
 * What a compressor makes of a stream decides what a compressed stream costs, and neither one byte
 * repeated nor random bytes are what people send.  So a message is an event: its field names are
 * always the same, its words come from short lists, its numbers and ids are random, and it is cut
 * off at its length.  In batches of 64 KB, lz4 makes messages of 1 KB 2.9 times smaller and zstd
 * 4.9 times (messages of 100 bytes: 2.4 and 3.9 times).
 *
 * The messages are made before the run, as many as fill POOL_BYTES, so that none comes twice
 * within what a compressor looks back on.  The seed is fixed: every run sends the same.
 */
#ifndef BENCH_MESSAGES_H
#define BENCH_MESSAGES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POOL_BYTES = 4 << 20, POOL_LEAST = 64, PIECE_BYTES = 512 };

typedef struct {
    char *bytes;
    size_t message_bytes, count;
} Messages;

static uint64_t random_state = 88172645463325252u;

/* xorshift: plain, quick, and the same everywhere. */
static uint32_t random_below(uint32_t limit) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 16) % limit);
}

static const char *one_of(const char *const *words, size_t count) {
    return words[random_below((uint32_t)count)];
}

#define ONE_OF(words) one_of(words, sizeof(words) / sizeof *(words))

/* Like snprintf, it returns the length; the fields of a piece vary, its names do not. */
static int write_head(char *to, size_t room) {
    static const char *const actions[] = {"view", "click", "purchase", "search", "sign-in"};
    static const char *const countries[] = {"de", "fr", "us", "jp", "br", "in", "gb", "za"};
    static const char *const agents[] = {
        "Mozilla/5.0 (X11; Linux x86_64) Firefox/128.0",
        "Mozilla/5.0 (Windows NT 10.0; Win64; x64) Chrome/126.0",
        "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) Safari/604.1"};
    return snprintf(to, room,
                    "{\"id\":\"%08x%08x\",\"time\":\"2026-01-%02uT%02u:%02u:%02u.%03uZ\","
                    "\"user\":%u,\"action\":\"%s\",\"country\":\"%s\",\"address\":\"10.%u.%u.%u\","
                    "\"agent\":\"%s\",\"items\":[",
                    random_below(UINT32_MAX), random_below(UINT32_MAX), 1 + random_below(28),
                    random_below(24), random_below(60), random_below(60), random_below(1000),
                    random_below(1000000), ONE_OF(actions), ONE_OF(countries), random_below(256),
                    random_below(256), random_below(256), ONE_OF(agents));
}

static int write_item(char *to, size_t room) {
    static const char *const looks[] = {"blue", "red", "green", "small", "large", "striped"};
    static const char *const stuffs[] = {"leather", "cotton", "wooden", "steel", "paper"};
    static const char *const things[] = {"bag", "coat", "lamp", "chair", "kettle", "notebook"};
    static const char *const states[] = {"in stock", "delayed", "shipped", "returned"};
    return snprintf(to, room,
                    "{\"article\":%u,\"lot\":\"%06x\",\"name\":\"%s %s %s\",\"count\":%u,\"price\":%u.%02u,"
                    "\"state\":\"%s\"},",
                    random_below(50000), random_below(1 << 24), ONE_OF(looks), ONE_OF(stuffs),
                    ONE_OF(things), 1 + random_below(9), random_below(500), random_below(100),
                    ONE_OF(states));
}

static void write_message(char *to, size_t length) {
    char piece[PIECE_BYTES];
    size_t n = (size_t)write_head(piece, sizeof piece);
    for (size_t at = 0;; n = (size_t)write_item(piece, sizeof piece)) {
        if (n > length - at) n = length - at;
        memcpy(to + at, piece, n);
        at += n;
        if (at == length) return;
    }
}

static Messages make_messages(size_t message_bytes) {
    size_t count = POOL_BYTES / message_bytes;
    if (count < POOL_LEAST) count = POOL_LEAST;
    Messages made = {malloc(count * message_bytes), message_bytes, count};
    if (!made.bytes) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    for (size_t i = 0; i < count; i++)
        write_message(made.bytes + i * message_bytes, message_bytes);
    return made;
}

static void *message_at(const Messages *messages, long i) {
    return messages->bytes + (size_t)i % messages->count * messages->message_bytes;
}

#endif
