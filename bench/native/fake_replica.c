/*
 * A fake OpenAI-compatible replica that costs as little CPU as it can: one thread, one epoll.
 *
 *     fake_replica [PORT [MODEL]]      PORT 0 or none: a free one. Prints "listening PORT".
 *
 * Inference        POST /v1/chat/completions, POST /v1/completions: JSON, or an SSE stream when the
 *                  body has "stream": true
 * Behaviour        POST /control?NAME=VALUE&... ; the names are in `settings` below
 * What happened    GET /stats ; POST /stats/reset
 * What peers probe GET /health, /v1/models, /metrics, /version, ... ; POST /tokenize
 *
 * The life of a request on a connection (pipelined requests wait in the input buffer):
 *
 *     READING -> DELAYED -> STREAMING -> FLUSHING -> READING
 *                   |                       ^
 *                   +-----------------------+   JSON, errors, everything that is not inference
 *
 * Rule 1: a connection is in the heap of timers if and only if it waits for time to pass. One that
 *         waits for its peer to read is not in it and costs nothing.
 * Rule 2: a closed connection stays allocated until the events of this turn have been handled,
 *         because a later event of the same epoll_wait may still point at it.
 */
#define _GNU_SOURCE
#include "timers.h"
#include "wire.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    READ_BYTES = 65536,
    HEAD_BYTES_MAX = 65536,
    BODY_BYTES_MAX = 256 * 1024 * 1024,
    ACCEPTS_PER_TURN = 64,
    EVENTS_PER_TURN = 512,
    NUM_GROUPS_MAX = 1024,
    BYTES_PER_TOKEN = 4,
    /* What a replica says it had cached of a group that it has seen; as in bench/bodies.py. */
    CACHED_PERCENT = 75,
};

enum phase { PHASE_READING, PHASE_DELAYED, PHASE_STREAMING, PHASE_FLUSHING };

struct request {
    bool has_head; /* the head has been read, the body has not */
    char method[8];
    char target[512];
    uint64_t content_length;
    bool chunked, keep_alive, expects_continue;
    struct chunk_reader chunks;
    bool inference;
    /* of an inference request only */
    bool stream, include_usage;
    uint64_t prompt_tokens, cached_tokens;
};

struct connection {
    int fd; /* -1 when closed */
    enum phase phase;
    bool awaits_write;
    struct buffer input, body, output;
    struct request request;
    long events_sent;
    struct timer timer;
    struct connection *next_closed;
};

/* ---- settings and statistics ---- */

static long chunks = 100, status = 200;
static long interval_us, delay_us, cut_after, reset_on_cut;

static const struct {
    const char *name;
    long *value;
} settings[] = {
    {"chunks", &chunks},           /* SSE events of one stream, before [DONE] */
    {"interval_us", &interval_us}, /* between two events; 0: as fast as the peer reads */
    {"delay_us", &delay_us},       /* before the first byte of an answer */
    {"status", &status},           /* of every answer to an inference request */
    {"cut_after", &cut_after}, /* end a stream after so many events, without its end; 0: never */
    {"reset", &reset_on_cut},  /* and do it with RST instead of FIN */
};
enum { NUM_SETTINGS = sizeof settings / sizeof *settings };

static struct {
    long requests, streams, done, aborted, cut, accepted, events, body_bytes, tokenized, unknown;
    long groups[NUM_GROUPS_MAX];
} stats;

/* State, not statistics: a reset leaves it. */
static long num_open, num_connections;
static bool group_seen[NUM_GROUPS_MAX];

static int epoll_fd;
static struct timers timers;
static int own_port;
static const char *model = "fake-model";
static struct connection *closed_connections;

/* ---- connections ---- */

static void connection_open(int fd)
{
    struct connection *c = checked(calloc(1, sizeof *c));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};

    set_nodelay(fd);
    c->fd = fd;
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
    stats.accepted++;
    num_connections++;
}

/* Whether an inference request has been read and its answer has not left completely. */
static bool is_answering(const struct connection *c)
{
    return c->phase != PHASE_READING && c->request.inference;
}

/* Closes at once; whoever calls has already counted the answer that this ends, if any. */
static void connection_close(struct connection *c)
{
    timer_cancel(&timers, &c->timer);
    if (is_answering(c))
        num_open--;
    close(c->fd);
    c->fd = -1;
    num_connections--;
    c->next_closed = closed_connections;
    closed_connections = c;
}

/* The peer is gone, or sends what cannot be served. */
static void connection_lost(struct connection *c)
{
    if (is_answering(c))
        stats.aborted++;
    connection_close(c);
}

static void free_closed_connections(void)
{
    while (closed_connections != NULL) {
        struct connection *c = closed_connections;

        closed_connections = c->next_closed;
        buffer_free(&c->input);
        buffer_free(&c->body);
        buffer_free(&c->output);
        free(c);
    }
}

static void await_write(struct connection *c, bool wanted)
{
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0), .data.ptr = c};

    if (c->awaits_write == wanted)
        return;
    c->awaits_write = wanted;
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &event);
}

/* True when all output has left; false when the peer must read first, or when it is gone. */
static bool flush(struct connection *c)
{
    while (buffer_length(&c->output) > 0) {
        struct bytes rest = buffer_bytes(&c->output);
        ssize_t sent = send(c->fd, rest.data, rest.length, MSG_NOSIGNAL);

        if (sent < 0) {
            if (errno == EAGAIN)
                await_write(c, true);
            else
                connection_lost(c);
            return false;
        }
        buffer_consume(&c->output, (size_t)sent);
    }
    await_write(c, false);
    return true;
}

/* ---- answers ---- */

static void print_to(struct buffer *b, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void print_to(struct buffer *b, const char *format, ...)
{
    va_list arguments;
    int length;

    buffer_reserve(b, 1024);
    va_start(arguments, format);
    length = vsnprintf(b->data + b->end, b->capacity - b->end, format, arguments);
    va_end(arguments);
    if ((size_t)length >= b->capacity - b->end) {
        buffer_reserve(b, (size_t)length + 1);
        va_start(arguments, format);
        vsnprintf(b->data + b->end, b->capacity - b->end, format, arguments);
        va_end(arguments);
    }
    b->end += (size_t)length;
}

static const char *reason_phrase(long code)
{
    static const struct {
        long code;
        const char *phrase;
    } phrases[] = {
        {200, "OK"},
        {400, "Bad Request"},
        {404, "Not Found"},
        {429, "Too Many Requests"},
        {500, "Internal Server Error"},
        {503, "Service Unavailable"},
    };

    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++)
        if (phrases[i].code == code)
            return phrases[i].phrase;
    return "Forced";
}

/* A whole answer; `body` is used up. */
static void answer(struct connection *c, long code, const char *content_type, struct buffer *body)
{
    print_to(&c->output,
             "HTTP/1.1 %ld %s\r\nServer: fake-replica\r\nContent-Type: %s\r\n"
             "Content-Length: %zu\r\n%s%s\r\n",
             code, reason_phrase(code), content_type, buffer_length(body),
             code == 429 || code == 503 ? "Retry-After: 1\r\n" : "",
             c->request.keep_alive ? "" : "Connection: close\r\n");
    buffer_append(&c->output, body->data + body->start, buffer_length(body));
    buffer_free(body);
    c->phase = PHASE_FLUSHING;
}

static void answer_json(struct connection *c, long code, const char *text)
{
    struct buffer body = {0};

    buffer_append(&body, text, strlen(text));
    answer(c, code, "application/json", &body);
}

static bool is_chat(const struct connection *c)
{
    return strcmp(c->request.target, "/v1/chat/completions") == 0;
}

static void print_usage(struct buffer *b, const struct request *r, long completion_tokens)
{
    print_to(b,
             "{\"prompt_tokens\":%" PRIu64 ",\"completion_tokens\":%ld,\"total_tokens\":%" PRIu64
             ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu64 "}}",
             r->prompt_tokens, completion_tokens, r->prompt_tokens + (uint64_t)completion_tokens,
             r->cached_tokens);
}

static void answer_completion(struct connection *c)
{
    static const char text[] =
        "The quick brown fox jumps over the lazy dog and keeps going, at port";
    struct buffer body = {0};

    print_to(&body,
             "{\"id\":\"cmpl-0123456789abcdef0123456789abcdef\",\"object\":\"%s\","
             "\"created\":1790000000,\"model\":\"%s\",\"choices\":[{\"index\":0,",
             is_chat(c) ? "chat.completion" : "text_completion", model);
    print_to(&body,
             is_chat(c) ? "\"message\":{\"role\":\"assistant\",\"content\":\"%s %d.\"}"
                        : "\"text\":\"%s %d.\"",
             text, own_port);
    print_to(&body, ",\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":");
    print_usage(&body, &c->request, 16);
    print_to(&body, "}");
    answer(c, 200, "application/json", &body);
}

static void answer_forced_error(struct connection *c)
{
    struct buffer body = {0};

    print_to(&body,
             "{\"error\":{\"message\":\"status %ld was asked for at /control\","
             "\"type\":\"server_error\",\"param\":null,\"code\":%ld}}",
             status, status);
    answer(c, status, "application/json", &body);
}

/* ---- streams ---- */

/* Appends one HTTP chunk that holds `text`. */
static void append_chunk(struct connection *c, const struct buffer *text)
{
    print_to(&c->output, "%zx\r\n", buffer_length(text));
    buffer_append(&c->output, text->data + text->start, buffer_length(text));
    buffer_append(&c->output, "\r\n", 2);
}

static void begin_stream(struct connection *c)
{
    print_to(&c->output,
             "HTTP/1.1 200 OK\r\nServer: fake-replica\r\n"
             "Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
             "Transfer-Encoding: chunked\r\n%s\r\n",
             c->request.keep_alive ? "" : "Connection: close\r\n");
    c->phase = PHASE_STREAMING;
    c->events_sent = 0;
}

static void print_event_head(struct buffer *text, const struct connection *c)
{
    print_to(text,
             "data: {\"id\":\"cmpl-0123456789abcdef0123456789abcdef\",\"object\":\"%s\","
             "\"created\":1790000000,\"model\":\"%s\",\"choices\":[",
             is_chat(c) ? "chat.completion.chunk" : "text_completion", model);
}

/* The content of an event is the time at which it was sent: 20 digits, microseconds. */
static void append_event(struct connection *c, uint64_t sent_us)
{
    static struct buffer text;
    const char *finish = c->events_sent + 1 >= chunks ? "\"stop\"" : "null";

    buffer_clear(&text);
    print_event_head(&text, c);
    if (is_chat(c))
        print_to(&text, "{\"index\":0,\"delta\":{%s\"content\":\"%020" PRIu64 "\"}",
                 c->events_sent == 0 ? "\"role\":\"assistant\"," : "", sent_us);
    else
        print_to(&text, "{\"index\":0,\"text\":\"%020" PRIu64 "\"", sent_us);
    print_to(&text, ",\"logprobs\":null,\"finish_reason\":%s}]}\n\n", finish);
    append_chunk(c, &text);
    c->events_sent++;
    stats.events++;
}

static void end_stream(struct connection *c)
{
    static struct buffer text;

    if (c->request.include_usage) {
        buffer_clear(&text);
        print_event_head(&text, c);
        print_to(&text, "],\"usage\":");
        print_usage(&text, &c->request, c->events_sent);
        print_to(&text, "}\n\n");
        append_chunk(c, &text);
    }
    buffer_clear(&text);
    print_to(&text, "data: [DONE]\n\n");
    append_chunk(c, &text);
    buffer_append(&c->output, "0\r\n\r\n", 5);
    c->phase = PHASE_FLUSHING;
}

/* Ends a stream as a crash would: what was written so far, and no end. */
static void cut_stream(struct connection *c)
{
    struct linger at_once = {.l_onoff = 1, .l_linger = 0};

    if (!flush(c))
        return;
    if (reset_on_cut)
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    stats.cut++;
    connection_close(c);
}

/*
 * When the next event is due. The gap after the first event is a fraction of the interval, another
 * one for each stream, so that streams which began together do not beat in step for ever.
 */
static uint64_t next_event_us(const struct connection *c, uint64_t now)
{
    uint64_t gap = (uint64_t)interval_us;
    uint64_t due;

    if (c->events_sent == 1 && gap > 0)
        gap = ((uint64_t)stats.streams * 2654435761u) % gap;
    due = c->timer.due_us + gap;
    return due > now ? due : now + 1;
}

static void stream_event(struct connection *c, uint64_t now)
{
    if (c->events_sent < chunks)
        append_event(c, now);
    if (cut_after > 0 && c->events_sent >= cut_after)
        cut_stream(c);
    else if (c->events_sent >= chunks)
        end_stream(c);
    else if (flush(c))
        timer_set(&timers, &c->timer, next_event_us(c, now));
}

static void begin_answer(struct connection *c, uint64_t now)
{
    if (status != 200) {
        answer_forced_error(c);
    } else if (!c->request.stream) {
        answer_completion(c);
    } else {
        c->timer.due_us = now;
        begin_stream(c);
        stream_event(c, now);
    }
}

/* ---- inference requests ---- */

/* True when the JSON text has `"key": true`; a key inside a string has its quotes escaped. */
static bool json_flag(struct bytes body, const char *quoted_key)
{
    size_t length = strlen(quoted_key);
    const char *at;

    while ((at = memmem(body.data, body.length, quoted_key, length)) != NULL) {
        body.length -= (size_t)(at - body.data) + length;
        body.data = at + length;
        while (body.length > 0 && memchr(" \t\r\n:", *body.data, 5) != NULL) {
            body.data++;
            body.length--;
        }
        if (starts_with(body, "true"))
            return true;
    }
    return false;
}

/* Counts the request's prompt group, from its marker [[g=N]]; true when it was here before. */
static bool count_group(struct bytes body)
{
    const char *marker = memmem(body.data, body.length, "[[g=", 4);
    struct bytes digits;
    uint64_t group;
    bool seen;

    if (marker == NULL)
        return false;
    digits.data = marker + 4;
    digits.length = body.length - (size_t)(digits.data - body.data);
    group = decimal(digits);
    if (group >= NUM_GROUPS_MAX)
        return false;
    seen = group_seen[group];
    group_seen[group] = true;
    stats.groups[group]++;
    return seen;
}

static void begin_inference(struct connection *c, struct bytes body)
{
    struct request *r = &c->request;

    stats.requests++;
    num_open++;
    r->inference = true;
    r->stream = json_flag(body, "\"stream\"");
    r->include_usage = r->stream && json_flag(body, "\"include_usage\"");
    r->prompt_tokens = body.length / BYTES_PER_TOKEN;
    r->cached_tokens = count_group(body) ? r->prompt_tokens * CACHED_PERCENT / 100 : 0;
    if (r->stream)
        stats.streams++;
    if (delay_us > 0) {
        c->phase = PHASE_DELAYED;
        timer_set(&timers, &c->timer, now_us() + (uint64_t)delay_us);
    } else {
        begin_answer(c, now_us());
    }
}

/* ---- everything that is not inference ---- */

static void serve_stats(struct connection *c, struct bytes body)
{
    struct buffer text = {0};
    int num_groups = 0;

    (void)body;
    for (int i = 0; i < NUM_GROUPS_MAX; i++)
        if (stats.groups[i] > 0)
            num_groups = i + 1;
    print_to(
        &text,
        "{\"port\":%d,\"requests\":%ld,\"streams\":%ld,\"done\":%ld,\"aborted\":%ld,\"cut\":%ld,"
        "\"open\":%ld,\"connections\":%ld,\"accepted\":%ld,\"events\":%ld,\"body_bytes\":%ld,"
        "\"tokenized\":%ld,\"unknown\":%ld,\"groups\":[",
        own_port, stats.requests, stats.streams, stats.done, stats.aborted, stats.cut, num_open,
        num_connections, stats.accepted, stats.events, stats.body_bytes, stats.tokenized,
        stats.unknown);
    for (int i = 0; i < num_groups; i++)
        print_to(&text, "%s%ld", i > 0 ? "," : "", stats.groups[i]);
    print_to(&text, "]}");
    answer(c, 200, "application/json", &text);
}

static void serve_stats_reset(struct connection *c, struct bytes body)
{
    (void)body;
    memset(&stats, 0, sizeof stats);
    answer_json(c, 200, "{}");
}

/* Applies one NAME=VALUE; false when there is no such name. */
static bool apply_setting(const char *pair)
{
    for (int i = 0; i < NUM_SETTINGS; i++) {
        size_t length = strlen(settings[i].name);

        if (strncmp(pair, settings[i].name, length) == 0 && pair[length] == '=') {
            *settings[i].value = atol(pair + length + 1);
            return true;
        }
    }
    return false;
}

static void serve_control(struct connection *c, struct bytes body)
{
    char *query = strchr(c->request.target, '?');
    char *save = NULL;

    (void)body;
    for (char *pair = strtok_r(query ? query + 1 : NULL, "&", &save); query != NULL && pair != NULL;
         pair = strtok_r(NULL, "&", &save)) {
        if (!apply_setting(pair)) {
            answer_json(
                c, 400,
                "{\"error\":\"unknown setting; known: chunks, interval_us, delay_us, status, "
                "cut_after, reset\"}");
            return;
        }
    }
    answer_json(c, 200, "{}");
}

/*
 * A tokenizer that a cache-aware peer may ask: one id for each 4 bytes of the body, so that equal
 * prefixes have equal ids. /tokenize and vLLM's /render differ in the name of the list only.
 */
static void serve_tokenize(struct connection *c, struct bytes body)
{
    bool render = strncmp(c->request.target, "/v1/", 4) == 0;
    struct buffer text = {0};

    stats.tokenized++;
    if (render)
        print_to(&text, "{\"request_id\":\"render-0\",\"model\":\"%s\",\"token_ids\":[", model);
    else
        print_to(&text, "{\"count\":%zu,\"max_model_len\":131072,\"tokens\":[",
                 body.length / BYTES_PER_TOKEN);
    for (size_t i = 0; i + BYTES_PER_TOKEN <= body.length; i += BYTES_PER_TOKEN) {
        uint32_t word;

        memcpy(&word, body.data + i, sizeof word);
        print_to(&text, "%s%u", i > 0 ? "," : "", (word * 2654435761u >> 15) % 100000);
    }
    print_to(&text, render ? "],\"sampling_params\":{}}" : "]}");
    answer(c, 200, "application/json", &text);
}

static void serve_models(struct connection *c, struct bytes body)
{
    struct buffer text = {0};

    (void)body;
    print_to(&text,
             "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\","
             "\"created\":1790000000,\"owned_by\":\"vllm\",\"root\":\"%s\",\"parent\":null,"
             "\"max_model_len\":131072}]}",
             model, model);
    answer(c, 200, "application/json", &text);
}

static void serve_model_info(struct connection *c, struct bytes body)
{
    struct buffer text = {0};

    (void)body;
    print_to(&text,
             "{\"model_path\":\"%s\",\"served_model_name\":\"%s\",\"tokenizer_path\":\"%s\","
             "\"is_generation\":true,\"tp_size\":1,\"dp_size\":1,\"disaggregation_mode\":\"null\","
             "\"max_total_tokens\":1000000,\"version\":\"0.5.0\"}",
             model, model, model);
    answer(c, 200, "application/json", &text);
}

static void serve_metrics(struct connection *c, struct bytes body)
{
    struct buffer text = {0};

    (void)body;
    print_to(&text,
             "vllm:num_requests_running{model_name=\"%s\"} %ld\n"
             "vllm:num_requests_waiting{model_name=\"%s\"} 0\n"
             "vllm:kv_cache_usage_perc{model_name=\"%s\"} 0\n"
             "vllm:gpu_cache_usage_perc{model_name=\"%s\"} 0\n",
             model, num_open, model, model, model);
    answer(c, 200, "text/plain; version=0.0.4", &text);
}

static void serve_version(struct connection *c, struct bytes body)
{
    (void)body;
    answer_json(c, 200, "{\"version\":\"0.11.0\"}");
}

static void serve_empty(struct connection *c, struct bytes body)
{
    (void)body;
    answer_json(c, 200, "{}");
}

static void serve_unknown(struct connection *c, struct bytes body)
{
    (void)body;
    stats.unknown++;
    answer_json(c, 404, "{\"error\":{\"message\":\"no such path\",\"type\":\"not_found\"}}");
}

static const struct {
    const char *path;
    void (*serve)(struct connection *, struct bytes);
} routes[] = {
    {"/v1/chat/completions", begin_inference},
    {"/v1/completions", begin_inference},
    {"/v1/chat/completions/render", serve_tokenize},
    {"/tokenize", serve_tokenize},
    {"/v1/models", serve_models},
    {"/health", serve_empty},
    {"/stats", serve_stats},
    {"/stats/reset", serve_stats_reset},
    {"/control", serve_control},
    {"/metrics", serve_metrics},
    {"/version", serve_version},
    /* probed by the SGLang family of routers */
    {"/liveness", serve_empty},
    {"/readiness", serve_empty},
    {"/get_server_info", serve_model_info},
    {"/server_info", serve_model_info},
    {"/get_model_info", serve_model_info},
    {"/model_info", serve_model_info},
};

static void serve_request(struct connection *c, struct bytes body)
{
    size_t length = strcspn(c->request.target, "?");

    stats.body_bytes += (long)body.length;
    c->phase = PHASE_FLUSHING;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strlen(routes[i].path) == length &&
            memcmp(routes[i].path, c->request.target, length) == 0) {
            routes[i].serve(c, body);
            return;
        }
    }
    serve_unknown(c, body);
}

/* ---- reading requests ---- */

static void read_header(struct request *r, struct bytes line)
{
    struct bytes value;

    if (header_is(line, "content-length:", &value))
        r->content_length = decimal(value);
    else if (header_is(line, "transfer-encoding:", &value))
        r->chunked = value_begins(value, "chunked");
    else if (header_is(line, "connection:", &value))
        r->keep_alive = !value_begins(value, "close");
    else if (header_is(line, "expect:", &value))
        r->expects_continue = value_begins(value, "100-continue");
}

/* Takes a request's head off the input; false when it is not complete or not acceptable. */
static bool read_head(struct connection *c)
{
    size_t length = head_length(&c->input);
    struct bytes rest = {c->input.data + c->input.start, length};
    struct bytes line = {NULL, 0};

    if (length == 0) {
        if (buffer_length(&c->input) > HEAD_BYTES_MAX)
            connection_lost(c);
        return false;
    }
    c->request = (struct request){.has_head = true, .keep_alive = true};
    cut_line(&rest, &line);
    cut_word(&line, c->request.method, sizeof c->request.method);
    cut_word(&line, c->request.target, sizeof c->request.target);
    while (cut_line(&rest, &line))
        read_header(&c->request, line);
    buffer_consume(&c->input, length);
    if (c->request.content_length > BODY_BYTES_MAX) {
        connection_lost(c);
        return false;
    }
    if (c->request.expects_continue)
        send(c->fd, "HTTP/1.1 100 Continue\r\n\r\n", 25, MSG_NOSIGNAL);
    return true;
}

/* Moves what has come of a chunked body from the input to `body`; true when it is whole. */
static bool read_chunked_body(struct connection *c)
{
    struct bytes rest = buffer_bytes(&c->input);
    struct bytes run;

    while ((run = chunk_reader_next(&c->request.chunks, &rest)).length > 0)
        buffer_append(&c->body, run.data, run.length);
    buffer_consume(&c->input, buffer_length(&c->input) - rest.length);
    if (buffer_length(&c->body) > BODY_BYTES_MAX || c->request.chunks.phase == CHUNK_BROKEN)
        connection_lost(c);
    return c->fd >= 0 && c->request.chunks.phase == CHUNK_ENDED;
}

/* Serves the next request of the input; false when none is complete. */
static bool take_request(struct connection *c)
{
    if (!c->request.has_head && !read_head(c))
        return false;
    if (c->request.chunked) {
        if (!read_chunked_body(c))
            return false;
        c->request.has_head = false;
        serve_request(c, buffer_bytes(&c->body));
        buffer_clear(&c->body);
        return true;
    }
    if (buffer_length(&c->input) < c->request.content_length)
        return false;
    c->request.has_head = false;
    serve_request(c, (struct bytes){c->input.data + c->input.start, c->request.content_length});
    buffer_consume(&c->input, c->request.content_length);
    return true;
}

/* An answer has left completely. */
static void finish_answer(struct connection *c)
{
    if (c->request.inference) {
        stats.done++;
        num_open--;
    }
    c->phase = PHASE_READING;
    if (!c->request.keep_alive)
        connection_close(c);
}

/* Goes as far as the bytes at hand allow: ends answers, begins the next pipelined request. */
static void advance(struct connection *c)
{
    while (c->fd >= 0) {
        if (c->phase == PHASE_FLUSHING && flush(c))
            finish_answer(c);
        if (c->fd < 0 || c->phase != PHASE_READING || !take_request(c))
            return;
    }
}

/* ---- the event loop ---- */

static void on_readable(struct connection *c)
{
    ssize_t received;

    do {
        buffer_reserve(&c->input, READ_BYTES);
        received = recv(c->fd, c->input.data + c->input.end, READ_BYTES, 0);
        if (received > 0)
            c->input.end += (size_t)received;
    } while (received == READ_BYTES);
    if (received == 0 || (received < 0 && errno != EAGAIN) ||
        buffer_length(&c->input) > BODY_BYTES_MAX + HEAD_BYTES_MAX)
        connection_lost(c);
    else
        advance(c);
}

static void on_writable(struct connection *c)
{
    if (c->phase == PHASE_STREAMING && !timer_is_set(&c->timer)) {
        if (flush(c))
            timer_set(&timers, &c->timer, now_us());
        return;
    }
    advance(c);
}

static void on_timers(uint64_t now)
{
    struct timer *first;

    /* A stream that is due again gets a later time than `now`, so this loop ends. */
    while ((first = timers_first(&timers)) != NULL && first->due_us <= now) {
        struct connection *c = timer_owner(first, struct connection, timer);

        timer_cancel(&timers, &c->timer);
        if (c->phase == PHASE_DELAYED)
            begin_answer(c, now);
        else
            stream_event(c, now);
        advance(c);
    }
}

static void accept_connections(int listener)
{
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);

        if (fd < 0)
            return;
        connection_open(fd);
    }
}

/*
 * Whole milliseconds, rounded up: an event may be 1 ms late, and in return the number of wake-ups
 * is bounded by 1,000 per second however many streams there are.
 */
static int timeout_ms(uint64_t now)
{
    const struct timer *first = timers_first(&timers);

    if (first == NULL)
        return -1;
    if (first->due_us <= now + 1)
        return 0;
    return (int)((first->due_us - now + 999) / 1000);
}

static void run(int listener)
{
    struct epoll_event events[EVENTS_PER_TURN];

    for (;;) {
        int length = epoll_wait(epoll_fd, events, EVENTS_PER_TURN, timeout_ms(now_us()));

        for (int i = 0; i < length; i++) {
            struct connection *c = events[i].data.ptr;

            if (c == NULL) {
                accept_connections(listener);
                continue;
            }
            if (c->fd >= 0 && events[i].events & EPOLLOUT)
                on_writable(c);
            if (c->fd >= 0 && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                on_readable(c);
        }
        on_timers(now_us());
        free_closed_connections();
    }
}

static int listen_on(int port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int on = 1;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 4096) != 0)
        die("fake_replica: cannot listen");
    getsockname(fd, (struct sockaddr *)&address, &length);
    own_port = ntohs(address.sin_port);
    return fd;
}

int main(int num_arguments, char **arguments)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    int listener;

    signal(SIGPIPE, SIG_IGN);
    raise_descriptor_limit();
    if (num_arguments > 2)
        model = arguments[2];
    listener = listen_on(num_arguments > 1 ? atoi(arguments[1]) : 0);
    epoll_fd = epoll_create1(0);
    if (epoll_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event) != 0)
        die("fake_replica: epoll");
    printf("listening %d\n", own_port);
    fflush(stdout);
    run(listener);
}
