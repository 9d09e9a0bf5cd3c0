/* The module `svc.gateway.upstream._stream_poller`, which `svc.gateway.upstream.stream_poller` documents. */

#include "_chunk_converter.h"

#ifdef __linux__

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_STREAMS_PER_POLL 32
#define MAX_READ_BYTES 32768 /* READ_BUFFER_BYTES of pool.py */
#define MAX_FORWARDED_BYTES 8192 /* MAX_DIRECT_READ_BYTES of read_mode.py */
#define OUTPUT_BYTES 16384
#define READABLE (EPOLLIN | EPOLLRDHUP | EPOLLET)
#define HANGUP (EPOLLRDHUP | EPOLLHUP | EPOLLERR)

typedef struct PolledStream PolledStream;

typedef struct {
    PyObject_HEAD
    int epoll_fd;
    bool is_polling;
    PolledStream *first_stopped; /* of the streams that were stopped during `poll`, which may still have events */
    uint8_t input[MAX_READ_BYTES], output[OUTPUT_BYTES];
} Poller;

/* The poller has a reference to each stream until it is stopped. Then the objects below are NULL. */
struct PolledStream {
    PyObject_HEAD
    int provider_fd, client_fd;
    bool has_forwarded; /* since the last `take_activity` */
    ChunkConverter *converter; /* NULL: all data goes to `on_data` */
    Poller *poller;
    PyObject *on_data, *on_unsent, *on_hangup;
    PolledStream *next_stopped;
};

typedef struct {
    PyTypeObject *stream_type, *converter_type;
} State;

static State *state_of(PyTypeObject *type)
{
    return PyModule_GetState(PyType_GetModule(type));
}

static void report_hangup(PolledStream *stream)
{
    PyObject *const callback = Py_NewRef(stream->on_hangup); /* it stops the stream */
    PyObject *const result = PyObject_CallNoArgs(callback);
    if (result == NULL)
        PyErr_WriteUnraisable(callback);
    Py_XDECREF(result);
    Py_DECREF(callback);
}

/* Passes data to a callback, which may stop the stream. Returns false after an exception: then the data is lost. */
static bool pass_data(PyObject *callback, const uint8_t *data, size_t size)
{
    Py_INCREF(callback);
    PyObject *const bytes = PyBytes_FromStringAndSize((const char *)data, (Py_ssize_t)size);
    PyObject *const result = bytes == NULL ? NULL : PyObject_CallOneArg(callback, bytes);
    if (result == NULL)
        PyErr_WriteUnraisable(callback);
    const bool is_passed = result != NULL;
    Py_XDECREF(result);
    Py_XDECREF(bytes);
    Py_DECREF(callback);
    return is_passed;
}

/* Ends a response of which a part is lost. The transport reads the end of the connection, and reports it. */
static void abort_stream(PolledStream *stream)
{
    if (stream->on_data != NULL) {
        shutdown(stream->provider_fd, SHUT_RDWR);
        report_hangup(stream);
    }
}

/* Sends what the client gets for a read. Returns false if a part of it does not match the template. */
VECTOR_TARGET static bool forward(Poller *self, PolledStream *stream, const uint8_t *input, size_t size)
{
    ChunkConverter *const converter = stream->converter;
    const uint8_t *at = input, *const end = input + size;
    uint8_t *output = self->output;
    long long tokens = 0;
    Chunk chunk;
    while (at < end) {
        if (!match_chunk(converter, at, end, &chunk))
            return false;
        if (!converter->is_identity) {
            if (self->output + OUTPUT_BYTES - output < MAX_FRAMED_CHUNK_BYTES)
                return false;
            output = write_chunk(converter, &chunk, output);
            if (output == NULL)
                return false;
        }
        tokens += count_tokens(&chunk);
        at = chunk.end;
    }
    const uint8_t *const data = converter->is_identity ? input : self->output;
    size = converter->is_identity ? size : (size_t)(output - self->output);
    converter->tokens += tokens;
    stream->has_forwarded = true;
    ssize_t sent = send(stream->client_fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0)
        sent = 0;
    if ((size_t)sent < size) {
        Py_CLEAR(stream->converter);
        if (!pass_data(stream->on_unsent, data + sent, size - (size_t)sent)) {
            shutdown(stream->client_fd, SHUT_RDWR); /* a chunk may be incomplete */
            abort_stream(stream);
        }
    }
    return true;
}

static void handle_events(Poller *self, PolledStream *stream, uint32_t events)
{
    if (stream->on_data == NULL)
        return;
    ssize_t size = 0;
    if (!(events & HANGUP)) {
        do
            size = recv(stream->provider_fd, self->input, MAX_READ_BYTES, MSG_DONTWAIT);
        while (size < 0 && errno == EINTR);
        if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
    }
    if (size <= 0) {
        Py_CLEAR(stream->converter);
        report_hangup(stream);
        return;
    }
    if (stream->converter != NULL && size <= MAX_FORWARDED_BYTES && forward(self, stream, self->input, (size_t)size))
        return;
    Py_CLEAR(stream->converter);
    if (!pass_data(stream->on_data, self->input, (size_t)size)) {
        abort_stream(stream);
        return;
    }
    /* A shorter read empties the socket, so that new data is a new event. After a full one, ask for another event. */
    if (size == MAX_READ_BYTES && stream->on_data != NULL) {
        struct epoll_event event = {.events = READABLE, .data.ptr = stream};
        epoll_ctl(self->epoll_fd, EPOLL_CTL_MOD, stream->provider_fd, &event);
    }
}

static PyObject *poll_streams(Poller *self, PyObject *unused)
{
    (void)unused;
    if (self->is_polling || self->epoll_fd < 0)
        Py_RETURN_NONE;
    struct epoll_event events[MAX_STREAMS_PER_POLL];
    const int count = epoll_wait(self->epoll_fd, events, MAX_STREAMS_PER_POLL, 0);
    self->is_polling = true;
    for (int index = 0; index < count && self->epoll_fd >= 0; index++)
        handle_events(self, events[index].data.ptr, events[index].events);
    self->is_polling = false;
    while (self->first_stopped != NULL) {
        PolledStream *const stream = self->first_stopped;
        self->first_stopped = stream->next_stopped;
        Py_DECREF(stream);
    }
    Py_RETURN_NONE;
}

static PyObject *start_stream(Poller *self, PyObject *arguments)
{
    int fd;
    PyObject *on_data, *on_unsent, *on_hangup;
    if (!PyArg_ParseTuple(arguments, "iOOO", &fd, &on_data, &on_unsent, &on_hangup))
        return NULL;
    PyTypeObject *const type = state_of(Py_TYPE(self))->stream_type;
    PolledStream *const stream = (PolledStream *)type->tp_alloc(type, 0);
    if (stream == NULL)
        return NULL;
    struct epoll_event event = {.events = READABLE, .data.ptr = stream};
    if (epoll_ctl(self->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
        Py_DECREF(stream);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    stream->provider_fd = fd;
    stream->client_fd = -1;
    stream->poller = (Poller *)Py_NewRef(self);
    stream->on_data = Py_NewRef(on_data);
    stream->on_unsent = Py_NewRef(on_unsent);
    stream->on_hangup = Py_NewRef(on_hangup);
    return Py_NewRef(stream); /* the other reference is the poller's */
}

static PyObject *enable_forwarding(PolledStream *self, PyObject *arguments)
{
    ChunkConverter *converter;
    int client_fd;
    PyTypeObject *const type = state_of(Py_TYPE(self))->converter_type;
    if (!PyArg_ParseTuple(arguments, "O!i", type, &converter, &client_fd))
        return NULL;
    if (self->on_data != NULL) {
        Py_INCREF(converter);
        Py_XSETREF(self->converter, converter);
        self->client_fd = client_fd;
    }
    Py_RETURN_NONE;
}

static PyObject *disable_forwarding(PolledStream *self, PyObject *unused)
{
    (void)unused;
    Py_CLEAR(self->converter);
    Py_RETURN_NONE;
}

static PyObject *take_activity(PolledStream *self, PyObject *unused)
{
    (void)unused;
    const bool has_forwarded = self->has_forwarded;
    self->has_forwarded = false;
    return PyBool_FromLong(has_forwarded);
}

static void release_objects(PolledStream *self)
{
    Py_CLEAR(self->converter);
    Py_CLEAR(self->on_data);
    Py_CLEAR(self->on_unsent);
    Py_CLEAR(self->on_hangup);
}

static PyObject *stop_stream(PolledStream *self, PyObject *unused)
{
    (void)unused;
    if (self->on_data == NULL)
        Py_RETURN_NONE;
    Poller *const poller = self->poller;
    epoll_ctl(poller->epoll_fd, EPOLL_CTL_DEL, self->provider_fd, NULL); /* fails if the descriptor is closed */
    release_objects(self);
    if (poller->is_polling) {
        self->next_stopped = poller->first_stopped;
        poller->first_stopped = self;
    } else {
        Py_DECREF(self);
    }
    Py_RETURN_NONE;
}

static void dealloc_stream(PolledStream *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    release_objects(self);
    Py_CLEAR(self->poller);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *create(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    if (PyTuple_GET_SIZE(arguments) > 0 || (keywords != NULL && PyDict_GET_SIZE(keywords) > 0))
        return PyErr_Format(PyExc_TypeError, "Poller() takes no arguments");
    Poller *const self = (Poller *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (self->epoll_fd < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *get_fileno(Poller *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromLong(self->epoll_fd);
}

static PyObject *close_poller(Poller *self, PyObject *unused)
{
    (void)unused;
    if (self->epoll_fd >= 0)
        close(self->epoll_fd);
    self->epoll_fd = -1;
    Py_RETURN_NONE;
}

static void dealloc_poller(Poller *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    if (self->epoll_fd >= 0)
        close(self->epoll_fd);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef STREAM_METHODS[] = {
    {"enable_forwarding", (PyCFunction)enable_forwarding, METH_VARARGS, NULL},
    {"disable_forwarding", (PyCFunction)disable_forwarding, METH_NOARGS, NULL},
    {"take_activity", (PyCFunction)take_activity, METH_NOARGS, NULL},
    {"stop", (PyCFunction)stop_stream, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot STREAM_SLOTS[] = {{Py_tp_dealloc, dealloc_stream}, {Py_tp_methods, STREAM_METHODS}, {0, NULL}};
static PyType_Spec STREAM_SPEC = {
    "svc.gateway.upstream._stream_poller.PolledStream", sizeof(PolledStream), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, STREAM_SLOTS};

static PyMethodDef METHODS[] = {
    {"start", (PyCFunction)start_stream, METH_VARARGS, NULL},
    {"poll", (PyCFunction)poll_streams, METH_NOARGS, NULL},
    {"fileno", (PyCFunction)get_fileno, METH_NOARGS, NULL},
    {"close", (PyCFunction)close_poller, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot SLOTS[] = {
    {Py_tp_new, create}, {Py_tp_dealloc, dealloc_poller}, {Py_tp_methods, METHODS}, {0, NULL}};
static PyType_Spec SPEC = {"svc.gateway.upstream._stream_poller.Poller", sizeof(Poller), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, SLOTS};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_stream_poller", NULL, sizeof(State), NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__stream_poller(void)
{
    /* The import fails on a processor without SSSE3, which the code above needs as well. */
    PyObject *const converters = PyImport_ImportModule("svc.gateway.upstream._chunk_converter");
    PyObject *const converter_type = converters == NULL ? NULL : PyObject_GetAttrString(converters, "ChunkConverter");
    Py_XDECREF(converters);
    PyObject *const module = converter_type == NULL ? NULL : PyModule_Create(&MODULE);
    if (module == NULL) {
        Py_XDECREF(converter_type);
        return NULL;
    }
    State *const state = PyModule_GetState(module);
    state->converter_type = (PyTypeObject *)converter_type;
    state->stream_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &STREAM_SPEC, NULL);
    PyObject *const type = state->stream_type == NULL ? NULL : PyType_FromModuleAndSpec(module, &SPEC, NULL);
    if (type == NULL || PyModule_AddObject(module, "Poller", type) < 0) {
        Py_XDECREF(type);
        Py_DECREF(module);
        return NULL;
    }
    return module;
}

#else

PyMODINIT_FUNC PyInit__stream_poller(void)
{
    return PyErr_Format(PyExc_ImportError, "_stream_poller needs epoll, which only Linux has");
}

#endif
