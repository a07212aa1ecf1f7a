/*
 * A load client for one OpenAI-compatible address: one thread, one epoll, keep-alive connections.
 *
 *     load_client --port N --bodies FILE [--concurrency N] (--count N | --seconds S)
 *                 [--rate R] [--path P] [--drain S]
 *
 * FILE holds requests one after another, each a 32-bit little-endian length and that many bytes.
 * Without --rate the loop is closed: each connection sends its next request when it has the answer
 * to the last. With --rate requests arrive R per second whatever the answers do, and latency counts
 * from the moment at which a request should have been sent, so a stall is not hidden.
 * No request begins after --count or --seconds; --drain more seconds end the run.
 *
 * Prints one line of JSON. Each request that began is counted in exactly one of
 *     ok          status 200 and whole; a stream is whole when it held [DONE] and its framing ended
 *     bad         whole, but another status
 *     truncated   the answer began and did not end as its framing says, or a stream had no [DONE]
 *     errors      no answer: not connected, or closed before the head of an answer was complete
 *     unfinished  under way when the run ended
 * Times are microseconds: latency_us (of ok requests), ttft_us (to the first event of a stream) and
 * chunk_delay_us (from the stamp that fake_replica put into an event to its reading here).
 */
#define _GNU_SOURCE
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    READ_BYTES = 262144,
    HEAD_BYTES_MAX = 65536,
    EVENTS_PER_TURN = 1024,
    STATUS_MAX = 600,
    STAMP_DIGITS = 20,
    IDLE_TURN_MS = 100,
    /* A server that refuses everything would be asked for ever: give up instead. */
    ERRORS_MAX = 100000,
    SAMPLES_MAX = 1 << 24,
};

enum state { STATE_CLOSED, STATE_CONNECTING, STATE_IDLE, STATE_SENDING, STATE_RECEIVING };

enum framing { FRAMING_LENGTH, FRAMING_CHUNKED, FRAMING_UNTIL_CLOSE };

struct answer {
    bool has_head;
    int status;
    bool is_stream, close_after;
    enum framing framing;
    uint64_t bytes_left; /* of FRAMING_LENGTH */
    struct chunk_reader chunks;
    long num_events;
    bool has_done;
    uint64_t first_event_us;
};

struct connection {
    int fd;
    enum state state;
    struct bytes body;
    char head[512];
    size_t head_length, sent;
    uint64_t began_us;   /* in an open loop: when it should have begun */
    struct buffer input; /* the head of the answer, until it is whole */
    struct buffer line;  /* the beginning of an SSE line that came in pieces */
    struct answer answer;
};

struct samples {
    const char *name;
    uint32_t *values;
    size_t length, capacity;
};

static struct {
    int port, concurrency;
    const char *bodies_path, *path;
    long count;
    double seconds, rate, drain_seconds;
} options = {
    .concurrency = 64,
    .path = "/v1/chat/completions",
    .drain_seconds = 30,
};

static struct {
    struct bytes *items;
    size_t length, next;
} bodies;

static struct {
    long ok, bad, truncated, errors, unfinished, reconnects, events;
    long statuses[STATUS_MAX];
} totals;

static struct samples latency = {.name = "latency_us"};
static struct samples ttft = {.name = "ttft_us"};
static struct samples chunk_delay = {.name = "chunk_delay_us"};

static int epoll_fd;
static struct connection *connections;
static struct connection **idle; /* a stack of connections that could send, for the open loop */
static size_t num_idle;
static long num_begun, num_in_flight;
static uint64_t run_began_us, last_begin_us, hard_end_us;

/* ---- samples ---- */

static void sample(struct samples *s, uint64_t value_us)
{
    if (s->length == SAMPLES_MAX)
        return;
    if (s->length == s->capacity) {
        s->capacity = s->capacity ? s->capacity * 2 : 4096;
        s->values = checked(realloc(s->values, s->capacity * sizeof *s->values));
    }
    s->values[s->length++] = value_us > UINT32_MAX ? UINT32_MAX : (uint32_t)value_us;
}

static int compare_values(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;

    return (a > b) - (a < b);
}

static void print_samples(struct samples *s)
{
    double sum = 0;
    size_t n = s->length;

    if (n == 0) {
        printf(",\"%s\":null", s->name);
        return;
    }
    qsort(s->values, n, sizeof *s->values, compare_values);
    for (size_t i = 0; i < n; i++)
        sum += s->values[i];
    printf(",\"%s\":{\"count\":%zu,\"mean\":%.1f,\"p50\":%u,\"p90\":%u,\"p99\":%u,\"max\":%u}",
           s->name, n, sum / (double)n, s->values[n / 2], s->values[n * 90 / 100],
           s->values[n * 99 / 100], s->values[n - 1]);
}

/* ---- which request is next ---- */

static bool is_open_loop(void)
{
    return options.rate > 0;
}

/* When request number `index` of an open loop should begin. */
static uint64_t arrival_us(long index)
{
    return run_began_us + (uint64_t)((double)index * 1e6 / options.rate);
}

/* Whether one more request belongs to the run. */
static bool may_begin(uint64_t now)
{
    if (options.count > 0)
        return num_begun < options.count;
    return is_open_loop() ? arrival_us(num_begun) < last_begin_us : now < last_begin_us;
}

static bool is_due(uint64_t now)
{
    return may_begin(now) && (!is_open_loop() || arrival_us(num_begun) <= now);
}

/* ---- connections ---- */

static void watch(struct connection *c, uint32_t events, int operation)
{
    struct epoll_event event = {.events = events, .data.ptr = c};

    epoll_ctl(epoll_fd, operation, c->fd, &event);
}

static void connect_to_server(struct connection *c)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)options.port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };

    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (c->fd < 0)
        die("load_client: socket");
    set_nodelay(c->fd);
    /* Whatever connect() says, the outcome is read from the socket when it becomes writable. */
    (void)!connect(c->fd, (struct sockaddr *)&address, sizeof address);
    c->state = STATE_CONNECTING;
    watch(c, EPOLLOUT, EPOLL_CTL_ADD);
}

static void forget_idle(const struct connection *c)
{
    for (size_t i = 0; i < num_idle; i++) {
        if (idle[i] == c) {
            idle[i] = idle[--num_idle];
            return;
        }
    }
}

static void disconnect(struct connection *c)
{
    if (c->state == STATE_IDLE)
        forget_idle(c);
    close(c->fd);
    c->fd = -1;
    c->state = STATE_CLOSED;
}

static void reconnect(struct connection *c)
{
    disconnect(c);
    if (!may_begin(now_us()) || totals.errors >= ERRORS_MAX)
        return;
    totals.reconnects++;
    connect_to_server(c);
}

/* ---- sending ---- */

/* Sends what is left of head and body in one call, so that a small request is one segment. */
static ssize_t send_rest(struct connection *c)
{
    struct iovec parts[2];
    struct msghdr message = {.msg_iov = parts};
    size_t body_sent = c->sent > c->head_length ? c->sent - c->head_length : 0;

    if (c->sent < c->head_length)
        parts[message.msg_iovlen++] = (struct iovec){c->head + c->sent, c->head_length - c->sent};
    parts[message.msg_iovlen++] =
        (struct iovec){(char *)c->body.data + body_sent, c->body.length - body_sent};
    return sendmsg(c->fd, &message, MSG_NOSIGNAL);
}

static void continue_sending(struct connection *c)
{
    while (c->sent < c->head_length + c->body.length) {
        ssize_t sent = send_rest(c);

        if (sent < 0) {
            /* A reset shows when reading; an answer that came before it is still to be read. */
            watch(c, errno == EAGAIN ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
            return;
        }
        c->sent += (size_t)sent;
    }
    if (c->state == STATE_SENDING) {
        c->state = STATE_RECEIVING;
        watch(c, EPOLLIN, EPOLL_CTL_MOD);
    }
}

static void begin_request(struct connection *c, uint64_t began_us)
{
    c->body = bodies.items[bodies.next];
    bodies.next = (bodies.next + 1) % bodies.length;
    c->head_length = (size_t)snprintf(
        c->head, sizeof c->head,
        "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: load-client\r\nAccept: */*\r\n"
        "Content-Type: application/json\r\nAuthorization: Bearer sk-bench\r\n"
        "Content-Length: %zu\r\n\r\n",
        options.path, options.port, c->body.length);
    c->sent = 0;
    c->began_us = began_us;
    c->answer = (struct answer){0};
    buffer_clear(&c->input);
    buffer_clear(&c->line);
    c->state = STATE_SENDING;
    num_begun++;
    num_in_flight++;
    continue_sending(c);
}

static void become_idle(struct connection *c)
{
    c->state = STATE_IDLE;
    if (!is_open_loop() && may_begin(now_us()))
        begin_request(c, now_us());
    else
        idle[num_idle++] = c;
}

static void begin_due_requests(uint64_t now)
{
    while (is_open_loop() && num_idle > 0 && is_due(now)) {
        struct connection *c = idle[--num_idle];

        begin_request(c, arrival_us(num_begun));
    }
}

/* ---- receiving ---- */

static bool is_in_flight(const struct connection *c)
{
    return c->state == STATE_SENDING || c->state == STATE_RECEIVING;
}

/* Counts a request that has ended; `whole` says whether the answer's framing ended too. */
static void count_answer(const struct connection *c, bool whole)
{
    const struct answer *a = &c->answer;

    num_in_flight--;
    totals.events += a->num_events;
    if (a->has_head)
        totals.statuses[a->status]++;
    if (!a->has_head)
        totals.errors++;
    else if (!whole || (a->status == 200 && a->is_stream && !a->has_done))
        totals.truncated++;
    else if (a->status != 200)
        totals.bad++;
    else {
        totals.ok++;
        sample(&latency, now_us() - c->began_us);
    }
}

static void sample_stamp(struct bytes event, uint64_t now)
{
    static const char *const keys[] = {"\"content\":\"", "\"text\":\""};

    for (int i = 0; i < 2; i++) {
        const char *key = memmem(event.data, event.length, keys[i], strlen(keys[i]));
        struct bytes digits;

        if (key == NULL)
            continue;
        digits.data = key + strlen(keys[i]);
        digits.length = STAMP_DIGITS;
        if (digits.data + STAMP_DIGITS < event.data + event.length && digits.data[0] == '0' &&
            digits.data[STAMP_DIGITS] == '"' && decimal(digits) <= now)
            sample(&chunk_delay, now - decimal(digits));
        return;
    }
}

static void read_sse_line(struct connection *c, struct bytes line, uint64_t now)
{
    struct bytes data;

    if (line.length > 0 && line.data[line.length - 1] == '\r')
        line.length--;
    if (!header_is(line, "data:", &data))
        return;
    if (c->answer.first_event_us == 0) {
        c->answer.first_event_us = now;
        sample(&ttft, now - c->began_us);
    }
    if (starts_with(data, "[DONE]")) {
        c->answer.has_done = true;
        return;
    }
    c->answer.num_events++;
    sample_stamp(data, now);
}

/* Splits a stream into lines; only a line that came in pieces is copied. */
static void read_sse(struct connection *c, struct bytes run, uint64_t now)
{
    while (run.length > 0) {
        const char *newline = memchr(run.data, '\n', run.length);
        struct bytes line = {run.data, newline ? (size_t)(newline - run.data) : run.length};

        if (newline == NULL || buffer_length(&c->line) > 0)
            buffer_append(&c->line, line.data, line.length);
        if (newline == NULL)
            return;
        read_sse_line(c, buffer_length(&c->line) > 0 ? buffer_bytes(&c->line) : line, now);
        buffer_clear(&c->line);
        run.data += line.length + 1;
        run.length -= line.length + 1;
    }
}

static void read_payload(struct connection *c, struct bytes run, uint64_t now)
{
    if (c->answer.is_stream)
        read_sse(c, run, now);
}

static void read_answer_header(struct answer *a, struct bytes line)
{
    struct bytes value;

    if (header_is(line, "content-length:", &value)) {
        if (a->framing != FRAMING_CHUNKED)
            a->framing = FRAMING_LENGTH;
        a->bytes_left = decimal(value);
    } else if (header_is(line, "transfer-encoding:", &value)) {
        a->framing = FRAMING_CHUNKED;
    } else if (header_is(line, "content-type:", &value)) {
        a->is_stream = value_begins(value, "text/event-stream");
    } else if (header_is(line, "connection:", &value)) {
        a->close_after = value_begins(value, "close");
    }
}

/*
 * Takes the head of an answer off `input`; false while it is not complete. Interim answers (1xx)
 * are skipped. What is not HTTP becomes status 0, which is neither ok nor connected any longer.
 */
static bool read_answer_head(struct connection *c, struct bytes *input)
{
    struct answer *a = &c->answer;
    size_t held = buffer_length(&c->input);
    size_t length;
    struct bytes head, line;

    buffer_append(&c->input, input->data, input->length);
    length = head_length(&c->input);
    if (length == 0) {
        input->length = 0;
        return false;
    }
    input->data += length - held;
    input->length -= length - held;
    head = (struct bytes){c->input.data + c->input.start, length};
    *a = (struct answer){.framing = FRAMING_UNTIL_CLOSE};
    if (cut_line(&head, &line) && starts_with(line, "HTTP/1.") && line.length >= 12)
        a->status = (int)decimal((struct bytes){line.data + 9, 3});
    while (cut_line(&head, &line))
        read_answer_header(a, line);
    if (a->status >= STATUS_MAX)
        a->status = 0;
    buffer_clear(&c->input);
    a->has_head = a->status / 100 != 1;
    return a->has_head;
}

/* Takes body bytes off `input`; true when the answer is complete. */
static bool read_answer_body(struct connection *c, struct bytes *input, uint64_t now)
{
    struct answer *a = &c->answer;
    struct bytes run = *input;

    if (a->framing == FRAMING_CHUNKED) {
        while ((run = chunk_reader_next(&a->chunks, input)).length > 0)
            read_payload(c, run, now);
        return chunk_reader_is_over(&a->chunks);
    }
    if (a->framing == FRAMING_LENGTH && run.length > a->bytes_left)
        run.length = (size_t)a->bytes_left;
    read_payload(c, run, now);
    input->data += run.length;
    input->length -= run.length;
    a->bytes_left -= a->framing == FRAMING_LENGTH ? run.length : 0;
    return a->framing == FRAMING_LENGTH && a->bytes_left == 0;
}

static void finish_answer(struct connection *c, struct bytes rest)
{
    bool broken = c->answer.chunks.phase == CHUNK_BROKEN;
    bool unusable;

    count_answer(c, !broken);
    /* An answer that came before the whole request was sent, or more bytes than were asked for. */
    unusable = broken || c->sent < c->head_length + c->body.length || rest.length > 0;
    if (unusable || c->answer.close_after)
        reconnect(c);
    else
        become_idle(c);
}

/* True when the answer became complete and the connection went on to something else. */
static bool read_answer(struct connection *c, struct bytes input, uint64_t now)
{
    while (!c->answer.has_head)
        if (!read_answer_head(c, &input) && input.length == 0)
            return false;
    if (!read_answer_body(c, &input, now))
        return false;
    finish_answer(c, input);
    return true;
}

/* The server closed the connection, or it broke. */
static void on_closed(struct connection *c)
{
    if (is_in_flight(c))
        count_answer(c, c->answer.has_head && c->answer.framing == FRAMING_UNTIL_CLOSE);
    reconnect(c);
}

static void on_readable(struct connection *c)
{
    static char bytes[READ_BYTES];
    ssize_t received;

    do {
        received = recv(c->fd, bytes, sizeof bytes, 0);
        if (received > 0 && is_in_flight(c) &&
            read_answer(c, (struct bytes){bytes, (size_t)received}, now_us()))
            return;
    } while (received == sizeof bytes);
    if (received == 0 || (received < 0 && errno != EAGAIN) ||
        buffer_length(&c->input) > HEAD_BYTES_MAX)
        on_closed(c);
}

static void on_connected(struct connection *c)
{
    int error = 0;
    socklen_t length = sizeof error;

    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error == 0) {
        watch(c, EPOLLIN, EPOLL_CTL_MOD);
        become_idle(c);
        return;
    }
    /* A request would have been sent here: count it, or a dead server would look idle. */
    num_begun++;
    totals.errors++;
    reconnect(c);
}

static void on_event(struct connection *c, uint32_t events)
{
    if (c->state == STATE_CONNECTING) {
        on_connected(c);
        return;
    }
    if (events & EPOLLOUT && c->state == STATE_SENDING)
        continue_sending(c);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        on_readable(c);
}

/* ---- the run ---- */

/* Waits for events, and in an open loop no longer than until the next arrival. */
static int wait_for_events(struct epoll_event *events)
{
    struct pollfd ready = {.fd = epoll_fd, .events = POLLIN};
    struct timespec timeout = {0, IDLE_TURN_MS * 1000000L};
    uint64_t now = now_us();

    if (!is_open_loop())
        return epoll_wait(epoll_fd, events, EVENTS_PER_TURN, IDLE_TURN_MS);
    if (num_idle > 0 && may_begin(now)) {
        uint64_t wait_us = arrival_us(num_begun) > now ? arrival_us(num_begun) - now : 0;

        if (wait_us < IDLE_TURN_MS * 1000u)
            timeout.tv_nsec = (long)wait_us * 1000;
    }
    /* epoll_wait() counts in milliseconds, which is too coarse for arrivals. */
    if (ppoll(&ready, 1, &timeout, NULL) <= 0)
        return 0;
    return epoll_wait(epoll_fd, events, EVENTS_PER_TURN, 0);
}

static void run(void)
{
    struct epoll_event events[EVENTS_PER_TURN];
    uint64_t now = run_began_us;

    for (int i = 0; i < options.concurrency; i++)
        connect_to_server(&connections[i]);
    while (now < hard_end_us && totals.errors < ERRORS_MAX &&
           (num_in_flight > 0 || may_begin(now))) {
        int length = wait_for_events(events);

        for (int i = 0; i < length; i++)
            on_event(events[i].data.ptr, events[i].events);
        now = now_us();
        begin_due_requests(now);
    }
    totals.unfinished = num_in_flight;
}

static void print_result(void)
{
    double seconds = (double)(now_us() - run_began_us) / 1e6;
    const char *comma = "";

    printf("{\"ok\":%ld,\"bad\":%ld,\"truncated\":%ld,\"errors\":%ld,\"unfinished\":%ld,"
           "\"reconnects\":%ld,\"seconds\":%.3f,\"rps\":%.1f,\"chunks\":%ld,\"chunks_per_second\":%"
           ".1f",
           totals.ok, totals.bad, totals.truncated, totals.errors, totals.unfinished,
           totals.reconnects, seconds, (double)totals.ok / seconds, totals.events,
           (double)totals.events / seconds);
    print_samples(&latency);
    print_samples(&ttft);
    print_samples(&chunk_delay);
    printf(",\"statuses\":{");
    for (int i = 0; i < STATUS_MAX; i++) {
        if (totals.statuses[i] > 0) {
            printf("%s\"%d\":%ld", comma, i, totals.statuses[i]);
            comma = ",";
        }
    }
    printf("}}\n");
}

/* ---- the command line ---- */

/* The file stays in memory as it is; the bodies point into it. */
static void load_bodies(const char *path)
{
    int fd = open(path, O_RDONLY);
    struct stat info;
    struct bytes rest;
    size_t capacity = 0;
    uint32_t length;

    if (fd < 0 || fstat(fd, &info) != 0)
        die(path);
    rest.length = (size_t)info.st_size;
    rest.data = checked(malloc(rest.length + 1));
    for (size_t got = 0; got < rest.length;) {
        ssize_t n = read(fd, (char *)rest.data + got, rest.length - got);

        if (n <= 0)
            die(path);
        got += (size_t)n;
    }
    close(fd);
    while (rest.length >= sizeof length) {
        memcpy(&length, rest.data, sizeof length);
        rest.data += sizeof length;
        rest.length -= sizeof length;
        if (length > rest.length)
            break;
        if (bodies.length == capacity) {
            capacity = capacity ? capacity * 2 : 1024;
            bodies.items = checked(realloc(bodies.items, capacity * sizeof *bodies.items));
        }
        bodies.items[bodies.length++] = (struct bytes){rest.data, length};
        rest.data += length;
        rest.length -= length;
    }
}

static void usage(void)
{
    fputs("load_client --port N --bodies FILE [--concurrency N] (--count N | --seconds S)\n"
          "            [--rate R] [--path P] [--drain S]\n",
          stderr);
    exit(2);
}

static void read_options(int num_arguments, char **arguments)
{
    static const struct option known[] = {
        {"port", required_argument, NULL, 'p'},
        {"bodies", required_argument, NULL, 'b'},
        {"count", required_argument, NULL, 'n'},
        {"concurrency", required_argument, NULL, 'c'},
        {"seconds", required_argument, NULL, 's'},
        {"rate", required_argument, NULL, 'r'},
        {"path", required_argument, NULL, 'u'},
        {"drain", required_argument, NULL, 'd'},
        {NULL, 0, NULL, 0},
    };
    int option;

    while ((option = getopt_long(num_arguments, arguments, "", known, NULL)) != -1) {
        switch (option) {
        case 'p': options.port = atoi(optarg); break;
        case 'b': options.bodies_path = optarg; break;
        case 'c': options.concurrency = atoi(optarg); break;
        case 'n': options.count = atol(optarg); break;
        case 's': options.seconds = atof(optarg); break;
        case 'r': options.rate = atof(optarg); break;
        case 'u': options.path = optarg; break;
        case 'd': options.drain_seconds = atof(optarg); break;
        default: usage();
        }
    }
    if (options.port <= 0 || options.bodies_path == NULL || options.concurrency <= 0 ||
        strlen(options.path) > 128 || (options.count > 0) == (options.seconds > 0))
        usage();
}

/* How long a run may take at most: a count has no other end when the server answers nothing. */
static double run_seconds_max(void)
{
    static const double count_seconds_max = 300;

    return (options.count > 0 ? count_seconds_max : options.seconds) + options.drain_seconds;
}

int main(int num_arguments, char **arguments)
{
    signal(SIGPIPE, SIG_IGN);
    raise_descriptor_limit();
    read_options(num_arguments, arguments);
    load_bodies(options.bodies_path);
    if (bodies.length == 0) {
        fprintf(stderr, "load_client: %s holds no request\n", options.bodies_path);
        return 2;
    }
    connections = checked(calloc((size_t)options.concurrency, sizeof *connections));
    idle = checked(calloc((size_t)options.concurrency, sizeof(struct connection *)));
    epoll_fd = epoll_create1(0);
    run_began_us = now_us();
    last_begin_us = run_began_us + (uint64_t)(options.seconds * 1e6);
    hard_end_us = run_began_us + (uint64_t)(run_seconds_max() * 1e6);
    run();
    print_result();
    return 0;
}
