/* Walks the records of a batch and checks their framing, as `record_walk.walk_plain` does.
 *
 * This is the one compiled function of the project. It is optional: without it `walk_plain` is used,
 * which returns the same results. It uses the stable ABI of Python 3.11, so that one build serves
 * every later version.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* The numbers of record_walk.Flaw. */
enum {
    FINE, CUT_SHORT, BAD_NUMBER, RECORD_LENGTH, OFFSET_DELTA, KEY_LENGTH, VALUE_LENGTH,
    HEADER_COUNT, HEADER_KEY_LENGTH, HEADER_VALUE_LENGTH, RECORD_END, TRAILING_BYTES, TIMESTAMP
};

/* A walk of this many bytes lets other threads run meanwhile. */
#define LARGE_BYTES (64 * 1024)

typedef struct {
    int flaw;
    Py_ssize_t at;
    int64_t lowest, highest;
    int64_t without_key;
} Walk;

/* Reads a variable-length number of at most `bits` bits. Returns its end, or NULL and the flaw. */
static const uint8_t *number(const uint8_t *at, const uint8_t *end, int bits, uint64_t *out,
                             int *flaw, int ends_early)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        if (shift >= bits) {
            *flaw = BAD_NUMBER;
            return NULL;
        }
        if (at >= end) {
            *flaw = ends_early;
            return NULL;
        }
        uint8_t byte = *at++;
        uint64_t part = byte & 0x7F;
        if (shift > bits - 7 && part >> (bits - shift)) {
            *flaw = BAD_NUMBER;
            return NULL;
        }
        value |= part << shift;
        if (byte < 0x80)
            break;
    }
    *out = value;
    return at;
}

#define NUMBER(bits, limit, early) \
    do { \
        if (at < (limit) && *at < 0x80) \
            n = *at++; \
        else { \
            const uint8_t *next = number(at, (limit), (bits), &n, &flaw, (early)); \
            if (next == NULL) \
                goto flawed; \
            at = next; \
        } \
    } while (0)

/* Skips a field of bytes: its length is zigzag, and -1 means that there is none. */
#define SKIP(code, may_be_null) \
    do { \
        NUMBER(32, stop, RECORD_END); \
        if (n & 1) { \
            if (!(may_be_null) || n != 1) { \
                flaw = (code); \
                goto flawed; \
            } \
        } else { \
            if ((uint64_t)(stop - at) < n >> 1) { \
                flaw = RECORD_END; \
                goto flawed; \
            } \
            at += n >> 1; \
        } \
    } while (0)

static void walk(const uint8_t *start, const uint8_t *end, int64_t count, int64_t base_timestamp,
                 Walk *result)
{
    const uint8_t *at = start;
    int64_t lowest = INT64_MAX, highest = -1, without_key = 0;
    int flaw = FINE;
    uint64_t n;

    for (int64_t index = 0; index < count; index++) {
        NUMBER(32, end, CUT_SHORT);
        if (n & 1) {
            flaw = RECORD_LENGTH;
            goto flawed;
        }
        if ((uint64_t)(end - at) < n >> 1) {
            flaw = CUT_SHORT;
            goto flawed;
        }
        const uint8_t *stop = at + (n >> 1);
        if (at >= stop) {
            flaw = RECORD_END;
            goto flawed;
        }
        at++; /* the attributes of a record: none is defined */

        NUMBER(64, stop, RECORD_END);
        int64_t delta = (int64_t)(n >> 1) ^ -(int64_t)(n & 1);
        if (delta > 0 ? base_timestamp > INT64_MAX - delta : base_timestamp < INT64_MIN - delta) {
            flaw = TIMESTAMP;
            goto flawed;
        }
        int64_t timestamp = base_timestamp + delta;
        if (timestamp > highest)
            highest = timestamp;
        if (timestamp < lowest && timestamp != -1)
            lowest = timestamp;

        NUMBER(32, stop, RECORD_END);
        if (n != (uint64_t)index << 1) {
            flaw = OFFSET_DELTA;
            goto flawed;
        }

        SKIP(KEY_LENGTH, 1);
        without_key += n == 1;
        SKIP(VALUE_LENGTH, 1);

        NUMBER(32, stop, RECORD_END);
        if (n & 1 || n >> 1 > (uint64_t)(stop - at) / 2) {
            flaw = HEADER_COUNT;
            goto flawed;
        }
        for (uint64_t headers = n >> 1; headers; headers--) {
            SKIP(HEADER_KEY_LENGTH, 0);
            SKIP(HEADER_VALUE_LENGTH, 1);
        }
        if (at != stop) {
            flaw = RECORD_END;
            goto flawed;
        }
    }
    if (at != end)
        flaw = TRAILING_BYTES;
flawed:
    result->flaw = flaw;
    result->at = at - start;
    result->lowest = lowest;
    result->highest = highest;
    result->without_key = without_key;
}

static PyObject *walk_records(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 5) {
        PyErr_SetString(PyExc_TypeError, "walk takes 5 arguments");
        return NULL;
    }
    Py_ssize_t start = PyLong_AsSsize_t(args[1]);
    Py_ssize_t end = PyLong_AsSsize_t(args[2]);
    int64_t count = PyLong_AsLongLong(args[3]);
    int64_t base_timestamp = PyLong_AsLongLong(args[4]);
    if (PyErr_Occurred())
        return NULL;
    Py_buffer buffer;
    if (PyObject_GetBuffer(args[0], &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    if (start < 0 || end < start || end > buffer.len) {
        PyBuffer_Release(&buffer);
        PyErr_SetString(PyExc_ValueError, "the records are not within the buffer");
        return NULL;
    }
    Walk result;
    const uint8_t *bytes = buffer.buf;
    if (end - start < LARGE_BYTES)
        walk(bytes + start, bytes + end, count, base_timestamp, &result);
    else {
        Py_BEGIN_ALLOW_THREADS
        walk(bytes + start, bytes + end, count, base_timestamp, &result);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&buffer);
    return Py_BuildValue("inLLL", result.flaw, result.at, (long long)result.lowest,
                         (long long)result.highest, (long long)result.without_key);
}

static PyMethodDef methods[] = {
    {"walk", (PyCFunction)(void (*)(void))walk_records, METH_FASTCALL,
     "walk(buffer, start, end, count, base_timestamp) -> (flaw, at, lowest, highest, without_key)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_record_walk", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__record_walk(void)
{
    return PyModuleDef_Init(&module);
}
