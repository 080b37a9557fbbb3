/* Time and CPU accounting shared by the load generators.
 *
 * A window is the part of a run that counts: it opens after the warm-up and remembers, for this
 * process and for the broker, how much CPU time was spent inside it.  CPU times come from the
 * kernel's per-process CPU clocks.  They are the scheduler's own nanosecond counters (the first
 * number of /proc/PID/task/TID/schedstat, summed), and unlike those files they keep the time of
 * threads that have ended.
 */
#ifndef BENCH_CLOCKS_H
#define BENCH_CLOCKS_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>

#define MAX_BROKER_PROCESSES 16

static clockid_t broker_clocks[MAX_BROKER_PROCESSES];
static int broker_clock_count;

static double clock_s(clockid_t clock) {
    struct timespec t;
    if (clock_gettime(clock, &t) != 0) return 0;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double now_s(void) { return clock_s(CLOCK_MONOTONIC); }

/* Account the CPU time of this process to the broker; may be called several times. */
static void watch_broker(const char *pid_text) {
    if (broker_clock_count == MAX_BROKER_PROCESSES) return;
    if (clock_getcpuclockid((pid_t)atoi(pid_text), &broker_clocks[broker_clock_count]) == 0)
        broker_clock_count++;
}

static double broker_cpu_s(void) {
    double sum = 0;
    for (int i = 0; i < broker_clock_count; i++) sum += clock_s(broker_clocks[i]);
    return sum;
}

typedef struct {
    double seconds, client_cpu_s, broker_cpu_s;
} Window;

/* Opened: the three clocks as they stand.  Closed: how far they have moved since. */
static void window_open(Window *w) {
    w->client_cpu_s = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    w->broker_cpu_s = broker_cpu_s();
    w->seconds = now_s();
}

static void window_close(Window *w) {
    w->seconds = now_s() - w->seconds;
    w->client_cpu_s = clock_s(CLOCK_PROCESS_CPUTIME_ID) - w->client_cpu_s;
    w->broker_cpu_s = broker_cpu_s() - w->broker_cpu_s;
}

#endif
