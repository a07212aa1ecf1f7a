/*
 * Timers: a binary heap, earliest first. A timer is a member of what it wakes; `timer_owner` finds
 * the whole again. Setting, cancelling and taking cost O(log n), however far the times lie apart.
 */
#ifndef WARMROUTE_BENCH_TIMERS_H
#define WARMROUTE_BENCH_TIMERS_H

#include "wire.h"

#include <stddef.h>

struct timer {
    uint64_t due_us;
    size_t place; /* its index in the heap + 1; 0 when it is not set */
};

struct timers {
    struct timer **items;
    size_t length, capacity;
};

#define timer_owner(timer, type, member) ((type *)((char *)(timer) - offsetof(type, member)))

static inline bool timer_is_set(const struct timer *t)
{
    return t->place > 0;
}

/* The timer that is due first, or NULL. */
static inline struct timer *timers_first(const struct timers *heap)
{
    return heap->length > 0 ? heap->items[0] : NULL;
}

static inline void timers_put(struct timers *heap, size_t index, struct timer *t)
{
    heap->items[index] = t;
    t->place = index + 1;
}

static inline void timers_sift_up(struct timers *heap, size_t index)
{
    struct timer *t = heap->items[index];

    while (index > 0 && heap->items[(index - 1) / 2]->due_us > t->due_us) {
        timers_put(heap, index, heap->items[(index - 1) / 2]);
        index = (index - 1) / 2;
    }
    timers_put(heap, index, t);
}

static inline void timers_sift_down(struct timers *heap, size_t index)
{
    struct timer *t = heap->items[index];
    size_t child;

    while ((child = index * 2 + 1) < heap->length) {
        if (child + 1 < heap->length && heap->items[child + 1]->due_us < heap->items[child]->due_us)
            child++;
        if (heap->items[child]->due_us >= t->due_us)
            break;
        timers_put(heap, index, heap->items[child]);
        index = child;
    }
    timers_put(heap, index, t);
}

/* The timer must not be set already. */
static inline void timer_set(struct timers *heap, struct timer *t, uint64_t due_us)
{
    if (heap->length == heap->capacity) {
        heap->capacity = heap->capacity ? heap->capacity * 2 : 256;
        heap->items = checked(realloc(heap->items, heap->capacity * sizeof *heap->items));
    }
    t->due_us = due_us;
    timers_put(heap, heap->length++, t);
    timers_sift_up(heap, heap->length - 1);
}

static inline void timer_cancel(struct timers *heap, struct timer *t)
{
    size_t index = t->place - 1;
    struct timer *last;

    if (!timer_is_set(t))
        return;
    t->place = 0;
    last = heap->items[--heap->length];
    if (last == t)
        return;
    timers_put(heap, index, last);
    timers_sift_up(heap, index);
    timers_sift_down(heap, last->place - 1);
}

#endif
