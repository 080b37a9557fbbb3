/* A library for LD_PRELOAD: it makes the disk of one process fail or slow, and its clock wrong.

   HIGHTIDE_MEDDLER names a file that this library maps; the test run writes the faults into it, at
   any time. HIGHTIDE_MEDDLER_DISK is the directory whose files are affected. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct faults {
    int32_t read_error;
    int32_t write_error;
    int32_t sync_error;
    int32_t delay_us;
    int64_t clock_ns;
};

static struct faults none;
static volatile struct faults *faults = &none;
static char disk[4096];
static size_t disk_length;

__attribute__((constructor)) static void load(void) {
    const char *file = getenv("HIGHTIDE_MEDDLER"), *folder = getenv("HIGHTIDE_MEDDLER_DISK");
    if (!file || !folder || strlen(folder) >= sizeof disk) return;
    strcpy(disk, folder);
    disk_length = strlen(folder);
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    void *mapped = mmap(0, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED) faults = mapped;
}

static int is_on_disk(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    return length > (ssize_t)disk_length && !memcmp(path, disk, disk_length);
}

/* Return the error for an operation on a file, after the delay; 0 for none. */
static int harm(int fd, int32_t error) {
    int32_t delay_us = faults->delay_us;
    if ((!error && !delay_us) || !is_on_disk(fd)) return 0;
    if (delay_us) usleep(delay_us);
    return error;
}

#define REAL(result, name, ...)                                    \
    static result (*real)(__VA_ARGS__);                            \
    if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define FAIL_IF(expression)          \
    do {                             \
        int error_ = (expression);   \
        if (error_) {                \
            errno = error_;          \
            return -1;               \
        }                            \
    } while (0)

ssize_t read(int fd, void *data, size_t size) {
    REAL(ssize_t, "read", int, void *, size_t);
    FAIL_IF(harm(fd, faults->read_error));
    return real(fd, data, size);
}

ssize_t pread64(int fd, void *data, size_t size, off64_t at) {
    REAL(ssize_t, "pread64", int, void *, size_t, off64_t);
    FAIL_IF(harm(fd, faults->read_error));
    return real(fd, data, size, at);
}

ssize_t pread(int fd, void *data, size_t size, off_t at) { return pread64(fd, data, size, at); }

ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
    REAL(ssize_t, "preadv64v2", int, const struct iovec *, int, off64_t, int);
    FAIL_IF(harm(fd, faults->read_error));
    return real(fd, parts, count, at, flags);
}

ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    return preadv64v2(fd, parts, count, at, flags);
}

ssize_t preadv64(int fd, const struct iovec *parts, int count, off64_t at) {
    REAL(ssize_t, "preadv64", int, const struct iovec *, int, off64_t);
    FAIL_IF(harm(fd, faults->read_error));
    return real(fd, parts, count, at);
}

ssize_t preadv(int fd, const struct iovec *parts, int count, off_t at) {
    return preadv64(fd, parts, count, at);
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    FAIL_IF(harm(fd, faults->write_error));
    return real(fd, data, size);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    FAIL_IF(harm(fd, faults->write_error));
    return real(fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return pwrite64(fd, data, size, at);
}

int fsync(int fd) {
    REAL(int, "fsync", int);
    FAIL_IF(harm(fd, faults->sync_error));
    return real(fd);
}

int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    FAIL_IF(harm(fd, faults->sync_error));
    return real(fd);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(int, "clock_gettime", clockid_t, struct timespec *);
    int result = real(clock, now);
    int64_t wrong_ns = faults->clock_ns;
    if (!result && wrong_ns && clock == CLOCK_REALTIME) {
        int64_t ns = now->tv_sec * 1000000000LL + now->tv_nsec + wrong_ns;
        now->tv_sec = ns / 1000000000LL;
        now->tv_nsec = ns % 1000000000LL;
    }
    return result;
}
