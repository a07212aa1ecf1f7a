/*
 * What both bench programs need of a wire: a clock, a growable buffer, header lookups, and a reader
 * of chunked bodies that survives any split of bytes.
 *
 * Everything is `static inline`, so that each program stays one translation unit and one gcc call.
 * Times are CLOCK_MONOTONIC microseconds: the same clock in every process of one machine, which is
 * what lets the load client subtract a stamp that the fake replica wrote.
 */
#ifndef WARMROUTE_BENCH_WIRE_H
#define WARMROUTE_BENCH_WIRE_H

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

static inline uint64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

/* Ends the program: a bench that continues after a failed allocation or bind measures nothing. */
static inline void die(const char *what)
{
    perror(what);
    exit(1);
}

static inline void *checked(void *memory)
{
    if (memory == NULL)
        die("out of memory");
    return memory;
}

/* Many streams need many descriptors: take all that the hard limit allows. */
static inline void raise_descriptor_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* Without this, Nagle's algorithm and delayed ACKs add 40 ms to small writes. */
static inline void set_nodelay(int fd)
{
    int on = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* ---- bytes that are somebody else's ---- */

struct bytes {
    const char *data;
    size_t length;
};

static inline bool starts_with(struct bytes text, const char *prefix)
{
    size_t length = strlen(prefix);

    return text.length >= length && memcmp(text.data, prefix, length) == 0;
}

/* Cuts the first line off `rest`, without its CRLF or LF; false when no complete line is left. */
static inline bool cut_line(struct bytes *rest, struct bytes *line)
{
    const char *newline = memchr(rest->data, '\n', rest->length);
    size_t taken;

    if (newline == NULL)
        return false;
    taken = (size_t)(newline - rest->data) + 1;
    line->data = rest->data;
    line->length = taken - 1;
    if (line->length > 0 && line->data[line->length - 1] == '\r')
        line->length--;
    rest->data += taken;
    rest->length -= taken;
    return true;
}

/* Cuts a word off `line` into `out`, a string of at most `size` - 1 bytes; a longer one is cut. */
static inline void cut_word(struct bytes *line, char *out, size_t size)
{
    size_t used = 0;

    while (line->length > 0 && *line->data == ' ') {
        line->data++;
        line->length--;
    }
    while (line->length > 0 && *line->data != ' ') {
        if (used + 1 < size)
            out[used++] = *line->data;
        line->data++;
        line->length--;
    }
    out[used] = '\0';
}

/* If `line` is the header `name` (given with its colon), stores its trimmed value. */
static inline bool header_is(struct bytes line, const char *name, struct bytes *value)
{
    size_t length = strlen(name);

    if (line.length < length || strncasecmp(line.data, name, length) != 0)
        return false;
    value->data = line.data + length;
    value->length = line.length - length;
    while (value->length > 0 && (*value->data == ' ' || *value->data == '\t')) {
        value->data++;
        value->length--;
    }
    return true;
}

static inline bool value_begins(struct bytes value, const char *word)
{
    size_t length = strlen(word);

    return value.length >= length && strncasecmp(value.data, word, length) == 0;
}

static inline uint64_t decimal(struct bytes text)
{
    uint64_t number = 0;

    for (size_t i = 0; i < text.length && text.data[i] >= '0' && text.data[i] <= '9'; i++)
        number = number * 10 + (uint64_t)(text.data[i] - '0');
    return number;
}

/* ---- a growable buffer ---- */

/*
 *   data            start             end            capacity
 *    | already used  | bytes held      | free space   |
 */
struct buffer {
    char *data;
    size_t start, end, capacity;
};

static inline size_t buffer_length(const struct buffer *b)
{
    return b->end - b->start;
}

static inline struct bytes buffer_bytes(const struct buffer *b)
{
    return (struct bytes){b->data + b->start, buffer_length(b)};
}

/* Makes room for `more` bytes at the end, moving what is held before asking for memory. */
static inline void buffer_reserve(struct buffer *b, size_t more)
{
    if (b->start == b->end)
        b->start = b->end = 0;
    if (b->capacity - b->end >= more)
        return;
    if (b->start > 0) {
        memmove(b->data, b->data + b->start, buffer_length(b));
        b->end -= b->start;
        b->start = 0;
    }
    if (b->capacity - b->end < more) {
        b->capacity = (b->end + more) * 2;
        b->data = checked(realloc(b->data, b->capacity));
    }
}

static inline void buffer_append(struct buffer *b, const void *data, size_t length)
{
    if (length == 0)
        return;
    buffer_reserve(b, length);
    memcpy(b->data + b->end, data, length);
    b->end += length;
}

static inline void buffer_consume(struct buffer *b, size_t length)
{
    b->start += length;
    if (b->start == b->end)
        b->start = b->end = 0;
}

static inline void buffer_clear(struct buffer *b)
{
    b->start = b->end = 0;
}

static inline void buffer_free(struct buffer *b)
{
    free(b->data);
    *b = (struct buffer){0};
}

/* Length of a message head including its blank line, or 0 while the blank line has not come. */
static inline size_t head_length(const struct buffer *b)
{
    const char *begin = b->data + b->start;
    const char *blank =
        buffer_length(b) < 4 ? NULL : memmem(begin, buffer_length(b), "\r\n\r\n", 4);

    return blank == NULL ? 0 : (size_t)(blank - begin) + 4;
}

/* ---- chunked transfer coding (RFC 9112, section 7.1) ---- */

enum chunk_phase {
    CHUNK_SIZE,      /* hexadecimal digits of a chunk's size */
    CHUNK_EXTENSION, /* the rest of that line, ignored */
    CHUNK_DATA,
    CHUNK_DATA_END, /* the CRLF after the data */
    CHUNK_TRAILER,  /* at the beginning of a trailer line; an empty one ends the body */
    CHUNK_TRAILER_TEXT,
    CHUNK_ENDED,
    CHUNK_BROKEN, /* not chunked coding at all */
};

struct chunk_reader {
    enum chunk_phase phase;
    int num_digits; /* of the size that is being read */
    uint64_t left;  /* bytes of the current chunk that have not come yet */
};

static inline int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
        return (c | 0x20) - 'a' + 10;
    return -1;
}

static inline enum chunk_phase chunk_reader_size(struct chunk_reader *r, char c)
{
    if (hex_digit(c) >= 0 && r->num_digits < 15) {
        r->left = r->left * 16 + (uint64_t)hex_digit(c);
        r->num_digits++;
        return CHUNK_SIZE;
    }
    if (r->num_digits == 0 || hex_digit(c) >= 0)
        return CHUNK_BROKEN;
    r->num_digits = 0;
    if (c != '\n')
        return CHUNK_EXTENSION;
    return r->left > 0 ? CHUNK_DATA : CHUNK_TRAILER;
}

/* The phase after one byte of framing, that is of anything but chunk data. */
static inline enum chunk_phase chunk_reader_step(struct chunk_reader *r, char c)
{
    bool newline = c == '\n';

    switch (r->phase) {
    case CHUNK_SIZE: return chunk_reader_size(r, c);
    case CHUNK_EXTENSION:
        if (!newline)
            return CHUNK_EXTENSION;
        return r->left > 0 ? CHUNK_DATA : CHUNK_TRAILER;
    case CHUNK_DATA_END:
        if (newline)
            return CHUNK_SIZE;
        return c == '\r' ? CHUNK_DATA_END : CHUNK_BROKEN;
    case CHUNK_TRAILER:
        if (newline)
            return CHUNK_ENDED;
        return c == '\r' ? CHUNK_TRAILER : CHUNK_TRAILER_TEXT;
    case CHUNK_TRAILER_TEXT: return newline ? CHUNK_TRAILER : CHUNK_TRAILER_TEXT;
    case CHUNK_DATA:
    case CHUNK_ENDED:
    case CHUNK_BROKEN: break;
    }
    return r->phase;
}

static inline bool chunk_reader_is_over(const struct chunk_reader *r)
{
    return r->phase == CHUNK_ENDED || r->phase == CHUNK_BROKEN;
}

/*
 * Cuts the next run of payload off `input`. An empty run means that the input is used up or that
 * the body is over: CHUNK_ENDED, and `input` holds what follows the body, or CHUNK_BROKEN.
 */
static inline struct bytes chunk_reader_next(struct chunk_reader *r, struct bytes *input)
{
    while (input->length > 0 && !chunk_reader_is_over(r)) {
        if (r->phase == CHUNK_DATA) {
            struct bytes run = {input->data, input->length};

            if (run.length > r->left)
                run.length = (size_t)r->left;
            input->data += run.length;
            input->length -= run.length;
            r->left -= run.length;
            if (r->left == 0)
                r->phase = CHUNK_DATA_END;
            return run;
        }
        r->phase = chunk_reader_step(r, *input->data);
        input->data++;
        input->length--;
    }
    return (struct bytes){NULL, 0};
}

#endif
