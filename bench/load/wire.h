/* The few pieces of Kafka's wire format that the raw generator writes and reads.
 *
 * Writing goes through a cursor (`Out`) into a buffer the caller made large enough.  Reading goes
 * through a bounded cursor (`In`): a read past the end gives zero and sets `bad`, so a broken
 * answer is reported instead of being believed.
 */
#ifndef BENCH_WIRE_H
#define BENCH_WIRE_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- writing ------------------------------------------------------------------------------ */

typedef struct {
    uint8_t *at;
} Out;

static void put_u8(Out *o, uint8_t v) { *o->at++ = v; }

static void put_i16(Out *o, int16_t v) {
    uint16_t x = htobe16((uint16_t)v);
    memcpy(o->at, &x, 2);
    o->at += 2;
}

static void put_i32(Out *o, int32_t v) {
    uint32_t x = htobe32((uint32_t)v);
    memcpy(o->at, &x, 4);
    o->at += 4;
}

static void put_i64(Out *o, int64_t v) {
    uint64_t x = htobe64((uint64_t)v);
    memcpy(o->at, &x, 8);
    o->at += 8;
}

static void put_uvarint(Out *o, uint32_t v) {
    for (; v >= 0x80; v >>= 7) *o->at++ = (uint8_t)(v | 0x80);
    *o->at++ = (uint8_t)v;
}

static void put_varint(Out *o, int32_t v) {
    put_uvarint(o, ((uint32_t)v << 1) ^ (uint32_t)(v >> 31));
}

static int uvarint_bytes(uint32_t v) {
    int n = 1;
    for (; v >= 0x80; v >>= 7) n++;
    return n;
}

static void put_bytes(Out *o, const void *data, size_t n) {
    memcpy(o->at, data, n);
    o->at += n;
}

static void put_compact_string(Out *o, const char *s) {
    put_uvarint(o, (uint32_t)strlen(s) + 1);
    put_bytes(o, s, strlen(s));
}

/* Overwrites a number in a request that was built before. */
static void patch_i32(uint8_t *at, int32_t v) {
    Out o = {at};
    put_i32(&o, v);
}

static void patch_i64(uint8_t *at, int64_t v) {
    Out o = {at};
    put_i64(&o, v);
}

/* ---- reading ------------------------------------------------------------------------------ */

typedef struct {
    const uint8_t *at, *end;
    int bad;
} In;

static int has(In *in, size_t n) {
    if ((size_t)(in->end - in->at) >= n) return 1;
    in->bad = 1;
    in->at = in->end;
    return 0;
}

static void skip(In *in, size_t n) {
    if (has(in, n)) in->at += n;
}

static uint8_t get_u8(In *in) { return has(in, 1) ? *in->at++ : 0; }

static int16_t get_i16(In *in) {
    uint16_t x = 0;
    if (has(in, 2)) memcpy(&x, in->at, 2), in->at += 2;
    return (int16_t)be16toh(x);
}

static int32_t get_i32(In *in) {
    uint32_t x = 0;
    if (has(in, 4)) memcpy(&x, in->at, 4), in->at += 4;
    return (int32_t)be32toh(x);
}

static int64_t get_i64(In *in) {
    uint64_t x = 0;
    if (has(in, 8)) memcpy(&x, in->at, 8), in->at += 8;
    return (int64_t)be64toh(x);
}

static uint32_t get_uvarint(In *in) {
    uint32_t v = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        uint8_t b = get_u8(in);
        v |= (uint32_t)(b & 0x7f) << shift;
        if (b < 0x80) return v;
    }
    in->bad = 1;
    return 0;
}

static void skip_tags(In *in) {
    for (uint32_t n = get_uvarint(in); n > 0 && !in->bad; n--) {
        get_uvarint(in);
        skip(in, get_uvarint(in));
    }
}

/* ---- record batches ------------------------------------------------------------------------ */

enum {
    BATCH_HEADER_BYTES = 61,
    BATCH_LOG_OVERHEAD = 12,
    BATCH_CRC_AT = 17,
    BATCH_CRC_FROM = 21,
    BATCH_LAST_OFFSET_DELTA_AT = 23,
    BATCH_RECORD_COUNT_AT = 57
};

/* Bit by bit: it runs once for each run of the generator, so it is written to be short. */
static uint32_t crc32c(const uint8_t *data, size_t n) {
    uint32_t crc = 0xffffffffu;
    while (n--) {
        crc ^= *data++;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82f63b78u & -(crc & 1));
    }
    return ~crc;
}

/* An upper bound for the batch that build_batch writes. */
static size_t batch_capacity(int records, int record_bytes) {
    return BATCH_HEADER_BYTES + (size_t)records * ((size_t)record_bytes + 24);
}

/* One uncompressed v2 batch of equal records without keys.  Returns its length. */
static size_t build_batch(uint8_t *to, int records, int record_bytes, int64_t timestamp_ms) {
    Out o = {to + BATCH_HEADER_BYTES};
    for (int i = 0; i < records; i++) {
        int body = 1 + 1 + uvarint_bytes((uint32_t)i << 1) + 1 +
                   uvarint_bytes((uint32_t)record_bytes << 1) + record_bytes + 1;
        put_varint(&o, body);
        put_u8(&o, 0);       /* attributes */
        put_varint(&o, 0);   /* timestamp delta */
        put_varint(&o, i);   /* offset delta */
        put_varint(&o, -1);  /* no key */
        put_varint(&o, record_bytes);
        memset(o.at, 'a' + i % 26, (size_t)record_bytes);
        o.at += record_bytes;
        put_varint(&o, 0);   /* no headers */
    }
    size_t length = (size_t)(o.at - to);
    o.at = to;
    put_i64(&o, 0);                                       /* base offset */
    put_i32(&o, (int32_t)(length - BATCH_LOG_OVERHEAD));
    put_i32(&o, -1);                                      /* partition leader epoch */
    put_u8(&o, 2);                                        /* magic */
    put_i32(&o, 0);                                       /* the CRC, set below */
    put_i16(&o, 0);                                       /* attributes: no compression */
    put_i32(&o, records - 1);                             /* last offset delta */
    put_i64(&o, timestamp_ms);
    put_i64(&o, timestamp_ms);
    put_i64(&o, -1);                                      /* producer id */
    put_i16(&o, -1);                                      /* producer epoch */
    put_i32(&o, -1);                                      /* base sequence */
    put_i32(&o, records);
    patch_i32(to + BATCH_CRC_AT, (int32_t)crc32c(to + BATCH_CRC_FROM, length - BATCH_CRC_FROM));
    return length;
}

#endif
