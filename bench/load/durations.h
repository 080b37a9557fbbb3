/* Durations that were measured, kept one by one, and their percentiles. */
#ifndef BENCH_DURATIONS_H
#define BENCH_DURATIONS_H

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    float *us;
    size_t count, capacity;
} Durations;

static void note_duration(Durations *d, double seconds) {
    if (d->count == d->capacity) {
        d->capacity = d->capacity ? d->capacity * 2 : 1 << 16;
        d->us = realloc(d->us, d->capacity * sizeof *d->us);
        if (!d->us) {
            fprintf(stderr, "out of memory\n");
            exit(1);
        }
    }
    d->us[d->count++] = (float)(seconds * 1e6);
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* To be done once, before percentiles are asked for. */
static void sort_durations(Durations *d) {
    if (d->count) qsort(d->us, d->count, sizeof *d->us, by_size);
}

static double percentile_us(const Durations *d, double share) {
    return d->count ? d->us[(size_t)((double)(d->count - 1) * share)] : 0;
}

#endif
