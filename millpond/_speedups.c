/* Native codecs: the runs of bytes that busy connections send, split and read in C.

   Optional. Each function has a twin in Python with the same results, and decides nothing: what is
   not plainly right is left where it is, for the Python codec to judge. docs/internals/
   native-codecs.md says what belongs here. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Goes up with each change of a function's arguments or results, together with that of
   transports/speedups.py. */
enum { REVISION = 12 };

/* P2P packets (transports/p2p/framing.py and packets.py). */

enum { PUT = 6, PUT_ACK = 7, MSG_ACK = 3 };
enum { LENGTH_BYTES = 4, PUT_HEAD_BYTES = 9, ACK_BYTES = 9, PUT_ACK_BYTES = 17 };

static uint32_t
read_u32(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static uint64_t
read_u64(const unsigned char *at)
{
    return (uint64_t)read_u32(at) << 32 | read_u32(at + 4);
}

static void
write_u32(unsigned char *at, uint32_t value)
{
    at[0] = (unsigned char)(value >> 24);
    at[1] = (unsigned char)(value >> 16);
    at[2] = (unsigned char)(value >> 8);
    at[3] = (unsigned char)value;
}

static void
write_u64(unsigned char *at, uint64_t value)
{
    write_u32(at, (uint32_t)(value >> 32));
    write_u32(at + 4, (uint32_t)value);
}

static int
append_new(PyObject *list, PyObject *item)
{
    if (item == NULL)
        return -1;
    int failed = PyList_Append(list, item);
    Py_DECREF(item);
    return failed;
}

static bool
is_count(Py_ssize_t given, Py_ssize_t wanted, const char *name)
{
    if (given == wanted)
        return true;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments (%zd given)", name, wanted, given);
    return false;
}

static bool
is_bytes(PyObject *object)
{
    if (PyBytes_Check(object))
        return true;
    PyErr_Format(PyExc_TypeError, "bytes expected, not %.100s", Py_TYPE(object)->tp_name);
    return false;
}

static bool
is_list(PyObject *object)
{
    if (PyList_Check(object))
        return true;
    PyErr_Format(PyExc_TypeError, "a list expected, not %.100s", Py_TYPE(object)->tp_name);
    return false;
}

PyDoc_STRVAR(split_packets_doc,
"split_packets(data, size_max, count_max=sys.maxsize, /) -> (packets, end)\n--\n\n"
"The whole packets that `data` begins with, `count_max` at most, and where they end: there begins\n"
"one more, or one that is not whole or whose length is 0 or above `size_max`.");

static PyObject *
split_packets(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!is_count(count, count == 2 ? 2 : 3, "split_packets") || !is_bytes(args[0]))
        return NULL;
    const Py_ssize_t size_max = PyLong_AsSsize_t(args[1]);
    if (size_max == -1 && PyErr_Occurred())
        return NULL;
    const Py_ssize_t count_max = count == 2 ? PY_SSIZE_T_MAX : PyLong_AsSsize_t(args[2]);
    if (count_max == -1 && PyErr_Occurred())
        return NULL;
    const char *data = PyBytes_AS_STRING(args[0]);
    const Py_ssize_t end = PyBytes_GET_SIZE(args[0]);
    PyObject *packets = PyList_New(0);
    if (packets == NULL)
        return NULL;
    Py_ssize_t at = 0;
    while (end - at >= LENGTH_BYTES && PyList_GET_SIZE(packets) < count_max) {
        const uint32_t size = read_u32((const unsigned char *)data + at);
        if (size == 0 || (uint64_t)size > (uint64_t)(size_max < 0 ? 0 : size_max)
            || (uint64_t)size > (uint64_t)(end - at - LENGTH_BYTES))
            break;
        at += LENGTH_BYTES;
        if (append_new(packets, PyBytes_FromStringAndSize(data + at, (Py_ssize_t)size)) < 0) {
            Py_DECREF(packets);
            return NULL;
        }
        at += (Py_ssize_t)size;
    }
    PyObject *result = Py_BuildValue("Nn", packets, at);
    return result;
}

PyDoc_STRVAR(frame_packets_doc,
"frame_packets(packets, /) -> bytes\n--\n\n"
"Every packet behind its length, in one piece. Raises OverflowError above the largest u32.");

static PyObject *
frame_packets(PyObject *module, PyObject *packets)
{
    if (!is_list(packets))
        return NULL;
    const Py_ssize_t count = PyList_GET_SIZE(packets);
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *packet = PyList_GET_ITEM(packets, i);
        if (!is_bytes(packet))
            return NULL;
        const Py_ssize_t size = PyBytes_GET_SIZE(packet);
        if ((uint64_t)size > UINT32_MAX || total > PY_SSIZE_T_MAX - size - LENGTH_BYTES) {
            PyErr_SetString(PyExc_OverflowError, "a packet is too large for its length");
            return NULL;
        }
        total += size + LENGTH_BYTES;
    }
    PyObject *framed = PyBytes_FromStringAndSize(NULL, total);
    if (framed == NULL)
        return NULL;
    unsigned char *at = (unsigned char *)PyBytes_AS_STRING(framed);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *packet = PyList_GET_ITEM(packets, i);
        const Py_ssize_t size = PyBytes_GET_SIZE(packet);
        write_u32(at, (uint32_t)size);
        memcpy(at + LENGTH_BYTES, PyBytes_AS_STRING(packet), (size_t)size);
        at += LENGTH_BYTES + size;
    }
    return framed;
}

/* The value of one packet as `shape` makes it; NULL without an exception: the packet is none. */

static PyObject *
new_put(PyObject *shape, const unsigned char *packet, Py_ssize_t size)
{
    if (size < PUT_HEAD_BYTES || packet[0] != PUT)
        return NULL;
    PyObject *fields[3] = {
        PyLong_FromUnsignedLong(read_u32(packet + 1)),
        PyLong_FromUnsignedLong(read_u32(packet + 5)),
        PyBytes_FromStringAndSize((const char *)packet + PUT_HEAD_BYTES, size - PUT_HEAD_BYTES),
    };
    PyObject *put = NULL;
    if (fields[0] != NULL && fields[1] != NULL && fields[2] != NULL)
        put = PyObject_Vectorcall(shape, fields, 3, NULL);
    for (int i = 0; i < 3; i++)
        Py_XDECREF(fields[i]);
    return put;
}

static PyObject *
new_ack(PyObject *shape, const unsigned char *packet, Py_ssize_t size)
{
    if (size != ACK_BYTES || packet[0] != MSG_ACK)
        return NULL;
    PyObject *id = PyLong_FromUnsignedLongLong(read_u64(packet + 1));
    if (id == NULL)
        return NULL;
    PyObject *ack = PyObject_Vectorcall(shape, &id, 1, NULL);
    Py_DECREF(id);
    return ack;
}

typedef PyObject *(*new_value)(PyObject *shape, const unsigned char *packet, Py_ssize_t size);

static PyObject *
read_run(PyObject *const *args, new_value new)
{
    PyObject *packets = args[0], *shape = args[1];
    if (!is_list(packets))
        return NULL;
    PyObject *values = PyList_New(0);
    if (values == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(packets); i++) {
        PyObject *packet = PyList_GET_ITEM(packets, i);
        if (!is_bytes(packet))
            goto failed;
        /* `shape` is a class, whose call could change the list. */
        Py_INCREF(packet);
        PyObject *value =
            new(shape, (const unsigned char *)PyBytes_AS_STRING(packet), PyBytes_GET_SIZE(packet));
        Py_DECREF(packet);
        if (value == NULL && !PyErr_Occurred())
            break;
        if (append_new(values, value) < 0)
            goto failed;
    }
    return values;
failed:
    Py_DECREF(values);
    return NULL;
}

PyDoc_STRVAR(read_puts_doc,
"read_puts(packets, shape, /) -> list\n--\n\n"
"`shape(key, ttl, data)` of the PUTs that `packets` begin with, up to one that is malformed.");

static PyObject *
read_puts(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    return is_count(count, 2, "read_puts") ? read_run(args, new_put) : NULL;
}

PyDoc_STRVAR(read_acks_doc,
"read_acks(packets, shape, /) -> list\n--\n\n"
"`shape(id)` of the MSG_ACKs that `packets` begin with, up to one that is malformed.");

static PyObject *
read_acks(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    return is_count(count, 2, "read_acks") ? read_run(args, new_ack) : NULL;
}

PyDoc_STRVAR(read_packet_run_doc,
"read_packet_run(put_shape, ack_shape, data, size_max, count_max, /) -> (values, end)\n--\n\n"
"`put_shape(key, ttl, data)` of the PUTs, or `ack_shape(id)` of the MSG_ACKs, that `data` begins\n"
"with behind their lengths: packets of one type, `count_max` at most. `end` is where the first one\n"
"begins that is of another type, malformed, not whole or longer than `size_max`.");

static PyObject *
read_packet_run(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!is_count(count, 5, "read_packet_run") || !is_bytes(args[2]))
        return NULL;
    const Py_ssize_t size_max = PyLong_AsSsize_t(args[3]), count_max = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred())
        return NULL;
    const unsigned char *data = (const unsigned char *)PyBytes_AS_STRING(args[2]);
    const Py_ssize_t end = PyBytes_GET_SIZE(args[2]);
    PyObject *values = PyList_New(0);
    if (values == NULL)
        return NULL;
    const bool is_ack = end > LENGTH_BYTES && data[LENGTH_BYTES] == MSG_ACK;
    const new_value new = is_ack ? new_ack : new_put;
    PyObject *shape = args[is_ack ? 1 : 0];
    Py_ssize_t at = 0;
    while (PyList_GET_SIZE(values) < count_max && end - at > LENGTH_BYTES) {
        const uint32_t size = read_u32(data + at);
        if (size == 0 || (uint64_t)size > (uint64_t)(size_max < 0 ? 0 : size_max)
            || (uint64_t)size > (uint64_t)(end - at - LENGTH_BYTES))
            break;
        PyObject *value = new(shape, data + at + LENGTH_BYTES, (Py_ssize_t)size);
        if (value == NULL && !PyErr_Occurred())
            break;
        if (append_new(values, value) < 0) {
            Py_DECREF(values);
            return NULL;
        }
        at += LENGTH_BYTES + (Py_ssize_t)size;
    }
    return Py_BuildValue("Nn", values, at);
}

/* WebSocket frames (transports/websocket/frames.py). */

enum { WS_BINARY = 0x82, WS_MASKED = 0x80, WS_WIDE = 126, WS_HEAD_BYTES = 2, WS_MASK_BYTES = 4 };

/* The payload of the next frame and the mask before it, passed over, and its size; 0: it is no
   masked binary message, is not whole, or is longer than 64 KiB. */
static uint32_t
skip_ws_frame(const unsigned char *data, Py_ssize_t end, Py_ssize_t *at)
{
    const Py_ssize_t left = end - *at;
    if (left < WS_HEAD_BYTES + WS_MASK_BYTES || data[*at] != WS_BINARY
        || !(data[*at + 1] & WS_MASKED))
        return 0;
    uint32_t size = data[*at + 1] & 0x7f;
    Py_ssize_t head = WS_HEAD_BYTES + WS_MASK_BYTES;
    if (size == WS_WIDE) {
        size = (uint32_t)data[*at + 2] << 8 | data[*at + 3];
        head += 2;
    }
    if ((head > WS_HEAD_BYTES + WS_MASK_BYTES) != (size >= WS_WIDE)
        || size > UINT16_MAX || left < head + (Py_ssize_t)size)
        return 0;
    *at += head + (Py_ssize_t)size;
    return size;
}

static void
unmask(unsigned char *to, const unsigned char *from, uint32_t size, const unsigned char *mask)
{
    uint64_t wide_mask, eight;
    memcpy(&wide_mask, mask, WS_MASK_BYTES);
    memcpy((unsigned char *)&wide_mask + WS_MASK_BYTES, mask, WS_MASK_BYTES);
    uint32_t i = 0;
    for (; i + 8 <= size; i += 8) {
        memcpy(&eight, from + i, 8);
        eight ^= wide_mask;
        memcpy(to + i, &eight, 8);
    }
    for (; i < size; i++)
        to[i] = from[i] ^ mask[i & 3];
}

PyDoc_STRVAR(unmask_frames_doc,
"unmask_frames(data, size_max, /) -> bytes\n--\n\n"
"The payloads of the WebSocket frames of which `data` consists, each behind its length. b\"\": it\n"
"does not consist of whole, masked, binary messages of 1 to `size_max` bytes alone.");

static PyObject *
unmask_frames(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!is_count(count, 2, "unmask_frames") || !is_bytes(args[0]))
        return NULL;
    const Py_ssize_t size_max = PyLong_AsSsize_t(args[1]);
    if (size_max == -1 && PyErr_Occurred())
        return NULL;
    const unsigned char *data = (const unsigned char *)PyBytes_AS_STRING(args[0]);
    const Py_ssize_t end = PyBytes_GET_SIZE(args[0]);
    Py_ssize_t at = 0, room = 0;
    while (at < end) {
        const uint32_t size = skip_ws_frame(data, end, &at);
        if (size == 0 || (Py_ssize_t)size > size_max)
            return PyBytes_FromStringAndSize(NULL, 0);
        room += LENGTH_BYTES + (Py_ssize_t)size;
    }
    PyObject *packets = PyBytes_FromStringAndSize(NULL, room);
    if (packets == NULL)
        return NULL;
    unsigned char *to = (unsigned char *)PyBytes_AS_STRING(packets);
    for (at = 0; at < end;) {
        const uint32_t size = skip_ws_frame(data, end, &at);
        const unsigned char *payload = data + at - size;
        write_u32(to, size);
        unmask(to + LENGTH_BYTES, payload, size, payload - WS_MASK_BYTES);
        to += LENGTH_BYTES + size;
    }
    return packets;
}

/* A number of an object's attribute; false: there is none, or it is above `max`. */
static bool
read_field(PyObject *object, PyObject *name, uint64_t max, uint64_t *number)
{
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL)
        return false;
    *number = PyLong_AsUnsignedLongLong(value);
    Py_DECREF(value);
    if (PyErr_Occurred())
        return false;
    if (*number <= max)
        return true;
    PyErr_SetString(PyExc_OverflowError, "a number is too large for its field");
    return false;
}

PyDoc_STRVAR(write_put_acks_doc,
"write_put_acks(shape, names, replies, packets, /) -> int\n--\n\n"
"Append a PUT_ACK to `packets` for each of the `shape` objects that `replies` begin with; gives how\n"
"many. `names` are those of its key, ttl and id. Raises OverflowError for numbers that are too large.");

static PyObject *
write_put_acks(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!is_count(count, 4, "write_put_acks") || !is_list(args[3]))
        return NULL;
    PyObject *names = args[1], *replies = args[2];
    const bool is_tuple = PyTuple_Check(replies);
    if (!is_tuple && !is_list(replies))
        return NULL;
    if (!PyTuple_Check(names) || PyTuple_GET_SIZE(names) != 3) {
        PyErr_SetString(PyExc_TypeError, "three names expected");
        return NULL;
    }
    Py_ssize_t at = 0;
    /* Attributes may run code, which could change the list. */
    for (; at < (is_tuple ? PyTuple_GET_SIZE(replies) : PyList_GET_SIZE(replies)); at++) {
        PyObject *reply =
            is_tuple ? PyTuple_GET_ITEM(replies, at) : PyList_GET_ITEM(replies, at);
        if ((PyObject *)Py_TYPE(reply) != args[0])
            break;
        Py_INCREF(reply);
        uint64_t key, ttl, id;
        const bool is_read = read_field(reply, PyTuple_GET_ITEM(names, 0), UINT32_MAX, &key)
            && read_field(reply, PyTuple_GET_ITEM(names, 1), UINT32_MAX, &ttl)
            && read_field(reply, PyTuple_GET_ITEM(names, 2), UINT64_MAX, &id);
        Py_DECREF(reply);
        PyObject *packet = is_read ? PyBytes_FromStringAndSize(NULL, PUT_ACK_BYTES) : NULL;
        if (packet == NULL)
            return NULL;
        unsigned char *field = (unsigned char *)PyBytes_AS_STRING(packet);
        field[0] = PUT_ACK;
        write_u32(field + 1, (uint32_t)key);
        write_u32(field + 5, (uint32_t)ttl);
        write_u64(field + 9, id);
        if (append_new(args[3], packet) < 0)
            return NULL;
    }
    return PyLong_FromSsize_t(at);
}

/* S3P (transports/s3p/fast_parser.py). */

typedef struct {
    const char *data;
    Py_ssize_t size;
    Py_ssize_t at;
} Input;

/* A header such as "$12\r\n", passed over; its number, at most `max`, or 0: it is not there, or not
   plainly right. Leading zeros are not. */
static Py_ssize_t
read_header(Input *input, char type_byte, Py_ssize_t max)
{
    const char *data = input->data;
    Py_ssize_t at = input->at;
    if (at >= input->size || data[at] != type_byte)
        return 0;
    int64_t number = 0;
    for (at++; at < input->size && data[at] >= '0' && data[at] <= '9'; at++) {
        if (number == 0 && data[at] == '0')
            return 0;
        number = 10 * number + (data[at] - '0');
        if (number > max)
            return 0;
    }
    if (input->size - at < 2 || data[at] != '\r' || data[at + 1] != '\n')
        return 0;
    input->at = at + 2;
    return (Py_ssize_t)number;
}

/* A bulk string, passed over; its first byte, or NULL: it is not there, or not plainly right. */
static const char *
read_bulk(Input *input, Py_ssize_t max, Py_ssize_t *size)
{
    *size = read_header(input, '$', max);
    if (*size == 0 || input->size - input->at < *size + 2)
        return NULL;
    const char *text = input->data + input->at;
    if (text[*size] != '\r' || text[*size + 1] != '\n')
        return NULL;
    input->at += *size + 2;
    return text;
}

typedef struct {
    Py_ssize_t records;
    Py_ssize_t record_bytes;
    Py_ssize_t append_bytes;
} AppendLimits;

/* From so many records on one string of all costs less than an object for each. */
enum { PACKED_RECORDS_MIN = 8 };

/* The records of an APPEND. `bytes` are those of all together, `packed_bytes` those of the
   MessagePack strings that they become. */
typedef struct {
    Py_ssize_t count;
    Py_ssize_t bytes;
    Py_ssize_t packed_bytes;
} RecordSizes;

/* The head of a MessagePack string of bytes, as short as it can be; gives its size. */

static Py_ssize_t
packed_head_bytes(Py_ssize_t size)
{
    return size <= UINT8_MAX ? 2 : size <= UINT16_MAX ? 3 : 5;
}

static Py_ssize_t
write_packed_head(unsigned char *at, Py_ssize_t size)
{
    const Py_ssize_t head = packed_head_bytes(size);
    if (head == 2) {
        at[0] = 0xc4;
        at[1] = (unsigned char)size;
    }
    else if (head == 3) {
        at[0] = 0xc5;
        at[1] = (unsigned char)(size >> 8);
        at[2] = (unsigned char)size;
    }
    else {
        at[0] = 0xc6;
        write_u32(at + 1, (uint32_t)size);
    }
    return head;
}

/* The array of records of an APPEND, passed over, and their sizes. False: it is not all there, or
   not plainly right. */
static bool
skip_records(Input *input, const AppendLimits *limits, RecordSizes *sizes)
{
    sizes->count = read_header(input, '*', limits->records);
    sizes->bytes = sizes->packed_bytes = 0;
    for (Py_ssize_t i = 0; i < sizes->count; i++) {
        Py_ssize_t size;
        if (read_bulk(input, limits->record_bytes, &size) == NULL
            || size > limits->append_bytes - sizes->bytes)
            return false;
        sizes->bytes += size;
        sizes->packed_bytes += packed_head_bytes(size) + size;
    }
    return sizes->count > 0;
}

/* The records of an array that `skip_records` has passed over: a list, or one packed string. */

static PyObject *
new_record_list(Input *input, const AppendLimits *limits)
{
    const Py_ssize_t count = read_header(input, '*', limits->records);
    PyObject *records = PyList_New(count);
    for (Py_ssize_t i = 0; records != NULL && i < count; i++) {
        Py_ssize_t size;
        const char *text = read_bulk(input, limits->record_bytes, &size);
        PyObject *record = PyBytes_FromStringAndSize(text, size);
        if (record == NULL)
            Py_CLEAR(records);
        else
            PyList_SET_ITEM(records, i, record);
    }
    return records;
}

static PyObject *
new_packed_records(
    Input *input, const AppendLimits *limits, const RecordSizes *sizes, PyObject *shape)
{
    PyObject *data = PyBytes_FromStringAndSize(NULL, sizes->packed_bytes);
    if (data == NULL)
        return NULL;
    unsigned char *at = (unsigned char *)PyBytes_AS_STRING(data);
    read_header(input, '*', limits->records);
    for (Py_ssize_t i = 0; i < sizes->count; i++) {
        Py_ssize_t size;
        const char *text = read_bulk(input, limits->record_bytes, &size);
        at += write_packed_head(at, size);
        memcpy(at, text, (size_t)size);
        at += size;
    }
    return PyObject_CallFunction(shape, "nnN", sizes->count, sizes->bytes, data);
}

static bool
read_append_limits(PyObject *given, AppendLimits *limits)
{
    if (!PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "the limits are a tuple");
        return false;
    }
    int records, record_bytes, append_bytes;
    if (!PyArg_ParseTuple(given, "iii", &records, &record_bytes, &append_bytes))
        return false;
    *limits = (AppendLimits){records, record_bytes, append_bytes};
    return true;
}

/* The records of the next APPEND, passed over: its bytes before them are `opening`. NULL without an
   exception: it is none, is not all there, or is not plainly right. */
static PyObject *
read_append(Input *input, PyObject *opening, const AppendLimits *limits, PyObject *packed_shape)
{
    const Py_ssize_t opening_bytes = PyBytes_GET_SIZE(opening);
    if (opening_bytes == 0 || input->size - input->at < opening_bytes
        || memcmp(input->data + input->at, PyBytes_AS_STRING(opening), (size_t)opening_bytes) != 0)
        return NULL;
    const Py_ssize_t records_at = input->at + opening_bytes;
    RecordSizes sizes;
    input->at = records_at;
    if (!skip_records(input, limits, &sizes))
        return NULL;
    input->at = records_at;
    return sizes.count < PACKED_RECORDS_MIN
        ? new_record_list(input, limits)
        : new_packed_records(input, limits, &sizes, packed_shape);
}

PyDoc_STRVAR(read_appends_doc,
"read_appends(data, opening, name, shape, packed_shape, found, limits, /) -> int\n--\n\n"
"Put `shape(name, None, records)` of the APPENDs that `data` begins with into `found`; all bytes of\n"
"each before its records are `opening`. PACKED_RECORDS_MIN records and more are one\n"
"`packed_shape(count, size, data)`. `limits` are those of records, of the bytes of one, and of the\n"
"bytes of all records of an APPEND. Gives where the first one begins that is none, is not all there\n"
"or not plainly right.");

static PyObject *
read_appends(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    AppendLimits limits;
    if (!is_count(count, 7, "read_appends") || !is_bytes(args[0]) || !is_bytes(args[1])
        || !is_list(args[5]) || !read_append_limits(args[6], &limits))
        return NULL;
    PyObject *name = args[2], *shape = args[3], *packed_shape = args[4], *found = args[5];
    Input input = {PyBytes_AS_STRING(args[0]), PyBytes_GET_SIZE(args[0]), 0};
    Py_ssize_t end = 0;
    PyObject *records;
    while ((records = read_append(&input, args[1], &limits, packed_shape)) != NULL) {
        PyObject *fields[3] = {name, Py_None, records};
        PyObject *append = PyObject_Vectorcall(shape, fields, 3, NULL);
        Py_DECREF(records);
        if (append_new(found, append) < 0)
            return NULL;
        end = input.at;
    }
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(end);
}

PyDoc_STRVAR(read_append_run_doc,
"read_append_run(data, opening, number, shape, packed_shape, limits, /) -> list | None\n--\n\n"
"`shape(number, records)` of each of the APPENDs that `data` consists of, their numbers ascending;\n"
"see `read_appends`. None: it does not consist of such APPENDs alone.");

static PyObject *
read_append_run(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    AppendLimits limits;
    if (!is_count(count, 6, "read_append_run") || !is_bytes(args[0]) || !is_bytes(args[1])
        || !read_append_limits(args[5], &limits))
        return NULL;
    uint64_t number = PyLong_AsUnsignedLongLong(args[2]);
    if (PyErr_Occurred())
        return NULL;
    Input input = {PyBytes_AS_STRING(args[0]), PyBytes_GET_SIZE(args[0]), 0};
    PyObject *appends = PyList_New(0);
    while (appends != NULL && input.at < input.size) {
        PyObject *records = read_append(&input, args[1], &limits, args[4]);
        if (records == NULL) {
            Py_DECREF(appends);
            if (PyErr_Occurred())
                return NULL;
            Py_RETURN_NONE;
        }
        PyObject *fields[2] = {PyLong_FromUnsignedLongLong(number++), records};
        PyObject *append =
            fields[0] == NULL ? NULL : PyObject_Vectorcall(args[3], fields, 2, NULL);
        Py_XDECREF(fields[0]);
        Py_DECREF(records);
        if (append_new(appends, append) < 0)
            Py_CLEAR(appends);
    }
    return appends;
}

/* Decimal digits of a number, written backwards before `end`; gives where they begin. */
static char *
write_digits(char *end, uint64_t number)
{
    do {
        *--end = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    return end;
}

enum { DIGITS_MAX = 20 };

static char *
copy(char *at, const char *text, size_t size)
{
    memcpy(at, text, size);
    return at + size;
}

/* "$<size>\r\n" */
static char *
write_bulk_header(char *at, size_t size)
{
    char digits[DIGITS_MAX];
    const char *first = write_digits(digits + DIGITS_MAX, size);
    *at++ = '$';
    at = copy(at, first, (size_t)(digits + DIGITS_MAX - first));
    return copy(at, "\r\n", 2);
}

/* A header, an id, a header and two ends of lines are never longer. */
enum { FRAME_BYTES_MAX = 2 * (1 + DIGITS_MAX + 2) + (DIGITS_MAX + 1 + DIGITS_MAX) + 2 + 2 };

/* The ids of records, which go up by one. */
typedef struct {
    char ms[DIGITS_MAX];
    size_t ms_size;
    uint64_t seq;
} RecordIds;

static void
begin_ids(RecordIds *ids, uint64_t ms, uint64_t seq)
{
    char digits[DIGITS_MAX];
    const char *first = write_digits(digits + DIGITS_MAX, ms);
    ids->ms_size = (size_t)(digits + DIGITS_MAX - first);
    memcpy(ids->ms, first, ids->ms_size);
    ids->seq = seq;
}

/* The next id and a body, as in the reply to a READ. */
static char *
write_record(char *at, RecordIds *ids, const char *body, size_t size)
{
    char id[DIGITS_MAX + 1 + DIGITS_MAX];
    char *const end = id + sizeof id;
    char *first = write_digits(end, ids->seq++);
    *--first = '-';
    first -= ids->ms_size;
    memcpy(first, ids->ms, ids->ms_size);
    at = write_bulk_header(at, (size_t)(end - first));
    at = copy(at, first, (size_t)(end - first));
    at = copy(at, "\r\n", 2);
    at = write_bulk_header(at, size);
    at = copy(at, body, size);
    return copy(at, "\r\n", 2);
}

PyDoc_STRVAR(write_records_doc,
"write_records(ms, seq, bodies, /) -> bytes\n--\n\n"
"Ids and bodies alternating, as in the reply to a READ; the ids are `<ms>-<seq>` and go up by one.\n"
"Raises OverflowError for numbers above the largest u64.");

static PyObject *
write_records(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!is_count(count, 3, "write_records") || !is_list(args[2]))
        return NULL;
    const uint64_t ms = PyLong_AsUnsignedLongLong(args[0]);
    if (PyErr_Occurred())
        return NULL;
    const uint64_t seq = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    const Py_ssize_t records = PyList_GET_SIZE(args[2]);
    if (records > 0 && seq > UINT64_MAX - (uint64_t)(records - 1)) {
        PyErr_SetString(PyExc_OverflowError, "an id is above the largest u64");
        return NULL;
    }
    Py_ssize_t room = 0;
    for (Py_ssize_t i = 0; i < records; i++) {
        PyObject *body = PyList_GET_ITEM(args[2], i);
        if (!is_bytes(body))
            return NULL;
        if (PyBytes_GET_SIZE(body) > PY_SSIZE_T_MAX - FRAME_BYTES_MAX - room)
            return PyErr_NoMemory();
        room += FRAME_BYTES_MAX + PyBytes_GET_SIZE(body);
    }
    PyObject *written = PyBytes_FromStringAndSize(NULL, room);
    if (written == NULL)
        return NULL;
    RecordIds ids;
    begin_ids(&ids, ms, seq);
    char *at = PyBytes_AS_STRING(written);
    for (Py_ssize_t i = 0; i < records; i++) {
        PyObject *body = PyList_GET_ITEM(args[2], i);
        at = write_record(at, &ids, PyBytes_AS_STRING(body), (size_t)PyBytes_GET_SIZE(body));
    }
    _PyBytes_Resize(&written, at - PyBytes_AS_STRING(written));
    return written;
}

/* Chunks of streams (actors/streams/chunks.py): MessagePack arrays of columns. */

enum { CHUNK_COLUMNS_MIN = 4, CHUNK_COLUMNS_MAX = 6 };
enum { NIL = 0xc0, FIXARRAY = 0x90, FIXARRAY_MAX = 15 };

/* A big-endian number of so many bytes, passed over; false: it is not there. */
static bool
read_number(Input *input, int bytes, uint64_t *number)
{
    if (input->size - input->at < bytes)
        return false;
    *number = 0;
    for (int i = 0; i < bytes; i++)
        *number = *number << 8 | (unsigned char)input->data[input->at++];
    return true;
}

static bool
read_type(Input *input, unsigned char *type)
{
    if (input->at >= input->size)
        return false;
    *type = (unsigned char)input->data[input->at++];
    return true;
}

static bool
read_array_head(Input *input, uint64_t *count)
{
    unsigned char type;
    if (!read_type(input, &type))
        return false;
    *count = type & FIXARRAY_MAX;
    return (type & ~FIXARRAY_MAX) == FIXARRAY
        || (type == 0xdc && read_number(input, 2, count))
        || (type == 0xdd && read_number(input, 4, count));
}

static bool
read_unsigned(Input *input, uint64_t *number)
{
    unsigned char type;
    if (!read_type(input, &type))
        return false;
    *number = type;
    return type < 0x80 || (type >= 0xcc && type <= 0xcf && read_number(input, 1 << (type - 0xcc), number));
}

/* The next body of packed ones, passed over; NULL: there is none. */
static const char *
read_packed_body(Input *input, Py_ssize_t *size)
{
    unsigned char type;
    uint64_t length;
    if (!read_type(input, &type) || type < 0xc4 || type > 0xc6
        || !read_number(input, 1 << (type - 0xc4), &length)
        || length > (uint64_t)(input->size - input->at))
        return NULL;
    const char *body = input->data + input->at;
    *size = (Py_ssize_t)length;
    input->at += *size;
    return body;
}

static bool
skip_nil(Input *input)
{
    unsigned char type;
    return read_type(input, &type) && type == NIL;
}

/* The sizes of a chunk's appends, passed over: nil, a number, or numbers above 0 that are `count`
   together. */
static bool
skip_append_sizes(Input *input, uint64_t count)
{
    uint64_t sizes, size;
    const Py_ssize_t at = input->at;
    if (skip_nil(input))
        return true;
    input->at = at;
    if (read_unsigned(input, &size))
        return true;
    input->at = at;
    if (!read_array_head(input, &sizes))
        return false;
    for (; sizes > 0; sizes--) {
        if (!read_unsigned(input, &size) || size == 0 || size > count)
            return false;
        count -= size;
    }
    return count == 0;
}

PyDoc_STRVAR(measure_bodies_doc,
"measure_bodies(record_bytes, data, count, begin, end, size_max, /) -> (offset, taken, size) | None\n--\n\n"
"Of the `count` bodies of a chunk with these `data`: where that at `begin` stands, how many from\n"
"there to before `end` have a size of `size_max` at most, and that size: their bytes, and\n"
"`record_bytes` for each. None: a body is empty, a record has more than a body, or the data are not\n"
"plainly right.");

static PyObject *
measure_bodies(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!is_count(count, 6, "measure_bodies") || !is_bytes(args[1]))
        return NULL;
    const Py_ssize_t record_bytes = PyLong_AsSsize_t(args[0]), wanted = PyLong_AsSsize_t(args[2]);
    const Py_ssize_t begin = PyLong_AsSsize_t(args[3]), end = PyLong_AsSsize_t(args[4]);
    if (PyErr_Occurred())
        return NULL;
    const uint64_t size_max = PyLong_AsUnsignedLongLong(args[5]);
    if (PyErr_Occurred())
        return NULL;
    if (record_bytes < 0 || record_bytes > UINT16_MAX) {
        PyErr_SetString(PyExc_ValueError, "no such size of a record");
        return NULL;
    }
    Input input = {PyBytes_AS_STRING(args[1]), PyBytes_GET_SIZE(args[1]), 0};
    uint64_t columns, bodies, arrived, taken_bytes = 0;
    if (begin < 0 || end > wanted || begin >= end || !read_array_head(&input, &columns)
        || columns < CHUNK_COLUMNS_MIN || columns > CHUNK_COLUMNS_MAX
        || !read_array_head(&input, &bodies) || bodies != (uint64_t)wanted)
        Py_RETURN_NONE;
    Py_ssize_t offset = 0, taken = 0, size;
    for (Py_ssize_t i = 0; i < wanted; i++) {
        if (i == begin)
            offset = input.at;
        if (read_packed_body(&input, &size) == NULL || size == 0)
            Py_RETURN_NONE;
        const uint64_t more = (uint64_t)size + (uint64_t)record_bytes;
        if (i == begin + taken && i < end && more <= size_max - taken_bytes) {
            taken_bytes += more;
            taken++;
        }
    }
    if (!skip_nil(&input) || !skip_nil(&input) || !skip_nil(&input)
        || (columns > 4 && !skip_append_sizes(&input, bodies))
        || (columns > 5 && !read_unsigned(&input, &arrived)) || input.at != input.size)
        Py_RETURN_NONE;
    return Py_BuildValue("nnK", offset, taken, (unsigned long long)taken_bytes);
}

/* The arguments `data, offset, count`: so many bodies of a chunk, which stand there in its data; and
   `first, second` behind them: two numbers. `first` is that of the first body; it goes up by one with each. */
typedef struct {
    Input input;
    Py_ssize_t offset;
    Py_ssize_t count;
    uint64_t first;
    uint64_t second;
    uint64_t bytes;
} PackedPart;

static bool
read_packed_bodies(PyObject *const *args, PackedPart *part)
{
    if (!is_bytes(args[0]))
        return false;
    part->offset = PyLong_AsSsize_t(args[1]);
    part->count = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred())
        return false;
    if (part->offset < 0 || part->count < 0 || part->offset > PyBytes_GET_SIZE(args[0])) {
        PyErr_SetString(PyExc_ValueError, "no such part of the data");
        return false;
    }
    part->input = (Input){PyBytes_AS_STRING(args[0]), PyBytes_GET_SIZE(args[0]), part->offset};
    part->bytes = 0;
    Py_ssize_t size;
    for (Py_ssize_t i = 0; i < part->count; i++) {
        if (read_packed_body(&part->input, &size) == NULL) {
            PyErr_SetString(PyExc_ValueError, "there are fewer bodies");
            return false;
        }
        part->bytes += (uint64_t)size;
    }
    part->input.at = part->offset;
    return true;
}

static bool
read_packed_part(PyObject *const *args, Py_ssize_t count, const char *name, PackedPart *part)
{
    if (!is_count(count, 5, name) || !read_packed_bodies(args, part))
        return false;
    part->first = PyLong_AsUnsignedLongLong(args[3]);
    if (PyErr_Occurred())
        return false;
    part->second = PyLong_AsUnsignedLongLong(args[4]);
    if (PyErr_Occurred())
        return false;
    if (part->count > 0 && part->first > UINT64_MAX - (uint64_t)(part->count - 1)) {
        PyErr_SetString(PyExc_OverflowError, "a number is above the largest u64");
        return false;
    }
    return true;
}

/* A string for all bodies of a part, of which each becomes at most `numerator / denominator` of its
   bytes and `more`. */
static PyObject *
new_part_bytes(const PackedPart *part, Py_ssize_t more, int numerator, int denominator)
{
    const uint64_t bodies = part->bytes / (uint64_t)denominator * (uint64_t)numerator;
    const uint64_t all = bodies + (uint64_t)numerator + (uint64_t)part->count * (uint64_t)more;
    return all > PY_SSIZE_T_MAX ? PyErr_NoMemory() : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)all);
}

PyDoc_STRVAR(write_packed_records_doc,
"write_packed_records(data, offset, count, seq, ms, /) -> bytes\n--\n\n"
"`write_records` for `count` bodies of a chunk that stand at `offset` of its `data`. Raises\n"
"ValueError where there are fewer.");

static PyObject *
write_packed_records(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PackedPart part;
    if (!read_packed_part(args, count, "write_packed_records", &part))
        return NULL;
    PyObject *written = new_part_bytes(&part, FRAME_BYTES_MAX, 1, 1);
    if (written == NULL)
        return NULL;
    RecordIds ids;
    begin_ids(&ids, part.second, part.first);
    char *at = PyBytes_AS_STRING(written);
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < part.count; i++) {
        const char *body = read_packed_body(&part.input, &size);
        at = write_record(at, &ids, body, (size_t)size);
    }
    _PyBytes_Resize(&written, at - PyBytes_AS_STRING(written));
    return written;
}

/* S2 in protobuf (transports/http/s2/codecs/protobuf.py and s2.proto). */

enum { INPUT_RECORDS = 0x0a, RECORD_TIMESTAMP = 0x08, RECORD_BODY = 0x1a };
enum { BATCH_RECORDS = 0x0a, FOUND_SEQUENCE = 0x08, FOUND_TIMESTAMP = 0x10, FOUND_BODY = 0x22 };
enum { VARINT_BYTES_MAX = 10 };

/* A varint, passed over. False: its end is not there, or it is above the largest u64. */
static bool
read_varint(Input *input, uint64_t *value)
{
    uint64_t found = 0;
    for (int shift = 0; shift < 70 && input->at < input->size; shift += 7) {
        const uint64_t byte = (unsigned char)input->data[input->at++];
        if (shift == 63 && byte > 1)
            return false;
        found |= (byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value = found;
            return true;
        }
    }
    return false;
}

/* The length of a field whose tag was read; false: the field does not end within the input. */
static bool
read_length(Input *input, Py_ssize_t *size)
{
    uint64_t length;
    if (!read_varint(input, &length) || length > (uint64_t)(input->size - input->at))
        return false;
    *size = (Py_ssize_t)length;
    return true;
}

static bool
skip_tag(Input *input, unsigned char tag)
{
    if (input->at >= input->size || (unsigned char)input->data[input->at] != tag)
        return false;
    input->at++;
    return true;
}

typedef struct {
    const char *body;
    Py_ssize_t size;
    bool has_timestamp;
    uint64_t timestamp;
} InputRecord;

/* The next record of an AppendInput that has a timestamp and a body at most, in this order. False:
   it is none. */
static bool
read_input_record(Input *input, InputRecord *record)
{
    Py_ssize_t size;
    if (!skip_tag(input, INPUT_RECORDS) || !read_length(input, &size))
        return false;
    Input inner = {input->data, input->at + size, input->at};
    *record = (InputRecord){.body = input->data};
    record->has_timestamp = skip_tag(&inner, RECORD_TIMESTAMP);
    if (record->has_timestamp && !read_varint(&inner, &record->timestamp))
        return false;
    if (skip_tag(&inner, RECORD_BODY)) {
        if (!read_length(&inner, &record->size))
            return false;
        record->body = inner.data + inner.at;
        inner.at += record->size;
    }
    input->at = inner.size;
    return inner.at == inner.size;
}

/* True: all of the input is such records; their number and sizes. */
static bool
skip_input_records(Input *input, Py_ssize_t records_max, RecordSizes *sizes, bool *has_timestamps)
{
    InputRecord record;
    *sizes = (RecordSizes){0};
    *has_timestamps = false;
    while (input->at < input->size) {
        if (sizes->count == records_max || !read_input_record(input, &record)
            || (uint64_t)record.size > UINT32_MAX)
            return false;
        sizes->count++;
        sizes->bytes += record.size;
        sizes->packed_bytes += packed_head_bytes(record.size) + record.size;
        *has_timestamps |= record.has_timestamp;
    }
    return sizes->count >= PACKED_RECORDS_MIN;
}

PyDoc_STRVAR(read_append_input_doc,
"read_append_input(data, records_max, packed_shape, /) -> tuple | None\n--\n\n"
"The records of an AppendInput of PACKED_RECORDS_MIN to `records_max` records that have no headers,\n"
"and no conditions: `(packed_shape(count, size, data), timestamps)`. `timestamps` has None for a\n"
"record without one, and is None if none has one. None: the message is another one.");

static PyObject *
read_append_input(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!is_count(count, 3, "read_append_input") || !is_bytes(args[0]))
        return NULL;
    const Py_ssize_t records_max = PyLong_AsSsize_t(args[1]);
    if (records_max == -1 && PyErr_Occurred())
        return NULL;
    Input input = {PyBytes_AS_STRING(args[0]), PyBytes_GET_SIZE(args[0]), 0};
    RecordSizes sizes;
    bool has_timestamps;
    if (!skip_input_records(&input, records_max, &sizes, &has_timestamps))
        Py_RETURN_NONE;
    PyObject *timestamps = has_timestamps ? PyList_New(sizes.count) : Py_NewRef(Py_None);
    PyObject *data = PyBytes_FromStringAndSize(NULL, sizes.packed_bytes);
    if (timestamps == NULL || data == NULL)
        goto failed;
    unsigned char *at = (unsigned char *)PyBytes_AS_STRING(data);
    input.at = 0;
    for (Py_ssize_t i = 0; i < sizes.count; i++) {
        InputRecord record;
        read_input_record(&input, &record);
        at += write_packed_head(at, record.size);
        memcpy(at, record.body, (size_t)record.size);
        at += record.size;
        if (has_timestamps) {
            PyObject *timestamp = record.has_timestamp
                ? PyLong_FromUnsignedLongLong(record.timestamp)
                : Py_NewRef(Py_None);
            if (timestamp == NULL)
                goto failed;
            PyList_SET_ITEM(timestamps, i, timestamp);
        }
    }
    PyObject *packed = PyObject_CallFunction(args[2], "nnN", sizes.count, sizes.bytes, data);
    if (packed == NULL) {
        Py_DECREF(timestamps);
        return NULL;
    }
    return Py_BuildValue("NN", packed, timestamps);
failed:
    Py_XDECREF(timestamps);
    Py_XDECREF(data);
    return NULL;
}

static Py_ssize_t
varint_bytes(uint64_t value)
{
    Py_ssize_t size = 1;
    for (; value >= 0x80; value >>= 7)
        size++;
    return size;
}

static char *
write_varint(char *at, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *at++ = (char)(value | 0x80);
    *at++ = (char)value;
    return at;
}

/* A field with its tag, of a byte, unless it is zero. */

static Py_ssize_t
number_field_bytes(uint64_t value)
{
    return value ? 1 + varint_bytes(value) : 0;
}

static char *
write_number_field(char *at, unsigned char tag, uint64_t value)
{
    if (value) {
        *at++ = (char)tag;
        at = write_varint(at, value);
    }
    return at;
}

/* A record's tag and length, its sequence and timestamp, and the head of its body are never
   longer. */
enum { FOUND_BYTES_MAX = 4 * (1 + VARINT_BYTES_MAX) };

static char *
write_found_record(char *at, uint64_t sequence, uint64_t timestamp, const char *body, size_t size)
{
    const Py_ssize_t inner = number_field_bytes(sequence) + number_field_bytes(timestamp)
        + number_field_bytes(size) + (Py_ssize_t)size;
    *at++ = BATCH_RECORDS;
    at = write_varint(at, (uint64_t)inner);
    at = write_number_field(at, FOUND_SEQUENCE, sequence);
    at = write_number_field(at, FOUND_TIMESTAMP, timestamp);
    at = write_number_field(at, FOUND_BODY, size);
    return copy(at, body, size);
}

PyDoc_STRVAR(write_batch_doc,
"write_batch(first, timestamp, timestamps, bodies, /) -> bytes\n--\n\n"
"Records of a ReadBatch that have no headers: their sequences go up by one from `first`, and\n"
"`timestamp` is that of each where `timestamps` is None. Raises OverflowError for numbers above the\n"
"largest u64, ValueError where there is not a timestamp for each body.");

static PyObject *
write_batch(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!is_count(count, 4, "write_batch") || !is_list(args[3])
        || (args[2] != Py_None && !is_list(args[2])))
        return NULL;
    PyObject *timestamps = args[2], *bodies = args[3];
    uint64_t sequence = PyLong_AsUnsignedLongLong(args[0]);
    if (PyErr_Occurred())
        return NULL;
    uint64_t timestamp = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    const Py_ssize_t records = PyList_GET_SIZE(bodies);
    if (timestamps != Py_None && PyList_GET_SIZE(timestamps) != records) {
        PyErr_SetString(PyExc_ValueError, "there is not a timestamp for each body");
        return NULL;
    }
    if (records > 0 && sequence > UINT64_MAX - (uint64_t)(records - 1)) {
        PyErr_SetString(PyExc_OverflowError, "a sequence is above the largest u64");
        return NULL;
    }
    Py_ssize_t room = 0;
    for (Py_ssize_t i = 0; i < records; i++) {
        PyObject *body = PyList_GET_ITEM(bodies, i);
        if (!is_bytes(body))
            return NULL;
        if (PyBytes_GET_SIZE(body) > PY_SSIZE_T_MAX - FOUND_BYTES_MAX - room)
            return PyErr_NoMemory();
        room += FOUND_BYTES_MAX + PyBytes_GET_SIZE(body);
    }
    PyObject *written = PyBytes_FromStringAndSize(NULL, room);
    if (written == NULL)
        return NULL;
    char *at = PyBytes_AS_STRING(written);
    for (Py_ssize_t i = 0; i < records; i++, sequence++) {
        PyObject *body = PyList_GET_ITEM(bodies, i);
        if (timestamps != Py_None) {
            timestamp = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(timestamps, i));
            if (PyErr_Occurred()) {
                Py_DECREF(written);
                return NULL;
            }
        }
        at = write_found_record(
            at, sequence, timestamp, PyBytes_AS_STRING(body), (size_t)PyBytes_GET_SIZE(body));
    }
    _PyBytes_Resize(&written, at - PyBytes_AS_STRING(written));
    return written;
}

PyDoc_STRVAR(write_packed_batch_doc,
"write_packed_batch(data, offset, count, first, timestamp, /) -> bytes\n--\n\n"
"`write_batch` for `count` bodies of a chunk that stand at `offset` of its `data`, all with one\n"
"timestamp. Raises ValueError where there are fewer.");

static PyObject *
write_packed_batch(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PackedPart part;
    if (!read_packed_part(args, count, "write_packed_batch", &part))
        return NULL;
    PyObject *written = new_part_bytes(&part, FOUND_BYTES_MAX, 1, 1);
    if (written == NULL)
        return NULL;
    char *at = PyBytes_AS_STRING(written);
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < part.count; i++) {
        const char *body = read_packed_body(&part.input, &size);
        at = write_found_record(at, part.first++, part.second, body, (size_t)size);
    }
    _PyBytes_Resize(&written, at - PyBytes_AS_STRING(written));
    return written;
}

/* RustLog's JSON (transports/rustlog/codec.py): records are strings of Base64. */

static const char BASE64[64] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* Two characters for each 12 bits, and the bits of a character at each of the four places of a
   group, by its code; NO_DIGIT: the character is none. Filled when the module is loaded. */
static unsigned char BASE64_PAIRS[4096][2];
static uint32_t BASE64_BITS[4][256];
enum { NO_DIGIT = 1 << 24 };

static void
fill_base64_tables(void)
{
    for (int i = 0; i < 4096; i++) {
        BASE64_PAIRS[i][0] = (unsigned char)BASE64[i >> 6];
        BASE64_PAIRS[i][1] = (unsigned char)BASE64[i & 63];
    }
    for (int place = 0; place < 4; place++) {
        for (int code = 0; code < 256; code++)
            BASE64_BITS[place][code] = NO_DIGIT;
        for (int digit = 0; digit < 64; digit++)
            BASE64_BITS[place][(unsigned char)BASE64[digit]] = (uint32_t)digit << (18 - 6 * place);
    }
}

/* The 24 bits of four characters; NO_DIGIT and more: one is none. */
static uint32_t
base64_group(const unsigned char *text)
{
    return BASE64_BITS[0][text[0]] | BASE64_BITS[1][text[1]] | BASE64_BITS[2][text[2]]
        | BASE64_BITS[3][text[3]];
}

static Py_ssize_t
base64_text_bytes(Py_ssize_t size)
{
    return (size + 2) / 3 * 4;
}

static char *
write_base64(char *at, const unsigned char *data, Py_ssize_t size)
{
    for (; size >= 3; data += 3, size -= 3) {
        const uint32_t bits = (uint32_t)data[0] << 16 | (uint32_t)data[1] << 8 | data[2];
        memcpy(at, BASE64_PAIRS[bits >> 12], 2);
        memcpy(at + 2, BASE64_PAIRS[bits & 4095], 2);
        at += 4;
    }
    if (size > 0) {
        const uint32_t bits = (uint32_t)data[0] << 16 | (size > 1 ? (uint32_t)data[1] << 8 : 0);
        *at++ = BASE64[bits >> 18];
        *at++ = BASE64[bits >> 12 & 63];
        *at++ = size > 1 ? BASE64[bits >> 6 & 63] : '=';
        *at++ = '=';
    }
    return at;
}

/* The bytes that a text of Base64 stands for; -1: it is not plainly right. `size` is a multiple of
   4, and there is room for three quarters of it. */
static Py_ssize_t
read_base64(unsigned char *at, const char *text, Py_ssize_t size)
{
    const unsigned char *const start = at;
    const unsigned char *group = (const unsigned char *)text;
    const Py_ssize_t padding = size == 0 ? 0 : (text[size - 1] == '=') + (text[size - 2] == '=');
    uint32_t bad = 0;
    for (Py_ssize_t left = padding ? size - 4 : size; left > 0; left -= 4, group += 4) {
        const uint32_t bits = base64_group(group);
        bad |= bits;
        *at++ = (unsigned char)(bits >> 16);
        *at++ = (unsigned char)(bits >> 8);
        *at++ = (unsigned char)bits;
    }
    if (padding) {
        const unsigned char last[4] = {
            group[0], group[1], padding == 1 ? group[2] : (unsigned char)'A', 'A'};
        const uint32_t bits = base64_group(last);
        bad |= bits;
        *at++ = (unsigned char)(bits >> 16);
        if (padding == 1)
            *at++ = (unsigned char)(bits >> 8);
        /* Bits that no byte has are zero, where they are plainly right. */
        if ((bits & (padding == 1 ? 0xff : 0xffff)) != 0)
            return -1;
    }
    return bad >= NO_DIGIT ? -1 : at - start;
}

/* The next string of an array, passed over with the comma or the bracket behind it; its text, or
   NULL: it is not plainly right. */
static const char *
read_base64_string(Input *input, Py_ssize_t *size)
{
    if (input->at >= input->size || input->data[input->at] != '"')
        return NULL;
    const char *text = input->data + input->at + 1;
    const char *end = memchr(text, '"', (size_t)(input->size - input->at - 1));
    if (end == NULL || (end - text) % 4 != 0)
        return NULL;
    *size = end - text;
    input->at += *size + 2;
    if (input->at >= input->size || input->data[input->at] != ',')
        return input->at == input->size ? text : NULL;
    input->at++;
    return input->at < input->size ? text : NULL;
}

PyDoc_STRVAR(read_base64_records_doc,
"read_base64_records(data, start, end, records_max, packed_shape, /) -> object | None\n--\n\n"
"`packed_shape(count, size, packed)` of the strings of Base64 between `start` and `end` of `data`,\n"
"with a comma between two. None: there are fewer than PACKED_RECORDS_MIN, more than `records_max`,\n"
"or they are not plainly right.");

static PyObject *
read_base64_records(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!is_count(count, 5, "read_base64_records") || !is_bytes(args[0]))
        return NULL;
    const Py_ssize_t start = PyLong_AsSsize_t(args[1]), end = PyLong_AsSsize_t(args[2]);
    const Py_ssize_t records_max = PyLong_AsSsize_t(args[3]);
    if (PyErr_Occurred())
        return NULL;
    if (start < 0 || end < start || end > PyBytes_GET_SIZE(args[0])) {
        PyErr_SetString(PyExc_ValueError, "no such part of the data");
        return NULL;
    }
    Input input = {PyBytes_AS_STRING(args[0]), end, start};
    Py_ssize_t records = 0, room = 0, size;
    while (input.at < end) {
        if (records == records_max || read_base64_string(&input, &size) == NULL
            || (uint64_t)size > UINT32_MAX)
            Py_RETURN_NONE;
        records++;
        room += 5 + size / 4 * 3;
    }
    if (records < PACKED_RECORDS_MIN)
        Py_RETURN_NONE;
    PyObject *packed = PyBytes_FromStringAndSize(NULL, room);
    if (packed == NULL)
        return NULL;
    unsigned char *const first = (unsigned char *)PyBytes_AS_STRING(packed), *at = first;
    Py_ssize_t bytes = 0;
    input.at = start;
    while (input.at < end) {
        const char *text = read_base64_string(&input, &size);
        const Py_ssize_t padding =
            size == 0 ? 0 : (text[size - 1] == '=') + (text[size - 2] == '=');
        const Py_ssize_t body = size / 4 * 3 - padding;
        at += write_packed_head(at, body);
        if (read_base64(at, text, size) != body) {
            Py_DECREF(packed);
            Py_RETURN_NONE;
        }
        at += body;
        bytes += body;
    }
    if (_PyBytes_Resize(&packed, (const unsigned char *)at - first) < 0)
        return NULL;
    return PyObject_CallFunction(args[4], "nnN", records, bytes, packed);
}

/* S2's appends as JSON (transports/http/s2/codecs/json.py). */

static void
skip_space(Input *input)
{
    while (input->at < input->size) {
        const char each = input->data[input->at];
        if (each != ' ' && each != '\n' && each != '\r' && each != '\t')
            return;
        input->at++;
    }
}

/* A text that has to be next, passed over with the space around it. */
static bool
skip_text(Input *input, const char *text, Py_ssize_t size)
{
    skip_space(input);
    if (input->size - input->at < size || memcmp(input->data + input->at, text, (size_t)size) != 0)
        return false;
    input->at += size;
    skip_space(input);
    return true;
}

#define SKIP_TEXT(input, text) skip_text(input, text, (Py_ssize_t)sizeof(text) - 1)

/* The character that an escape of two stands for; 0: it is another escape. */
static char
unescaped(char escape)
{
    switch (escape) {
    case '"':
    case '\\':
    case '/':
        return escape;
    case 'b':
        return '\b';
    case 'f':
        return '\f';
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    default:
        return 0;
    }
}

typedef struct {
    const char *text;
    Py_ssize_t size;
    Py_ssize_t escapes;
} JsonString;

/* The next string, passed over; false: it is not plainly right. */
static bool
read_json_string(Input *input, JsonString *found)
{
    const char *const limit = input->data + input->size;
    if (input->at >= input->size || input->data[input->at] != '"')
        return false;
    const char *const text = input->data + input->at + 1, *at = text;
    const char *end = memchr(text, '"', (size_t)(limit - text));
    found->escapes = 0;
    while (end != NULL) {
        const char *const escape = memchr(at, '\\', (size_t)(end - at));
        if (escape == NULL)
            break;
        /* Behind it is at least the quote. */
        if (unescaped(escape[1]) == 0)
            return false;
        found->escapes++;
        at = escape + 2;
        if (at > end)
            end = memchr(at, '"', (size_t)(limit - at));
    }
    if (end == NULL)
        return false;
    found->text = text;
    found->size = end - text;
    input->at = end + 1 - input->data;
    unsigned char high = 0, control = 0;
    for (at = text; at < end; at++) {
        high |= (unsigned char)*at;
        control |= (unsigned char)*at < 0x20;
    }
    if (control)
        return false;
    if (high >= 0x80) {
        PyObject *decoded = PyUnicode_DecodeUTF8(text, found->size, NULL);
        if (decoded == NULL) {
            PyErr_Clear();
            return false;
        }
        Py_DECREF(decoded);
    }
    return true;
}

static unsigned char *
write_unescaped(unsigned char *at, const JsonString *string)
{
    const char *text = string->text, *const end = text + string->size;
    for (Py_ssize_t left = string->escapes; left > 0; left--) {
        const char *const escape = memchr(text, '\\', (size_t)(end - text));
        memcpy(at, text, (size_t)(escape - text));
        at += escape - text;
        *at++ = (unsigned char)unescaped(escape[1]);
        text = escape + 2;
    }
    memcpy(at, text, (size_t)(end - text));
    return at + (end - text);
}

/* The body of the next record, which has nothing else, written as a chunk keeps it; NULL: it is not
   plainly right. `size` becomes that of the body. */
static unsigned char *
pack_json_record(Input *input, bool is_base64, unsigned char *at, Py_ssize_t *size)
{
    JsonString body;
    if (!SKIP_TEXT(input, "{") || !SKIP_TEXT(input, "\"body\"") || !SKIP_TEXT(input, ":")
        || !read_json_string(input, &body) || !SKIP_TEXT(input, "}")
        || (uint64_t)body.size > UINT32_MAX)
        return NULL;
    if (!is_base64) {
        *size = body.size - body.escapes;
        return write_unescaped(at + write_packed_head(at, *size), &body);
    }
    if (body.escapes != 0 || body.size % 4 != 0)
        return NULL;
    const char *const last = body.text + body.size;
    const Py_ssize_t padding = body.size == 0 ? 0 : (last[-1] == '=') + (last[-2] == '=');
    *size = body.size / 4 * 3 - padding;
    at += write_packed_head(at, *size);
    return read_base64(at, body.text, body.size) == *size ? at + *size : NULL;
}

/* The bodies of packed records, as a list. */
static PyObject *
list_of_packed(const char *data, Py_ssize_t size, Py_ssize_t count)
{
    Input packed = {data, size, 0};
    PyObject *bodies = PyList_New(count);
    for (Py_ssize_t i = 0; bodies != NULL && i < count; i++) {
        Py_ssize_t body_size;
        const char *const body = read_packed_body(&packed, &body_size);
        PyObject *each = PyBytes_FromStringAndSize(body, body_size);
        if (each == NULL)
            Py_CLEAR(bodies);
        else
            PyList_SET_ITEM(bodies, i, each);
    }
    return bodies;
}

PyDoc_STRVAR(read_json_input_doc,
"read_json_input(data, is_base64, records_max, packed_shape, /) -> object | None\n--\n\n"
"The bodies of an AppendInput as JSON, of 1 to `records_max` records that have nothing else, and\n"
"without conditions: a list, or `packed_shape(count, size, packed)` of PACKED_RECORDS_MIN and more.\n"
"None: it is another one, or not plainly right.");

static PyObject *
read_json_input(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!is_count(count, 4, "read_json_input") || !is_bytes(args[0]))
        return NULL;
    const int is_base64 = PyObject_IsTrue(args[1]);
    const Py_ssize_t records_max = PyLong_AsSsize_t(args[2]);
    if (is_base64 < 0 || PyErr_Occurred())
        return NULL;
    Input input = {PyBytes_AS_STRING(args[0]), PyBytes_GET_SIZE(args[0]), 0};
    if (!SKIP_TEXT(&input, "{") || !SKIP_TEXT(&input, "\"records\"") || !SKIP_TEXT(&input, ":")
        || !SKIP_TEXT(&input, "["))
        Py_RETURN_NONE;
    /* The name of a body takes more than the head of a packed one: there is room for all. */
    PyObject *packed = PyBytes_FromStringAndSize(NULL, input.size);
    if (packed == NULL)
        return NULL;
    unsigned char *const first = (unsigned char *)PyBytes_AS_STRING(packed), *at = first;
    Py_ssize_t records = 0, bytes = 0;
    do {
        Py_ssize_t size;
        if (records == records_max
            || (at = pack_json_record(&input, is_base64 != 0, at, &size)) == NULL)
            goto other;
        records++;
        bytes += size;
    } while (SKIP_TEXT(&input, ","));
    if (!SKIP_TEXT(&input, "]") || !SKIP_TEXT(&input, "}") || input.at != input.size)
        goto other;
    if (records < PACKED_RECORDS_MIN) {
        PyObject *bodies = list_of_packed((const char *)first, at - first, records);
        Py_DECREF(packed);
        return bodies;
    }
    if (_PyBytes_Resize(&packed, at - first) < 0)
        return NULL;
    return PyObject_CallFunction(args[3], "nnN", records, bytes, packed);
other:
    Py_DECREF(packed);
    Py_RETURN_NONE;
}

static const char ROW_OFFSET[] = "{\"offset\":", ROW_TIMESTAMP[] = ",\"timestamp\":";
static const char ROW_PAYLOAD[] = ",\"payload\":\"", ROW_END[] = "\"},";

enum { ROW_MIDDLE_BYTES_MAX = sizeof ROW_TIMESTAMP + sizeof ROW_PAYLOAD + DIGITS_MAX };
enum { ROW_BYTES_MAX = sizeof ROW_OFFSET + DIGITS_MAX + ROW_MIDDLE_BYTES_MAX + sizeof ROW_END };

/* What is between the offsets and the payloads of rows that have one timestamp. */
typedef struct {
    char text[ROW_MIDDLE_BYTES_MAX];
    size_t size;
} RowMiddle;

static char *
write_number(char *at, uint64_t number)
{
    char digits[DIGITS_MAX];
    const char *first = write_digits(digits + DIGITS_MAX, number);
    return copy(at, first, (size_t)(digits + DIGITS_MAX - first));
}

static void
begin_rows(RowMiddle *middle, uint64_t timestamp)
{
    char *at = copy(middle->text, ROW_TIMESTAMP, sizeof ROW_TIMESTAMP - 1);
    at = copy(write_number(at, timestamp), ROW_PAYLOAD, sizeof ROW_PAYLOAD - 1);
    middle->size = (size_t)(at - middle->text);
}

static char *
write_row(char *at, uint64_t offset, const RowMiddle *middle, const char *body, Py_ssize_t size)
{
    at = copy(at, ROW_OFFSET, sizeof ROW_OFFSET - 1);
    at = write_number(at, offset);
    at = copy(at, middle->text, middle->size);
    at = write_base64(at, (const unsigned char *)body, size);
    return copy(at, ROW_END, sizeof ROW_END - 1);
}

PyDoc_STRVAR(write_rows_doc,
"write_rows(first, timestamp, bodies, /) -> bytes\n--\n\n"
"Elements of a FetchResponse's array, each with the comma behind it: their offsets go up by one from\n"
"`first`, and all have the `timestamp`, in microseconds. Raises OverflowError for numbers above the\n"
"largest u64.");

static PyObject *
write_rows(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!is_count(count, 3, "write_rows") || !is_list(args[2]))
        return NULL;
    uint64_t offset = PyLong_AsUnsignedLongLong(args[0]);
    if (PyErr_Occurred())
        return NULL;
    const uint64_t timestamp = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    const Py_ssize_t records = PyList_GET_SIZE(args[2]);
    if (records > 0 && offset > UINT64_MAX - (uint64_t)(records - 1)) {
        PyErr_SetString(PyExc_OverflowError, "an offset is above the largest u64");
        return NULL;
    }
    Py_ssize_t room = 0;
    for (Py_ssize_t i = 0; i < records; i++) {
        PyObject *body = PyList_GET_ITEM(args[2], i);
        if (!is_bytes(body))
            return NULL;
        const Py_ssize_t size = PyBytes_GET_SIZE(body);
        if (size > PY_SSIZE_T_MAX / 2 || base64_text_bytes(size) > PY_SSIZE_T_MAX / 2 - room)
            return PyErr_NoMemory();
        room += ROW_BYTES_MAX + base64_text_bytes(size);
    }
    PyObject *written = PyBytes_FromStringAndSize(NULL, room);
    if (written == NULL)
        return NULL;
    RowMiddle middle;
    begin_rows(&middle, timestamp);
    char *at = PyBytes_AS_STRING(written);
    for (Py_ssize_t i = 0; i < records; i++, offset++) {
        PyObject *body = PyList_GET_ITEM(args[2], i);
        at = write_row(at, offset, &middle, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body));
    }
    _PyBytes_Resize(&written, at - PyBytes_AS_STRING(written));
    return written;
}

PyDoc_STRVAR(write_packed_rows_doc,
"write_packed_rows(data, offset, count, first, timestamp, /) -> bytes\n--\n\n"
"`write_rows` for `count` bodies of a chunk that stand at `offset` of its `data`. Raises ValueError\n"
"where there are fewer.");

static PyObject *
write_packed_rows(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PackedPart part;
    if (!read_packed_part(args, count, "write_packed_rows", &part))
        return NULL;
    PyObject *written = new_part_bytes(&part, ROW_BYTES_MAX + 4, 4, 3);
    if (written == NULL)
        return NULL;
    RowMiddle middle;
    begin_rows(&middle, part.second);
    char *at = PyBytes_AS_STRING(written);
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < part.count; i++) {
        const char *body = read_packed_body(&part.input, &size);
        at = write_row(at, part.first++, &middle, body, size);
    }
    _PyBytes_Resize(&written, at - PyBytes_AS_STRING(written));
    return written;
}

/* RustLog's binary form (transports/rustlog/binary_codec.py): records are behind their lengths. */

/* The next record, passed over; NULL: it is not all there, or larger than `size_max`. */
static const char *
read_sized_record(Input *input, uint64_t size_max, Py_ssize_t *size)
{
    if (input->size - input->at < LENGTH_BYTES)
        return NULL;
    const uint32_t length = read_u32((const unsigned char *)input->data + input->at);
    if (length > size_max || length > (uint64_t)(input->size - input->at - LENGTH_BYTES))
        return NULL;
    const char *record = input->data + input->at + LENGTH_BYTES;
    *size = (Py_ssize_t)length;
    input->at += LENGTH_BYTES + *size;
    return record;
}

PyDoc_STRVAR(read_sized_records_doc,
"read_sized_records(data, start, count, size_max, packed_shape, /) -> object | None\n--\n\n"
"`packed_shape(count, size, packed)` of the `count` records that stand at `start` of `data`, each\n"
"behind its length. None: there are fewer than PACKED_RECORDS_MIN, they are not all there, or one\n"
"has more than `size_max` bytes.");

static PyObject *
read_sized_records(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!is_count(count, 5, "read_sized_records") || !is_bytes(args[0]))
        return NULL;
    const Py_ssize_t start = PyLong_AsSsize_t(args[1]), wanted = PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred())
        return NULL;
    const uint64_t size_max = PyLong_AsUnsignedLongLong(args[3]);
    if (PyErr_Occurred())
        return NULL;
    if (start < 0 || start > PyBytes_GET_SIZE(args[0])) {
        PyErr_SetString(PyExc_ValueError, "no such part of the data");
        return NULL;
    }
    if (wanted < PACKED_RECORDS_MIN)
        Py_RETURN_NONE;
    Input input = {PyBytes_AS_STRING(args[0]), PyBytes_GET_SIZE(args[0]), start};
    Py_ssize_t packed_bytes = 0, bytes = 0, size;
    for (Py_ssize_t i = 0; i < wanted; i++) {
        if (read_sized_record(&input, size_max, &size) == NULL)
            Py_RETURN_NONE;
        packed_bytes += packed_head_bytes(size) + size;
        bytes += size;
    }
    PyObject *packed = PyBytes_FromStringAndSize(NULL, packed_bytes);
    if (packed == NULL)
        return NULL;
    unsigned char *at = (unsigned char *)PyBytes_AS_STRING(packed);
    input.at = start;
    for (Py_ssize_t i = 0; i < wanted; i++) {
        const char *record = read_sized_record(&input, size_max, &size);
        at += write_packed_head(at, size);
        memcpy(at, record, (size_t)size);
        at += size;
    }
    return PyObject_CallFunction(args[4], "nnN", wanted, bytes, packed);
}

PyDoc_STRVAR(write_sized_records_doc,
"write_sized_records(data, offset, count, /) -> bytes\n--\n\n"
"`count` bodies of a chunk that stand at `offset` of its `data`, each behind its length. Raises\n"
"ValueError where there are fewer.");

static PyObject *
write_sized_records(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!is_count(count, 3, "write_sized_records"))
        return NULL;
    PackedPart part;
    if (!read_packed_bodies(args, &part))
        return NULL;
    PyObject *written = new_part_bytes(&part, LENGTH_BYTES, 1, 1);
    if (written == NULL)
        return NULL;
    char *at = PyBytes_AS_STRING(written);
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < part.count; i++) {
        const char *body = read_packed_body(&part.input, &size);
        write_u32((unsigned char *)at, (uint32_t)size);
        memcpy(at + LENGTH_BYTES, body, (size_t)size);
        at += LENGTH_BYTES + size;
    }
    _PyBytes_Resize(&written, at - PyBytes_AS_STRING(written));
    return written;
}

static PyMethodDef methods[] = {
    {"split_packets", (PyCFunction)(void (*)(void))split_packets, METH_FASTCALL, split_packets_doc},
    {"frame_packets", frame_packets, METH_O, frame_packets_doc},
    {"read_puts", (PyCFunction)(void (*)(void))read_puts, METH_FASTCALL, read_puts_doc},
    {"read_acks", (PyCFunction)(void (*)(void))read_acks, METH_FASTCALL, read_acks_doc},
    {"read_packet_run", (PyCFunction)(void (*)(void))read_packet_run, METH_FASTCALL,
     read_packet_run_doc},
    {"unmask_frames", (PyCFunction)(void (*)(void))unmask_frames, METH_FASTCALL, unmask_frames_doc},
    {"write_put_acks", (PyCFunction)(void (*)(void))write_put_acks, METH_FASTCALL,
     write_put_acks_doc},
    {"read_appends", (PyCFunction)(void (*)(void))read_appends, METH_FASTCALL, read_appends_doc},
    {"read_append_run", (PyCFunction)(void (*)(void))read_append_run, METH_FASTCALL,
     read_append_run_doc},
    {"read_append_input", (PyCFunction)(void (*)(void))read_append_input, METH_FASTCALL,
     read_append_input_doc},
    {"read_base64_records", (PyCFunction)(void (*)(void))read_base64_records, METH_FASTCALL,
     read_base64_records_doc},
    {"read_json_input", (PyCFunction)(void (*)(void))read_json_input, METH_FASTCALL,
     read_json_input_doc},
    {"measure_bodies", (PyCFunction)(void (*)(void))measure_bodies, METH_FASTCALL,
     measure_bodies_doc},
    {"write_packed_records", (PyCFunction)(void (*)(void))write_packed_records, METH_FASTCALL,
     write_packed_records_doc},
    {"write_packed_batch", (PyCFunction)(void (*)(void))write_packed_batch, METH_FASTCALL,
     write_packed_batch_doc},
    {"write_packed_rows", (PyCFunction)(void (*)(void))write_packed_rows, METH_FASTCALL,
     write_packed_rows_doc},
    {"read_sized_records", (PyCFunction)(void (*)(void))read_sized_records, METH_FASTCALL,
     read_sized_records_doc},
    {"write_sized_records", (PyCFunction)(void (*)(void))write_sized_records, METH_FASTCALL,
     write_sized_records_doc},
    {"write_rows", (PyCFunction)(void (*)(void))write_rows, METH_FASTCALL, write_rows_doc},
    {"write_batch", (PyCFunction)(void (*)(void))write_batch, METH_FASTCALL, write_batch_doc},
    {"write_records", (PyCFunction)(void (*)(void))write_records, METH_FASTCALL, write_records_doc},
    {NULL, NULL, 0, NULL},
};

static int
begin(PyObject *module)
{
    fill_base64_tables();
    return PyModule_AddIntConstant(module, "REVISION", REVISION);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, begin},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "millpond._speedups",
    .m_doc = "Native codecs of the protocols; each has a twin in Python.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__speedups(void)
{
    return PyModuleDef_Init(&definition);
}
