/* loadgen - one-thread load generator for request/reply protocols on loopback; see README.md.
 *
 * Build: cc -O2 -o loadgen loadgen.c        Linux, libc only.
 * Model: each connection writes a batch of P requests in one send, waits for all replies, repeats
 *        (redis-benchmark's model); latency is from batch written to last reply. The ops push and
 *        fanout measure a request written on one connection to its message seen on another.
 *        Streams: ids and offsets of appends must ascend and the last ones are read back at the
 *        end; reads walk over records that were appended before, and are compared with them.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum op { PUT, PING, READ, LPUSH, RPOP, PUSH, FANOUT };
enum { RECV_ROOM = 65536, NAME_MAX_BYTES = 128, HIST_SUB = 32, HIST_SIZE = 60 * HIST_SUB };
enum { P2P_PING = 0, P2P_PONG, P2P_MSG, P2P_MSG_ACK, P2P_PUT = 6, P2P_PUT_ACK, P2P_NACK = 255 };
enum { ROLE_PRODUCER = 1, ROLE_CONSUMER, ROLE_BOTH };
enum { FIRST_MS = 10000000, MS_DIGITS = 8, ID_BYTES = 48, CHECKED_MAX = 16 };

typedef struct { char *bytes; size_t n, room; } Buf;

typedef struct Conn {
  int fd, index, receives;     /* receives: the consuming half of push and fanout */
  Buf in, out;                 /* out holds only what a send did not take */
  size_t parsed, sent;
  int wants_write;
  Buf batch;                   /* built once; a P2P batch gets fresh keys and ids each time */
  size_t puts_bytes, ack_bytes, *key_at, *id_at;
  unsigned char (*ids)[8];     /* messages of the last batch, deleted with the next one (-A) */
  int id_count;
  uint32_t next_key;
  int outstanding, batch_errs, awaiting;
  int next_block, due_block;   /* of what a read walks over: asked for next, answered next */
  uint64_t last_ms, last_seq;  /* of the last append; an offset is a seq */
  char last_id[ID_BYTES];      /* the same, as it came; empty before the first one */
  uint64_t fired_ns;
  struct Group *group;
} Conn;

typedef struct Group { Conn *sender, *receivers; int size, awaited, acked; } Group;

typedef struct {
  const char *name;
  unsigned ops;                                            /* bit set of enum op */
  void (*setup)(Conn *c);                                  /* on a blocking socket */
  void (*build)(Conn *c, int i);                           /* appends request i to the batch */
  size_t (*refresh)(Conn *c);                              /* bytes of the batch to send now */
  size_t (*take)(Conn *c, unsigned char *p, size_t n);     /* eats one reply; 0: incomplete */
  void (*verify)(Conn *c);                                 /* reads back, on a blocking socket */
} Protocol;

static struct {
  const char *proto, *host, *op, *key, *path;
  int port, connections, pipeline, records, bytes, keys, ttl_s, acks, server_pid, durability,
      preloaded;
  double run_s, warm_s;
} opt = {.proto = "p2p", .host = "127.0.0.1", .op = "put", .key = "lab", .path = "/lab",
         .connections = 1, .pipeline = 1, .records = 1, .bytes = 100, .keys = 1, .ttl_s = 60,
         .durability = -1, .preloaded = 10000, .run_s = 3, .warm_s = 0.3};

static const Protocol *protocol;
static enum op op;
static int masked, poller, conn_count, measuring;   /* masked: WebSocket frames */
static int replies_per_request = 1;
static Conn *conns;
static char *payload;
static Buf payload_base64;
static uint64_t done, deliveries, errs, duplicates, checked;
static char last_error[512];

static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fputs("loadgen: ", stderr);
  vfprintf(stderr, format, args);
  fprintf(stderr, "%s%s\n", *last_error ? "; last error: " : "", last_error);
  exit(1);
}

static void *must(void *memory) {
  if (!memory) die("out of memory");
  return memory;
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Buffers */

static void put_bytes(Buf *to, const void *p, size_t n) {
  if (to->n + n > to->room) {
    while (to->n + n > to->room) to->room = to->room ? to->room * 2 : 4096;
    to->bytes = must(realloc(to->bytes, to->room));
  }
  memcpy(to->bytes + to->n, p, n);
  to->n += n;
}
static void put_text(Buf *to, const char *s) { put_bytes(to, s, strlen(s)); }
static void put_u8(Buf *to, unsigned v) { unsigned char b = v; put_bytes(to, &b, 1); }
static void put_u16(Buf *to, unsigned v) { uint16_t b = htons(v); put_bytes(to, &b, 2); }
static void put_u32(Buf *to, uint32_t v) { v = htonl(v); put_bytes(to, &v, 4); }
static uint32_t be32(const unsigned char *p) { uint32_t v; memcpy(&v, p, 4); return ntohl(v); }

static void __attribute__((format(printf, 2, 3))) put_format(Buf *to, const char *format, ...) {
  char line[512];
  va_list args;
  va_start(args, format);
  int n = vsnprintf(line, sizeof line, format, args);
  va_end(args);
  if (n < 0 || (size_t)n >= sizeof line) die("a request line is too long");
  put_bytes(to, line, n);
}

/* Histogram: exact below 32 ns, then 32 steps to an octave (3 %) */

static uint64_t hist[HIST_SIZE], hist_count, hist_max;

static void hist_add(uint64_t ns) {
  int shift = ns < HIST_SUB ? -1 : 58 - __builtin_clzll(ns);
  size_t slot = shift < 0 ? ns : (size_t)(shift + 1) * HIST_SUB + ((ns >> shift) & (HIST_SUB - 1));
  hist[slot < HIST_SIZE ? slot : HIST_SIZE - 1]++;
  hist_count++;
  if (ns > hist_max) hist_max = ns;
}

static double hist_quantile_us(double q) {
  uint64_t wanted = (uint64_t)(q * hist_count), seen = 0;
  for (int slot = 0; slot < HIST_SIZE; slot++) {
    seen += hist[slot];
    if (seen <= wanted) continue;
    int shift = slot / HIST_SUB - 1;
    if (shift < 0) return slot / 1e3;
    return (double)((uint64_t)(HIST_SUB + slot % HIST_SUB) << shift) / 1e3;
  }
  return hist_max / 1e3;
}

/* Output */

static void watch(Conn *c, int wants_write) {
  struct epoll_event event = {EPOLLIN | (wants_write ? EPOLLOUT : 0), {.ptr = c}};
  if (c->wants_write == wants_write) return;
  epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
  c->wants_write = wants_write;
}

static size_t send_some(Conn *c, const char *p, size_t n) {
  size_t sent = 0;
  while (sent < n) {
    ssize_t r = send(c->fd, p + sent, n - sent, MSG_NOSIGNAL);
    if (r < 0 && errno == EAGAIN) break;
    if (r < 0) die("send: %s", strerror(errno));
    sent += r;
  }
  return sent;
}

static void flush_out(Conn *c) {
  c->sent += send_some(c, c->out.bytes + c->sent, c->out.n - c->sent);
  if (c->sent == c->out.n) c->sent = c->out.n = 0;
  watch(c, c->out.n > 0);
}

static void send_bytes(Conn *c, const char *p, size_t n) {
  size_t sent = c->out.n ? 0 : send_some(c, p, n);
  if (sent == n) return;
  put_bytes(&c->out, p + sent, n - sent);
  watch(c, 1);
}

/* The model: batches of one connection, or a sender with its receivers */

static void note_text(const void *text, size_t n) {
  const unsigned char *p = text;
  size_t at = 0;
  for (; at < n && at < 60; at++)
    last_error[at] = p[at] < 32 || p[at] > 126 || p[at] == '"' || p[at] == '\\' ? '.' : p[at];
  last_error[at] = 0;
}

static void note_hex(const unsigned char *p, size_t n) {
  for (size_t i = 0; i < n && i < 60; i++) sprintf(last_error + 3 * i, "%02x ", p[i]);
}

static void fire(Conn *c) {
  size_t n = protocol->refresh ? protocol->refresh(c) : c->batch.n;
  c->outstanding = opt.pipeline * replies_per_request;
  c->batch_errs = 0;
  c->fired_ns = now_ns();
  send_bytes(c, c->batch.bytes, n);
}

static void fire_group(Group *g) {
  g->awaited = g->size;
  g->acked = 0;
  for (int i = 0; i < g->size; i++) g->receivers[i].awaiting = 1;
  fire(g->sender);
}

static void on_group_reply(Group *g, int ok) {
  g->acked = 1;
  if (!ok) { /* refused: its message will never come */
    g->awaited = 0;
    for (int i = 0; i < g->size; i++) g->receivers[i].awaiting = 0;
  }
  if (!g->awaited) fire_group(g);
}

/* A receiver saw its message. */
static void on_message(Conn *c) {
  Group *g = c->group;
  if (!c->awaiting) {
    duplicates++; /* at least once: allowed, but told */
    return;
  }
  c->awaiting = 0;
  g->awaited--;
  if (measuring) {
    hist_add(now_ns() - g->sender->fired_ns);
    deliveries++;
    if (!g->awaited) done++;
  }
  if (!g->awaited && g->acked) fire_group(g);
}

/* A requester got one reply. */
static void on_reply(Conn *c, int ok) {
  if (!ok) {
    errs++;
    c->batch_errs++;
  }
  if (--c->outstanding > 0) return;
  if (c->group) {
    on_group_reply(c->group, ok);
    return;
  }
  if (measuring) {
    hist_add(now_ns() - c->fired_ns);
    if (c->batch_errs < opt.pipeline) done += opt.pipeline - c->batch_errs;
  }
  fire(c);
}

/* Blocking set-up */

static void setup_send(Conn *c, const Buf *b) {
  if (send(c->fd, b->bytes, b->n, MSG_NOSIGNAL) != (ssize_t)b->n) die("set-up: send failed");
}

static void setup_recv(Conn *c, void *to, size_t n) {
  for (char *p = to; n;) {
    ssize_t r = recv(c->fd, p, n, 0);
    if (r <= 0) die("set-up: %s", r ? strerror(errno) : "connection closed");
    p += r;
    n -= r;
  }
}

static void setup_ask(Conn *c, const Buf *request, const char *until, char *reply, size_t room) {
  setup_send(c, request);
  for (size_t n = 0; n < room - 1;) {
    setup_recv(c, reply + n++, 1);
    reply[n] = 0;
    if (n >= strlen(until) && !strcmp(reply + n - strlen(until), until)) return;
  }
  die("set-up: the reply is too long");
}

static const char *channel_name(const Conn *c) {
  static char name[NAME_MAX_BYTES];
  snprintf(name, sizeof name, "%s%d", opt.key, c->index % opt.keys);
  return name;
}

/* P2P buffer protocol, length-prefixed or as WebSocket messages */

static const unsigned char MASK[4] = {0x5a, 0xa5, 0x3c, 0xc3};

static void ws_frame(Buf *to, unsigned opcode, const void *p, size_t n) {
  put_u8(to, 0x80 | opcode);
  if (n < 126) put_u8(to, 0x80 | n);
  else if (n < 65536) { put_u8(to, 0x80 | 126); put_u16(to, n); }
  else { put_u8(to, 0x80 | 127); put_u32(to, 0); put_u32(to, n); }
  put_bytes(to, MASK, 4);
  size_t at = to->n;
  put_bytes(to, p, n);
  for (size_t i = 0; i < n; i++) to->bytes[at + i] ^= MASK[i & 3];
}

static void p2p_frame(Buf *to, const void *packet, size_t n) {
  if (masked) { ws_frame(to, 2, packet, n); return; }
  put_u32(to, n);
  put_bytes(to, packet, n);
}

static void p2p_send(Conn *c, const void *packet, size_t n) {
  static Buf frame;
  frame.n = 0;
  p2p_frame(&frame, packet, n);
  send_bytes(c, frame.bytes, frame.n);
}

static void ws_upgrade(Conn *c) {
  Buf request = {0};
  char reply[4096];
  put_format(&request, "GET /v1/channels/%s HTTP/1.1\r\nHost: %s:%d\r\n", channel_name(c),
             opt.host, opt.port);
  put_text(&request, "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                     "Sec-WebSocket-Protocol: p2pbuf.v1.hello\r\n\r\n");
  setup_ask(c, &request, "\r\n\r\n", reply, sizeof reply);
  if (strncmp(reply, "HTTP/1.1 101", 12)) die("upgrade refused: %.40s", reply);
  free(request.bytes);
}

static size_t p2p_setup_packet(Conn *c, unsigned char *packet, size_t room) {
  unsigned char head[4];
  size_t n;
  if (masked) {
    setup_recv(c, head, 2);
    n = head[1] & 127;
    if (n == 126) {
      setup_recv(c, head, 2);
      n = head[0] << 8 | head[1];
    }
  } else {
    setup_recv(c, head, 4);
    n = be32(head);
  }
  if (n > room) die("set-up: a packet of %zu bytes", n);
  setup_recv(c, packet, n);
  return n;
}

/* READY: 83 flags TLV*; the mode in tag 0e and the durability in tag 81 must be the wanted ones. */
static void p2p_ready(const unsigned char *p, size_t n) {
  int durability = -1;
  if (n < 2 || p[0] != 0x83) {
    note_hex(p, n);
    die("HELLO was not answered by READY");
  }
  for (size_t at = 2; at + 3 <= n;) {
    size_t size = p[at + 1] << 8 | p[at + 2];
    if (p[at] == 0x0e && size == 1 && at + 4 <= n && op == FANOUT && p[at + 3] != 1)
      die("the channel is in mode %d, not fanout", p[at + 3]);
    if (p[at] == 0x81 && size == 1 && at + 4 <= n) durability = p[at + 3];
    at += 3 + size;
  }
  if (opt.durability >= 0 && durability != opt.durability)
    die("the server promises durability %d, not %d", durability, opt.durability);
}

/* HELLO: 80 "P2PB" vmin vmax flags TLV* (channel, role, and the mode for fanout). */
static void p2p_setup(Conn *c) {
  Buf hello = {0}, frame = {0};
  unsigned char ready[4096];
  const char *name = channel_name(c);
  int role = c->receives ? ROLE_CONSUMER : opt.acks ? ROLE_BOTH : ROLE_PRODUCER;
  if (masked) ws_upgrade(c);
  put_u8(&hello, 0x80);
  put_text(&hello, "P2PB\1\1");
  put_u8(&hello, c->receives ? 1 : 0);
  put_u8(&hello, 0x01); put_u16(&hello, strlen(name)); put_text(&hello, name);
  put_u8(&hello, 0x04); put_u16(&hello, 1); put_u8(&hello, role);
  if (op == FANOUT) { put_u8(&hello, 0x0e); put_u16(&hello, 1); put_u8(&hello, 1); }
  p2p_frame(&frame, hello.bytes, hello.n);
  setup_send(c, &frame);
  p2p_ready(ready, p2p_setup_packet(c, ready, sizeof ready));
  free(hello.bytes);
  free(frame.bytes);
}

static void p2p_build_acks(Conn *c) {
  static const unsigned char ack[9] = {P2P_MSG_ACK};
  c->puts_bytes = c->batch.n;
  for (int i = 0; opt.acks && i < opt.pipeline; i++) {
    p2p_frame(&c->batch, ack, sizeof ack);
    c->id_at[i] = c->batch.n - 8;
  }
  c->ack_bytes = (c->batch.n - c->puts_bytes) / opt.pipeline;
}

static void p2p_build(Conn *c, int i) {
  Buf packet = {0};
  if (!c->key_at) {
    c->key_at = must(calloc(opt.pipeline, sizeof *c->key_at));
    c->id_at = must(calloc(opt.pipeline, sizeof *c->id_at));
    c->ids = must(calloc(opt.pipeline, sizeof *c->ids));
    /* Connections may share a channel: each has its own stretch of the 32-bit keys. */
    uint32_t stretch = UINT32_MAX / opt.connections;
    c->next_key = (uint32_t)(now_ns() >> 10) + c->index * stretch;
  }
  if (op == PING) {
    put_u8(&packet, P2P_PING);
  } else {
    put_u8(&packet, P2P_PUT);
    put_u32(&packet, 0);
    put_u32(&packet, opt.ttl_s);
    put_bytes(&packet, payload, opt.bytes);
  }
  p2p_frame(&c->batch, packet.bytes, packet.n);
  c->key_at[i] = c->batch.n - packet.n + 1;
  free(packet.bytes);
  if (i == opt.pipeline - 1) p2p_build_acks(c);
}

/* Key and id both begin at byte 1 of their packet, which is where the mask stands there. */
static void p2p_stamp(Conn *c, size_t at, const void *value, size_t n) {
  unsigned char *to = (unsigned char *)c->batch.bytes + at;
  memcpy(to, value, n);
  for (size_t i = 0; masked && i < n; i++) to[i] ^= MASK[(1 + i) & 3];
}

static size_t p2p_refresh(Conn *c) {
  if (op == PING) return c->batch.n;
  for (int i = 0; i < opt.pipeline; i++) {
    uint32_t key = htonl(++c->next_key);
    p2p_stamp(c, c->key_at[i], &key, 4);
  }
  size_t n = c->puts_bytes + c->id_count * c->ack_bytes;
  for (int i = 0; i < c->id_count; i++) p2p_stamp(c, c->id_at[i], c->ids[i], 8);
  c->id_count = 0;
  return n;
}

static void p2p_nack(Conn *c, const unsigned char *p, size_t n) {
  note_hex(p, n);
  if (n < 3) die("malformed NACK");
  if (p[1] == 0xff && (p[2] == 0 || p[2] == 0xff)) die("the server ended the connection");
  if (p[1] == P2P_PUT || p[1] == P2P_PING) on_reply(c, 0);
  else errs++;
}

static void p2p_packet(Conn *c, const unsigned char *p, size_t n) {
  unsigned char ack[9] = {P2P_MSG_ACK}, pong[1] = {P2P_PONG};
  switch (n ? p[0] : -1) {
    case P2P_PING:
      p2p_send(c, pong, sizeof pong);
      break;
    case P2P_PONG:
      if (op == PING) on_reply(c, 1);
      break;
    case P2P_MSG:
      if (n < 9 || !c->receives) die("a push that was not asked for");
      memcpy(ack + 1, p + 1, 8);
      p2p_send(c, ack, sizeof ack);
      on_message(c);
      break;
    case P2P_PUT_ACK:
      if (n != 17) die("PUT_MSG_ACK of %zu bytes", n);
      if (opt.acks) memcpy(c->ids[c->id_count++], p + 9, 8);
      on_reply(c, 1);
      break;
    case P2P_NACK:
      p2p_nack(c, p, n);
      break;
    default:
      die("packet of type %d and %zu bytes", n ? p[0] : -1, n);
  }
}

static size_t p2p_take(Conn *c, unsigned char *p, size_t n) {
  if (n < 4 || n - 4 < be32(p)) return 0;
  size_t size = be32(p);
  p2p_packet(c, p + 4, size);
  return 4 + size;
}

static size_t ws_take(Conn *c, unsigned char *p, size_t n) {
  if (n < 2) return 0;
  size_t size = p[1] & 127, head = size == 127 ? 10 : size == 126 ? 4 : 2;
  Buf pong = {0};
  if (n < head) return 0;
  if (size == 126) size = p[2] << 8 | p[3];
  if (size == 127) size = be32(p + 6);
  if (n - head < size) return 0;
  switch (p[0]) {
    case 0x82:
      p2p_packet(c, p + head, size);
      break;
    case 0x89:
      ws_frame(&pong, 10, p + head, size);
      send_bytes(c, pong.bytes, pong.n);
      free(pong.bytes);
      break;
    case 0x8a:
      break;
    default:
      note_hex(p, head + size);
      die("WebSocket frame with first byte %02x", p[0]);
  }
  return head + size;
}

/* RESP: Redis and S3P */

static void put_bulk(Buf *to, const char *p, size_t n) {
  put_format(to, "$%zu\r\n", n);
  put_bytes(to, p, n);
  put_bytes(to, "\r\n", 2);
}

/* A command: an array whose first `words` elements are the space-separated words of the line. */
static void put_command(Buf *to, int elements, const char *line) {
  put_format(to, "*%d\r\n", elements);
  for (const char *word = line; *word; word += *word == ' ') {
    size_t n = strcspn(word, " ");
    put_bulk(to, word, n);
    word += n;
  }
}

/* Replies of set-up, each of one line or a bulk string; none may be an error. */
static void setup_replies(Conn *c, int count) {
  char line[256];
  for (int i = 0; i < count; i++)
    for (int left = 1; left; left--) {
      size_t n = 0;
      do setup_recv(c, line + n, 1); while (line[n++] != '\n' && n < sizeof line);
      if (*line == '-') die("set-up: %.*s", (int)n - 2, line);
      if (*line == '$') left++;
    }
}

/* Bytes of one complete RESP value, 0 while incomplete. */
static size_t resp_size(const char *p, size_t n, int *failed) {
  const char *end = n < 3 ? NULL : memchr(p, '\n', n);
  if (!end) return 0;
  size_t head = end - p + 1;
  long count = atol(p + 1);
  switch (p[0]) {
    case '-':
      *failed = 1;
      return head;
    case '+': case ':':
      return head;
    case '$':
      if (count < 0) return head;
      return n >= head + count + 2 ? head + count + 2 : 0;
    case '*':
      for (long i = 0; i < count; i++) {
        size_t size = resp_size(p + head, n - head, failed);
        if (!size) return 0;
        head += size;
      }
      return head;
  }
  die("bad RESP byte 0x%02x", (unsigned char)p[0]);
}

/* The blocks that a read walks over have the ids 10000001-0, 10000001-1 and so on. */

static int blocks(void) { return opt.preloaded / opt.records; }
static unsigned block_ms(int block) { return FIRST_MS + 1 + block; }
static int step(int *block) {
  int now = *block;
  *block = (now + 1) % blocks();
  return now;
}

/* An append's id, `$n ms-seq`: above the one before. */
static int resp_ascends(Conn *c, const char *p, size_t n) {
  const char *text = memchr(p, '\n', n);
  unsigned long long ms, seq;
  size_t size = text ? p + n - text - 3 : 0;
  char id[ID_BYTES];
  if (p[0] != '$' || !size || size >= sizeof id) return 0;
  memcpy(id, text + 1, size);
  id[size] = 0;
  if (sscanf(id, "%llu-%llu", &ms, &seq) != 2) return 0;
  int ascends = !*c->last_id || ms > c->last_ms || (ms == c->last_ms && seq > c->last_seq);
  c->last_ms = ms;
  c->last_seq = seq;
  strcpy(c->last_id, id);
  return ascends;
}

/* What a read of a block is answered, with the places where ids have their milliseconds. */
static void resp_block(Buf *to, size_t *ms_at) {
  int is_redis = !strcmp(opt.proto, "redis");
  char id[ID_BYTES];
  put_format(to, "*%d\r\n", is_redis ? opt.records : 2 * opt.records);
  for (int j = 0; j < opt.records; j++) {
    snprintf(id, sizeof id, "%u-%d", FIRST_MS, j);
    if (is_redis) put_text(to, "*2\r\n");
    put_bulk(to, id, strlen(id));
    ms_at[j] = to->n - 2 - strlen(id);
    if (is_redis) put_text(to, "*2\r\n$1\r\nd\r\n");
    put_bulk(to, payload, opt.bytes);
  }
}

/* A read's answer, byte for byte: 1 right, 0 wrong, -1 right so far but incomplete. */
static int resp_is_block(Conn *c, const char *p, size_t n, size_t *size) {
  static Buf head, wanted;
  static size_t *ms_at;
  char ms[ID_BYTES];
  if (!ms_at) {
    ms_at = must(calloc(opt.records, sizeof *ms_at));
    resp_block(&wanted, ms_at);
  }
  head.n = 0;
  if (!strcmp(opt.proto, "redis")) {
    put_text(&head, "*1\r\n*2\r\n");
    put_bulk(&head, channel_name(c), strlen(channel_name(c)));
  }
  snprintf(ms, sizeof ms, "%u", block_ms(c->due_block));
  for (int j = 0; j < opt.records; j++) memcpy(wanted.bytes + ms_at[j], ms, MS_DIGITS);
  *size = head.n + wanted.n;
  if (memcmp(p, head.bytes, n < head.n ? n : head.n)) return 0;
  if (n <= head.n) return -1;
  if (memcmp(p + head.n, wanted.bytes, n < *size ? n - head.n : wanted.n)) return 0;
  return n < *size ? -1 : 1;
}

static size_t resp_take_block(Conn *c, const char *p, size_t n) {
  size_t size;
  int failed = 0, right = resp_is_block(c, p, n, &size);
  if (right < 0) return 0;
  if (!right) {
    size = resp_size(p, n, &failed);
    if (!size) return 0;
    note_text(p, size);
  }
  step(&c->due_block);
  on_reply(c, right);
  return size;
}

static size_t resp_take(Conn *c, unsigned char *p, size_t n) {
  int failed = 0;
  if (op == READ) return resp_take_block(c, (char *)p, n);
  size_t size = resp_size((char *)p, n, &failed);
  if (!size) return 0;
  if (op == PUT && !failed) failed = !resp_ascends(c, (char *)p, size);
  if (failed) note_text(p, size);
  if (!c->receives) {
    on_reply(c, !failed);
  } else if (op == PUSH) { /* take the next one before the sender may go on */
    send_bytes(c, c->batch.bytes, c->batch.n);
    on_message(c);
  } else if (memmem(p, size, "\r\nmessage\r\n", 11)) {
    on_message(c);
  }
  return size;
}

/* The record of the last append, as the server gives it back. */
static void resp_verify(Conn *c) {
  Buf request = {0}, wanted = {0};
  char line[NAME_MAX_BYTES + 128], *reply;
  int is_redis = !strcmp(opt.proto, "redis");
  snprintf(line, sizeof line, is_redis ? "XRANGE %s %s %s" : "READ %s", channel_name(c), c->last_id,
           c->last_id);
  put_command(&request, is_redis ? 4 : 3, line);
  if (!is_redis) {
    snprintf(line, sizeof line, "COUNT 1 MIN_ID %s", c->last_id);
    put_command(&request, 4, line);
  }
  put_text(&wanted, is_redis ? "*1\r\n*2\r\n" : "*2\r\n");
  put_bulk(&wanted, c->last_id, strlen(c->last_id));
  if (is_redis) put_text(&wanted, "*2\r\n$1\r\nd\r\n");
  put_bulk(&wanted, payload, opt.bytes);
  setup_send(c, &request);
  reply = must(malloc(wanted.n));
  setup_recv(c, reply, 4);
  if (*reply == '-' || !memcmp(reply, "*0\r\n", 4))
    die("record %s of %s is not there", c->last_id, channel_name(c));
  setup_recv(c, reply + 4, wanted.n - 4);
  if (memcmp(reply, wanted.bytes, wanted.n))
    die("record %s of %s is not what was appended", c->last_id, channel_name(c));
  free(reply);
  free(request.bytes);
  free(wanted.bytes);
}

static void redis_preload(Conn *c) {
  char line[NAME_MAX_BYTES + 64];
  Buf request = {0};
  for (int block = 0; block < blocks(); block++) {
    request.n = 0;
    for (int j = 0; j < opt.records; j++) {
      snprintf(line, sizeof line, "XADD %s %u-%d d", channel_name(c), block_ms(block), j);
      put_command(&request, 5, line);
      put_bulk(&request, payload, opt.bytes);
    }
    setup_send(c, &request);
    setup_replies(c, opt.records);
  }
  free(request.bytes);
}

static void redis_setup(Conn *c) {
  Buf subscribe = {0};
  char line[NAME_MAX_BYTES + 32];
  if (op == READ && c->index < opt.keys) redis_preload(c);
  if (!c->receives) return;
  if (op == PUSH) {
    snprintf(line, sizeof line, "BLPOP %s 0", channel_name(c));
    put_command(&c->batch, 3, line);
    setup_send(c, &c->batch);
    return;
  }
  snprintf(line, sizeof line, "SUBSCRIBE %s", channel_name(c));
  put_command(&subscribe, 2, line);
  setup_send(c, &subscribe);
  free(subscribe.bytes);
}

static void redis_build(Conn *c, int i) {
  Buf *to = &c->batch;
  char line[NAME_MAX_BYTES + 64];
  const char *name = channel_name(c);
  (void)i;
  switch (op) {
    case PING:
      put_command(to, 1, "PING");
      return;
    case RPOP:
      snprintf(line, sizeof line, "RPOP %s", name);
      put_command(to, 2, line);
      return;
    case READ: /* from behind the id, so the highest one before the block */
      snprintf(line, sizeof line, "XREAD COUNT %d STREAMS %s %u-%d", opt.records, name,
               block_ms(step(&c->next_block)) - 1, opt.records);
      put_command(to, 6, line);
      return;
    case LPUSH: case PUSH: case FANOUT:
      snprintf(line, sizeof line, "%s %s", op == FANOUT ? "PUBLISH" : "LPUSH", name);
      put_command(to, 3, line);
      put_bulk(to, payload, opt.bytes);
      return;
    case PUT: /* Redis has no append of many: N pipelined XADDs are one request */
      snprintf(line, sizeof line, "XADD %s * d", name);
      for (int j = 0; j < opt.records; j++) {
        put_command(to, 5, line);
        put_bulk(to, payload, opt.bytes);
      }
  }
}

/* A stream may be there already: connections share it, and rounds may use a name again. */
static void s3p_create(Conn *c) {
  Buf create = {0};
  char line[NAME_MAX_BYTES + 32], reply[256];
  snprintf(line, sizeof line, "CREATE %s", channel_name(c));
  put_command(&create, 3, line);
  put_text(&create, "*0\r\n");
  setup_ask(c, &create, "\r\n", reply, sizeof reply);
  if (*reply != '+' && strncmp(reply, "-ERR_STREAM_EXISTS", 18)) die("CREATE: %.80s", reply);
  free(create.bytes);
}

static void s3p_append(Buf *to, const char *name, int block) {
  char line[NAME_MAX_BYTES + 32];
  snprintf(line, sizeof line, "APPEND %s", name);
  put_command(to, 4, line);
  if (block < 0) {
    put_text(to, "*0\r\n");
  } else {
    snprintf(line, sizeof line, "ID %u", block_ms(block));
    put_command(to, 2, line);
  }
  put_format(to, "*%d\r\n", opt.records);
  for (int j = 0; j < opt.records; j++) put_bulk(to, payload, opt.bytes);
}

static void s3p_setup(Conn *c) {
  Buf request = {0};
  if (op != READ || c->index < opt.keys) s3p_create(c);
  for (int block = 0; op == READ && c->index < opt.keys && block < blocks(); block++) {
    request.n = 0;
    s3p_append(&request, channel_name(c), block);
    setup_send(c, &request);
    setup_replies(c, 1);
  }
  free(request.bytes);
}

static void s3p_build(Conn *c, int i) {
  char line[NAME_MAX_BYTES + 64];
  (void)i;
  if (op != READ) {
    s3p_append(&c->batch, channel_name(c), -1);
    return;
  }
  snprintf(line, sizeof line, "READ %s", channel_name(c));
  put_command(&c->batch, 3, line);
  snprintf(line, sizeof line, "COUNT %d MIN_ID %u-0", opt.records, block_ms(step(&c->next_block)));
  put_command(&c->batch, 4, line);
}

/* RustLog: JSON in length-prefixed frames */

static void put_base64(Buf *to, const char *bytes, int n) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const unsigned char *p = (const unsigned char *)bytes;
  for (int i = 0; i < n; i += 3) {
    unsigned v = p[i] << 16 | (i + 1 < n ? p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
    char quad[4] = {digits[v >> 18], digits[(v >> 12) & 63],
                    i + 1 < n ? digits[(v >> 6) & 63] : '=', i + 2 < n ? digits[v & 63] : '='};
    put_bytes(to, quad, 4);
  }
}

/* One frame there and one back, which must be of this type. The reply's body, as a string. */
static const char *rustlog_ask(Conn *c, const Buf *body, const char *type) {
  static Buf frame, reply;
  unsigned char head[4];
  frame.n = reply.n = 0;
  put_u32(&frame, body->n);
  put_bytes(&frame, body->bytes, body->n);
  setup_send(c, &frame);
  setup_recv(c, head, sizeof head);
  for (size_t left = be32(head); left; left--) put_u8(&reply, 0);
  setup_recv(c, reply.bytes, reply.n);
  put_u8(&reply, 0);
  if (!strstr(reply.bytes, type)) die("%s wanted, there came %.200s", type, reply.bytes);
  return reply.bytes;
}

static void rustlog_produce(Buf *body, const char *name) {
  put_format(body, "{\"type\":\"Produce\",\"topic\":\"%s\",\"partition\":0,\"records\":[", name);
  for (int j = 0; j < opt.records; j++) {
    put_text(body, j ? ",\"" : "\"");
    put_bytes(body, payload_base64.bytes, payload_base64.n);
    put_text(body, "\"");
  }
  put_text(body, "]}");
}

static void rustlog_fetch(Buf *body, const char *name, uint64_t offset, int records) {
  put_format(body, "{\"type\":\"Fetch\",\"group_id\":\"\",\"topic\":\"%s\",\"partition\":0,"
             "\"offset\":%lu,\"max_bytes\":%d}", name, offset, records * opt.bytes);
}

static void rustlog_setup(Conn *c) {
  Buf body = {0};
  if (!payload_base64.n) put_base64(&payload_base64, payload, opt.bytes);
  if (op == READ && c->index >= opt.keys) return;
  put_format(&body, "{\"type\":\"CreateTopic\",\"topic\":\"%s\",\"partition_count\":1}",
             channel_name(c));
  rustlog_ask(c, &body, "\"CreateTopicResponse\"");
  for (int block = 0; op == READ && block < blocks(); block++) {
    body.n = 0;
    rustlog_produce(&body, channel_name(c));
    rustlog_ask(c, &body, "\"ProduceResponse\"");
  }
  free(body.bytes);
}

static void rustlog_build(Conn *c, int i) {
  Buf body = {0};
  uint64_t block;
  (void)i;
  if (op == PING) {
    put_text(&body, "{\"type\":\"Ping\"}");
  } else if (op == READ) {
    block = step(&c->next_block);
    rustlog_fetch(&body, channel_name(c), block * opt.records, opt.records);
  } else {
    rustlog_produce(&body, channel_name(c));
  }
  put_u32(&c->batch, body.n);
  put_bytes(&c->batch, body.bytes, body.n);
  free(body.bytes);
}

/* The number behind a field's name; 0 in `found` without one. */
static uint64_t json_number(const char *p, size_t n, const char *field, int *found) {
  const char *at = memmem(p, n, field, strlen(field));
  *found = at != NULL;
  return at ? strtoull(at + strlen(field), NULL, 10) : 0;
}

static int json_holds(const char *p, size_t n, const char *field, uint64_t wanted) {
  int found;
  return json_number(p, n, field, &found) == wanted && found;
}

/* All that was produced, and behind what came before on this connection. */
static int rustlog_ascends(Conn *c, const char *p, size_t n) {
  int found;
  uint64_t base = json_number(p, n, "\"base_offset\":", &found);
  if (!found || !json_holds(p, n, "\"record_count\":", opt.records)) return 0;
  int ascends = !*c->last_id || base > c->last_seq;
  c->last_seq = base + opt.records - 1;
  snprintf(c->last_id, sizeof c->last_id, "%lu", c->last_seq);
  return ascends;
}

/* These records, from `offset` on, each with the payload, and none besides. */
static int rustlog_is_block(const char *p, size_t n, uint64_t offset, int records) {
  static Buf needle;
  char first[ID_BYTES];
  const char *at = p, *end = p + n;
  if (!needle.n) {
    put_text(&needle, "\"payload\":\"");
    put_bytes(&needle, payload_base64.bytes, payload_base64.n);
    put_text(&needle, "\"");
  }
  int size = snprintf(first, sizeof first, "\"offset\":%lu,", offset);
  if (!memmem(p, n < 120 ? n : 120, first, size)) return 0;
  if (!json_holds(p, n, "\"next_offset\":", offset + records)) return 0;
  for (int j = 0; j < records; j++) {
    at = memmem(at, end - at, needle.bytes, needle.n);
    if (!at) return 0;
    at += needle.n;
  }
  return !memmem(at, end - at, "\"payload\"", 9);
}

static int rustlog_is_right(Conn *c, const char *p, size_t n) {
  switch (op) {
    case READ:
      return rustlog_is_block(p, n, (uint64_t)step(&c->due_block) * opt.records, opt.records);
    case PUT:
      return rustlog_ascends(c, p, n);
    default:
      return memmem(p, n, "\"Pong\"", 6) != NULL;
  }
}

static size_t rustlog_take(Conn *c, unsigned char *p, size_t n) {
  if (n < 4 || n - 4 < be32(p)) return 0;
  size_t size = be32(p);
  int right = rustlog_is_right(c, (char *)p + 4, size);
  if (!right) note_text(p + 4, size);
  on_reply(c, right);
  return 4 + size;
}

static void rustlog_verify(Conn *c) {
  Buf body = {0};
  rustlog_fetch(&body, channel_name(c), c->last_seq, 1);
  const char *reply = rustlog_ask(c, &body, "\"FetchResponse\"");
  char *more = strstr(reply, "},{"); /* others may have appended behind it */
  size_t n = more ? (size_t)(more - reply) : strlen(reply);
  Buf needle = {0};
  put_format(&needle, "\"offset\":%lu,", c->last_seq);
  if (!memmem(reply, n, needle.bytes, needle.n) ||
      !memmem(reply, n, payload_base64.bytes, payload_base64.n))
    die("record %lu of %s is not what was produced", c->last_seq, channel_name(c));
  free(needle.bytes);
  free(body.bytes);
}

/* NATS JetStream: publish with an inbox for the ack */

/* A stream in memory or, with -D 2, in files, for the subject of its name. */
static void nats_create(Conn *c) {
  Buf body = {0}, request = {0};
  char reply[4096];
  const char *name = channel_name(c);
  put_format(&body, "{\"name\":\"%s\",\"subjects\":[\"%s\"],\"storage\":\"%s\"}", name, name,
             opt.durability > 0 ? "file" : "memory");
  put_format(&request, "PUB $JS.API.STREAM.CREATE.%s _INBOX.lg%d.s %zu\r\n", name, c->index, body.n);
  put_bytes(&request, body.bytes, body.n);
  put_text(&request, "\r\n");
  setup_ask(c, &request, "}\r\n", reply, sizeof reply);
  if (strstr(reply, "\"error\"")) die("STREAM.CREATE: %.300s", strchr(reply, '{'));
  free(body.bytes);
  free(request.bytes);
}

static void nats_setup(Conn *c) {
  Buf hello = {0};
  char reply[4096];
  put_format(&hello, "CONNECT {\"verbose\":false,\"pedantic\":false}\r\n"
             "SUB _INBOX.lg%d.* 1\r\nPING\r\n", c->index);
  setup_ask(c, &hello, "PONG\r\n", reply, sizeof reply);
  if (c->index < opt.keys) nats_create(c);
  free(hello.bytes);
}

static void nats_build(Conn *c, int i) {
  (void)i;
  for (int j = 0; j < opt.records; j++) { /* no append of many here either */
    put_format(&c->batch, "PUB %s _INBOX.lg%d.x %d\r\n", channel_name(c), c->index, opt.bytes);
    put_bytes(&c->batch, payload, opt.bytes);
    put_text(&c->batch, "\r\n");
  }
}

/* {"stream":"NAME","seq":N} */
static int nats_ascends(Conn *c, const char *p, size_t n) {
  int found;
  uint64_t seq = json_number(p, n, "\"seq\":", &found);
  int ascends = found && seq > c->last_seq;
  c->last_seq = seq;
  return ascends;
}

static size_t nats_take(Conn *c, unsigned char *p, size_t n) {
  unsigned char *end = memmem(p, n, "\r\n", 2), *number = end;
  if (!end) return 0;
  size_t head = end - p + 2;
  if (!strncmp((char *)p, "PING", 4)) send_bytes(c, "PONG\r\n", 6);
  if (!strncmp((char *)p, "-ERR", 4)) {
    note_text(p, head);
    errs++;
  }
  if (strncmp((char *)p, "MSG ", 4)) return head;
  while (number[-1] != ' ') number--;
  size_t size = atol((char *)number);
  if (n < head + size + 2) return 0;
  int failed = !nats_ascends(c, (char *)p + head, size);
  if (failed) note_text(p + head, size);
  on_reply(c, !failed);
  return head + size + 2;
}

/* HTTP/1.1 with keep-alive; a path that ends in /records is S2's, with the record in JSON */

static const char S2_PATH[] = "/records", S2_HEAD[] = "{\"records\":[{\"body\":\"", S2_TAIL[] = "\"}]}";

static int http_is_s2(void) {
  size_t n = strlen(opt.path), end = sizeof S2_PATH - 1;
  return n > end && !strcmp(opt.path + n - end, S2_PATH);
}

static void http_skip(Conn *c, const char *head, char *body, size_t room) {
  char *length = strcasestr(head, "\r\ncontent-length:");
  size_t n = length ? strtoul(length + 17, NULL, 10) : 0;
  if (n >= room) die("set-up: the reply is too long");
  setup_recv(c, body, n);
  if (!length && strcasestr(head, "\r\ntransfer-encoding: chunked"))
    setup_ask(c, &(Buf){0}, "0\r\n\r\n", body, room);
}

static void http_head(Buf *to, const char *verb, int path_bytes, int body_bytes) {
  put_format(to, "%s %.*s HTTP/1.1\r\nHost: %s:%d\r\n", verb, path_bytes, opt.path, opt.host,
             opt.port);
  if (http_is_s2()) put_text(to, "s2-basin: millpond\r\n");
  if (body_bytes >= 0)
    put_format(to, "Content-Type: application/%s\r\nContent-Length: %d\r\n",
               http_is_s2() ? "json" : "octet-stream", body_bytes);
  put_text(to, "\r\n");
}

/* The stream is made by the first connection. Whoever wants no stream answers with an error. */
static void http_setup(Conn *c) {
  Buf request = {0};
  char reply[4096], body[4096];
  int is_s2 = http_is_s2(), path_bytes = strlen(opt.path) - (is_s2 ? sizeof S2_PATH - 1 : 0);
  if (c->index || op == READ) return;
  http_head(&request, "PUT", path_bytes, is_s2 ? 2 : 0);
  if (is_s2) put_text(&request, "{}");
  setup_ask(c, &request, "\r\n\r\n", reply, sizeof reply);
  if (strncmp(reply, "HTTP/1.1 20", 11)) die("PUT %s: %.100s", opt.path, reply);
  http_skip(c, reply, body, sizeof body);
  free(request.bytes);
}

static void http_build(Conn *c, int i) {
  (void)i;
  int is_s2 = http_is_s2(), around = is_s2 ? sizeof S2_HEAD + sizeof S2_TAIL - 2 : 0;
  http_head(&c->batch, op == READ ? "GET" : "POST", strlen(opt.path),
            op == READ ? -1 : opt.bytes + around);
  if (op == READ) return;
  if (is_s2) put_text(&c->batch, S2_HEAD);
  put_bytes(&c->batch, payload, opt.bytes);
  if (is_s2) put_text(&c->batch, S2_TAIL);
}

static size_t http_take(Conn *c, unsigned char *p, size_t n) {
  char *text = (char *)p, *end = memmem(p, n, "\r\n\r\n", 4), *field;
  if (!end) return 0;
  size_t size = end - text + 4;
  *end = 0; /* the header as a string, for strcasestr */
  field = strcasestr(text, "\r\ncontent-length:");
  int chunked = !field && strcasestr(text, "\r\ntransfer-encoding: chunked");
  *end = '\r';
  if (chunked) {
    char *last = memmem(end, n - (end - text), "\r\n0\r\n\r\n", 7);
    if (!last) return 0;
    size = last + 7 - text;
  } else if (field) {
    size += atol(field + 17);
    if (n < size) return 0;
  }
  if (text[9] != '2') note_text(p, size);
  on_reply(c, text[9] == '2');
  return size;
}

/* Each batch of reads goes on where the one before ended. */
static size_t walk(Conn *c) {
  if (op != READ) return c->batch.n;
  c->batch.n = 0;
  for (int i = 0; i < opt.pipeline; i++) protocol->build(c, i);
  return c->batch.n;
}

enum { P2P_OPS = 1 << PUT | 1 << PING | 1 << PUSH | 1 << FANOUT,
       REDIS_OPS = P2P_OPS | 1 << READ | 1 << LPUSH | 1 << RPOP };
static const Protocol protocols[] = {
  {"p2p", P2P_OPS, p2p_setup, p2p_build, p2p_refresh, p2p_take, NULL},
  {"p2pws", P2P_OPS, p2p_setup, p2p_build, p2p_refresh, ws_take, NULL},
  {"redis", REDIS_OPS, redis_setup, redis_build, walk, resp_take, resp_verify},
  {"s3p", 1 << PUT | 1 << READ, s3p_setup, s3p_build, walk, resp_take, resp_verify},
  {"rustlog", 1 << PUT | 1 << READ | 1 << PING, rustlog_setup, rustlog_build, walk, rustlog_take,
   rustlog_verify},
  {"nats", 1 << PUT, nats_setup, nats_build, NULL, nats_take, NULL},
  {"http", 1 << PUT | 1 << READ, http_setup, http_build, NULL, http_take, NULL},
};

/* Connections and the loop */

static void parse(Conn *c) {
  size_t used = 1;
  while (used && c->parsed < c->in.n) {
    used = protocol->take(c, (unsigned char *)c->in.bytes + c->parsed, c->in.n - c->parsed);
    c->parsed += used;
  }
  memmove(c->in.bytes, c->in.bytes + c->parsed, c->in.n - c->parsed);
  c->in.n -= c->parsed;
  c->parsed = 0;
}

static void readable(Conn *c) {
  for (;;) {
    if (c->in.room - c->in.n < RECV_ROOM) {
      c->in.room = c->in.room ? c->in.room * 2 : 2 * RECV_ROOM;
      c->in.bytes = must(realloc(c->in.bytes, c->in.room));
    }
    size_t room = c->in.room - c->in.n;
    ssize_t r = recv(c->fd, c->in.bytes + c->in.n, room, 0);
    if (r < 0 && errno == EAGAIN) return;
    if (r <= 0) die("%s", r ? strerror(errno) : "the server closed the connection");
    c->in.n += r;
    parse(c);
    if ((size_t)r < room) return;
  }
}

static int dial(void) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(opt.port)};
  struct timeval limit = {.tv_sec = 5};
  int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
  if (inet_pton(AF_INET, opt.host, &to.sin_addr) != 1) die("%s is not an address", opt.host);
  if (connect(fd, (struct sockaddr *)&to, sizeof to))
    die("connect %s:%d: %s", opt.host, opt.port, strerror(errno));
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

static void open_conn(Conn *c) {
  struct epoll_event event = {EPOLLIN, {.ptr = c}};
  c->fd = dial();
  if (protocol->setup) protocol->setup(c);
  if (op == READ && protocol->refresh) /* built before each batch; not all read the same */
    c->next_block = c->due_block = (int)((int64_t)c->index * blocks() / opt.connections);
  else
    for (int i = 0; !c->receives && i < opt.pipeline; i++) protocol->build(c, i);
  fcntl(c->fd, F_SETFL, O_NONBLOCK);
  epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
}

/* push: C senders, each with one receiver; fanout: one sender with C receivers; else C requesters.
 * Receivers connect first, so that nobody misses the first message. */
static void open_all(void) {
  int senders = op == FANOUT ? 1 : opt.connections;
  conn_count = senders + (op == PUSH || op == FANOUT ? opt.connections : 0);
  conns = must(calloc(conn_count, sizeof *conns));
  Group *groups = must(calloc(senders, sizeof *groups));
  for (int i = conn_count - 1; i >= 0; i--) {
    Conn *c = &conns[i];
    c->receives = i >= senders;
    c->index = op == FANOUT ? 0 : i % opt.connections;
    if (conn_count > senders) c->group = &groups[c->index];
    open_conn(c);
  }
  for (int i = 0; i < senders; i++)
    groups[i] = (Group){.sender = &conns[i], .receivers = &conns[senders + i],
                        .size = op == FANOUT ? opt.connections : 1};
  if (conn_count > senders) usleep(100000); /* nothing says that a BLPOP is in place */
  for (int i = 0; i < senders; i++)
    if (conns[i].group) fire_group(conns[i].group);
    else fire(&conns[i]);
}

/* CPU seconds of the server with all its threads, 0 without -S. */
static double server_cpu_s(void) {
  char path[64], line[1024];
  unsigned long user = 0, system = 0;
  if (!opt.server_pid) return 0;
  snprintf(path, sizeof path, "/proc/%d/stat", opt.server_pid);
  FILE *file = fopen(path, "r");
  if (!file || !fgets(line, sizeof line, file)) die("no process %d", opt.server_pid);
  fclose(file);
  char *after_name = strrchr(line, ')');
  sscanf(after_name + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
  return (double)(user + system) / sysconf(_SC_CLK_TCK);
}

static double own_cpu_s(void) {
  struct rusage r;
  getrusage(RUSAGE_SELF, &r);
  return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

static void turn(void) {
  struct epoll_event events[256];
  int n = epoll_wait(poller, events, 256, 50);
  for (int i = 0; i < n; i++) {
    Conn *c = events[i].data.ptr;
    if (events[i].events & EPOLLOUT) flush_out(c);
    if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) readable(c);
  }
}

/* The last record of some connections must be there; ends the program if not. */
static void verify(void) {
  for (int i = 0; op == PUT && protocol->verify && i < conn_count && i < CHECKED_MAX; i++) {
    if (!*conns[i].last_id) continue;
    close(conns[i].fd);
    conns[i].fd = dial();
    protocol->verify(&conns[i]);
    checked++;
  }
}

static void report(double wall_s, double own_s, double server_s) {
  double records = op == FANOUT ? (double)deliveries : (double)done * opt.records;
  printf("{\"proto\":\"%s\",\"op\":\"%s\",\"c\":%d,\"P\":%d,\"n\":%d,\"s\":%d,\"K\":%d,\"A\":%d,",
         opt.proto, opt.op, opt.connections, opt.pipeline, opt.records, opt.bytes, opt.keys,
         opt.acks);
  printf("\"secs\":%.3f,\"rps\":%.0f,\"recs\":%.0f,\"p50_us\":%.1f,\"p99_us\":%.1f,", wall_s,
         done / wall_s, records / wall_s, hist_quantile_us(.5), hist_quantile_us(.99));
  printf("\"p999_us\":%.1f,\"max_us\":%.0f,\"cpu\":%.2f,\"server_cpu\":%.2f,\"server_us\":%.2f,",
         hist_quantile_us(.999), hist_max / 1e3, own_s / wall_s, server_s / wall_s,
         done ? server_s * 1e6 / done : 0);
  printf("\"checked\":%lu,", checked);
  printf("\"dups\":%lu,\"errs\":%lu,\"err\":\"%s\"}\n", duplicates, errs, errs ? last_error : "");
}

static void run(void) {
  uint64_t start = now_ns(), warm_end = start + (uint64_t)(opt.warm_s * 1e9);
  while (now_ns() < warm_end) turn();
  double own_s = own_cpu_s(), server_s = server_cpu_s();
  uint64_t measured_from = now_ns(), end = measured_from + (uint64_t)(opt.run_s * 1e9);
  measuring = 1;
  while (now_ns() < end) turn();
  double wall_s = (now_ns() - measured_from) / 1e9;
  own_s = own_cpu_s() - own_s;
  server_s = server_cpu_s() - server_s;
  verify();
  report(wall_s, own_s, server_s);
}

static void __attribute__((noreturn)) usage(void) {
  fputs("usage: loadgen -p PROTO -t PORT [-h host] [-c connections] [-P pipeline]\n"
        "               [-n records/request] [-s bytes/record] [-o op] [-k key] [-K keys]\n"
        "               [-L records/stream] [-T ttl] [-A] [-D durability] [-d secs] [-w warm-up] [-U http-path]\n"
        "               [-S server-pid]\n"
        "  p2p, p2pws: put|ping|push|fanout   redis: xadd|xread|lpush|rpop|ping|push|fanout\n"
        "  s3p: append|read   rustlog: produce|fetch|ping   nats: publish   http: post|get\n",
        stderr);
  exit(2);
}

static void parse_op(void) {
  static const struct { const char *name; enum op op; } names[] = {
    {"put", PUT}, {"append", PUT}, {"xadd", PUT}, {"produce", PUT}, {"publish", PUT}, {"post", PUT},
    {"ping", PING}, {"read", READ}, {"xread", READ}, {"fetch", READ}, {"get", READ},
    {"lpush", LPUSH}, {"rpop", RPOP}, {"push", PUSH}, {"fanout", FANOUT}};
  size_t i = 0;
  while (i < sizeof names / sizeof *names && strcmp(opt.op, names[i].name)) i++;
  if (i == sizeof names / sizeof *names) usage();
  op = names[i].op;
  for (i = 0; i < sizeof protocols / sizeof *protocols; i++)
    if (!strcmp(opt.proto, protocols[i].name)) protocol = &protocols[i];
  if (!protocol || !(protocol->ops & 1u << op)) usage();
  masked = !strcmp(opt.proto, "p2pws");
  if ((!strcmp(opt.proto, "redis") || !strcmp(opt.proto, "nats")) && op == PUT)
    replies_per_request = opt.records;
  if (opt.acks && (op != PUT || strncmp(opt.proto, "p2p", 3))) usage();
}

static void parse_options(int argc, char **argv) {
  int letter;
  const char *letters = "p:h:t:c:P:n:s:o:k:K:L:T:AD:d:w:U:S:";
  while ((letter = getopt(argc, argv, letters)) != -1) switch (letter) {
    case 'p': opt.proto = optarg; break;
    case 'h': opt.host = optarg; break;
    case 't': opt.port = atoi(optarg); break;
    case 'c': opt.connections = atoi(optarg); break;
    case 'P': opt.pipeline = atoi(optarg); break;
    case 'n': opt.records = atoi(optarg); break;
    case 's': opt.bytes = atoi(optarg); break;
    case 'o': opt.op = optarg; break;
    case 'k': opt.key = optarg; break;
    case 'K': opt.keys = atoi(optarg); break;
    case 'L': opt.preloaded = atoi(optarg); break;
    case 'T': opt.ttl_s = atoi(optarg); break;
    case 'A': opt.acks = 1; break;
    case 'D': opt.durability = atoi(optarg); break;
    case 'd': opt.run_s = atof(optarg); break;
    case 'w': opt.warm_s = atof(optarg); break;
    case 'U': opt.path = optarg; break;
    case 'S': opt.server_pid = atoi(optarg); break;
    default: usage();
  }
  parse_op();
  if (opt.port <= 0 || opt.connections <= 0 || opt.pipeline <= 0 || opt.records <= 0 ||
      opt.bytes < 0 || opt.keys <= 0 || strlen(opt.key) > 100) usage();
  if (op == PUSH) opt.keys = opt.connections;
  if (op == PUSH || op == FANOUT) opt.pipeline = opt.records = 1;
  if (protocol->build == http_build) opt.records = 1;
  if (op == READ && (opt.preloaded < opt.records || opt.preloaded >= 80000000 || !opt.bytes))
    usage();
}

int main(int argc, char **argv) {
  parse_options(argc, argv);
  alarm((unsigned)(opt.run_s + opt.warm_s) + 60); /* a hung server must not keep us */
  payload = must(malloc(opt.bytes + 1));
  for (int i = 0; i < opt.bytes; i++) payload[i] = 'a' + i * 7 % 26;
  poller = epoll_create1(0);
  open_all();
  run();
  if (errs) fprintf(stderr, "loadgen: %lu errors; last: %s\n", errs, last_error);
  return errs ? 3 : 0;
}
