/* The module `svc.gateway.upstream._chunk_converter`, which `svc.gateway.upstream.chunk_converter` documents. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../../dialects/_json_scan.h"

#define MAX_SIZE_DIGITS 3 /* SIZE_LINE_COUNT of http_chunk.py is 2,048 */
#define MAX_CHUNK_BYTES 2047
#define SIZE_LINE_BYTES (MAX_SIZE_DIGITS + 2)
#define BYTES_PER_TOKEN 4 /* ASCII_CHARS_PER_TOKEN of token_estimate.py */
#define STACK_BYTES (1 << 13)

/* A part of the template. */
typedef struct {
    const uint8_t *start;
    size_t size;
} Part;

enum { PREFIX, SUFFIX, PADDING_END, CLIENT_PREFIX, CLIENT_SUFFIX, PART_COUNT };

typedef struct {
    PyObject_VAR_HEAD
    Py_ssize_t converted_bytes;
    long long tokens;
    bool is_identity;
    Part parts[PART_COUNT];
    uint8_t bytes[]; /* of all parts, one after the other, so that few lines of the cache hold them */
} ChunkConverter;

/* A framed chunk that matches: its text, and its end. */
typedef struct {
    const uint8_t *text_start, *text_end, *end;
} Chunk;

static inline bool is_alphanumeric(uint8_t byte)
{
    return (byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z');
}

static inline bool starts_with(const uint8_t *at, const uint8_t *end, Part part)
{
    return (size_t)(end - at) >= part.size && memcmp(at, part.start, part.size) == 0;
}

/* Reads a size line as `http_chunk.py` writes it, and moves `at` behind it. Returns 0 for all others. */
static inline size_t read_size_line(const uint8_t **at, const uint8_t *end)
{
    size_t size = 0;
    const uint8_t *digit = *at;
    for (; digit < end && digit - *at <= MAX_SIZE_DIGITS; digit++) {
        if (*digit >= '0' && *digit <= '9')
            size = size << 4 | (size_t)(*digit - '0');
        else if (*digit >= 'a' && *digit <= 'f')
            size = size << 4 | (size_t)(*digit - 'a' + 10);
        else
            break;
        if (size == 0) /* a leading zero */
            return 0;
    }
    if (end - digit < 2 || digit[0] != '\r' || digit[1] != '\n' || size > MAX_CHUNK_BYTES)
        return 0;
    *at = digit + 2;
    return size;
}

/* Matches the chunk at `at`. Returns false for an incomplete one, and for one that differs from the template. */
VECTOR_TARGET static inline bool match_chunk(const ChunkConverter *self, const uint8_t *at, const uint8_t *end,
                                             Chunk *chunk)
{
    const size_t size = read_size_line(&at, end);
    if (size == 0 || (size_t)(end - at) < size + 2 || at[size] != '\r' || at[size + 1] != '\n')
        return false;
    end = at + size;
    if (!starts_with(at, end, self->parts[PREFIX]))
        return false;
    chunk->text_start = at += self->parts[PREFIX].size;
    at = chunk->text_end = find_string_end(at, end);
    if (at == NULL || !starts_with(at, end, self->parts[SUFFIX]))
        return false;
    if (at == chunk->text_start ? !self->is_identity
                                : !is_utf8(chunk->text_start, (size_t)(at - chunk->text_start)))
        return false;
    at += self->parts[SUFFIX].size;
    if (self->parts[PADDING_END].size > 0) {
        while (at < end && is_alphanumeric(*at))
            at++;
        if (!starts_with(at, end, self->parts[PADDING_END]))
            return false;
        at += self->parts[PADDING_END].size;
    }
    chunk->end = end + 2;
    return at == end;
}

static inline uint8_t *append(uint8_t *output, const void *start, size_t size)
{
    memcpy(output, start, size);
    return output + size;
}

/* Writes the chunk for the client to `output`, which has room for it. Returns NULL if it is too large for a chunk. */
static uint8_t *write_chunk(const ChunkConverter *self, const Chunk *chunk, uint8_t *output)
{
    const size_t text_size = (size_t)(chunk->text_end - chunk->text_start);
    const size_t size = self->parts[CLIENT_PREFIX].size + text_size + self->parts[CLIENT_SUFFIX].size;
    if (size > MAX_CHUNK_BYTES)
        return NULL;
    static const char DIGITS[] = "0123456789abcdef";
    for (int shift = size >= 0x100 ? 8 : size >= 0x10 ? 4 : 0; shift >= 0; shift -= 4)
        *output++ = (uint8_t)DIGITS[size >> shift & 15];
    output = append(output, "\r\n", 2);
    output = append(output, self->parts[CLIENT_PREFIX].start, self->parts[CLIENT_PREFIX].size);
    output = append(output, chunk->text_start, text_size);
    output = append(output, self->parts[CLIENT_SUFFIX].start, self->parts[CLIENT_SUFFIX].size);
    return append(output, "\r\n", 2);
}

static PyObject *convert(ChunkConverter *self, PyObject *data)
{
    if (!PyBytes_CheckExact(data))
        return PyErr_Format(PyExc_TypeError, "convert() takes bytes");
    const uint8_t *const start = (const uint8_t *)PyBytes_AS_STRING(data), *const end = start + PyBytes_GET_SIZE(data);
    const uint8_t *at = start;
    uint8_t stack[STACK_BYTES], *buffer = stack, *output = stack;
    size_t capacity = STACK_BYTES;
    long long tokens = 0;
    Chunk chunk;
    while (at < end && match_chunk(self, at, end, &chunk)) {
        if (!self->is_identity) {
            const size_t used = (size_t)(output - buffer);
            if (capacity - used < MAX_CHUNK_BYTES + SIZE_LINE_BYTES + 2) {
                uint8_t *const larger = PyMem_Malloc(2 * capacity);
                if (larger == NULL) {
                    PyErr_NoMemory();
                    goto failed;
                }
                memcpy(larger, buffer, used);
                if (buffer != stack)
                    PyMem_Free(buffer);
                buffer = larger;
                output = buffer + used;
                capacity *= 2;
            }
            uint8_t *const next = write_chunk(self, &chunk, output);
            if (next == NULL)
                break;
            output = next;
        }
        const size_t text_size = (size_t)(chunk.text_end - chunk.text_start);
        if (text_size > 0)
            tokens += text_size < BYTES_PER_TOKEN ? 1 : (long long)(text_size / BYTES_PER_TOKEN);
        at = chunk.end;
    }
    PyObject *result;
    if (!self->is_identity)
        result = PyBytes_FromStringAndSize((const char *)buffer, output - buffer);
    else if (at == end)
        result = Py_NewRef(data);
    else
        result = PyBytes_FromStringAndSize((const char *)start, at - start);
    if (result != NULL) {
        self->converted_bytes = at - start;
        self->tokens += tokens;
    }
    if (buffer != stack)
        PyMem_Free(buffer);
    return result;
failed:
    if (buffer != stack)
        PyMem_Free(buffer);
    return NULL;
}

static PyObject *create(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    Part parts[PART_COUNT];
    Py_ssize_t sizes[PART_COUNT], total = 0;
    int is_identity;
    if (keywords != NULL && PyDict_GET_SIZE(keywords) > 0)
        return PyErr_Format(PyExc_TypeError, "ChunkConverter() takes no keywords");
    if (!PyArg_ParseTuple(arguments, "y#y#y#y#y#p", &parts[0].start, &sizes[0], &parts[1].start, &sizes[1],
                          &parts[2].start, &sizes[2], &parts[3].start, &sizes[3], &parts[4].start, &sizes[4],
                          &is_identity))
        return NULL;
    for (int index = 0; index < PART_COUNT; index++)
        total += sizes[index];
    ChunkConverter *const self = (ChunkConverter *)type->tp_alloc(type, total);
    if (self == NULL)
        return NULL;
    uint8_t *output = self->bytes;
    for (int index = 0; index < PART_COUNT; index++) {
        self->parts[index] = (Part){output, (size_t)sizes[index]};
        output = append(output, parts[index].start, (size_t)sizes[index]);
    }
    self->is_identity = is_identity;
    return (PyObject *)self;
}

static void dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *get_tokens(ChunkConverter *self, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(self->tokens);
}

static PyObject *get_converted_bytes(ChunkConverter *self, void *closure)
{
    (void)closure;
    return PyLong_FromSsize_t(self->converted_bytes);
}

static PyMethodDef METHODS[] = {
    {"convert", (PyCFunction)convert, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef ATTRIBUTES[] = {
    {"tokens", (getter)get_tokens, NULL, NULL, NULL},
    {"converted_bytes", (getter)get_converted_bytes, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot SLOTS[] = {
    {Py_tp_new, create},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, METHODS},
    {Py_tp_getset, ATTRIBUTES},
    {0, NULL},
};
static PyType_Spec SPEC = {"svc.gateway.upstream._chunk_converter.ChunkConverter", sizeof(ChunkConverter), 1,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, SLOTS};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_chunk_converter", NULL, 0, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__chunk_converter(void)
{
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("ssse3"))
        return PyErr_Format(PyExc_ImportError, "_chunk_converter needs a processor with SSSE3");
#endif
    PyObject *const module = PyModule_Create(&MODULE);
    PyObject *const type = module == NULL ? NULL : PyType_FromSpec(&SPEC);
    if (type == NULL || PyModule_AddObject(module, "ChunkConverter", type) < 0) {
        Py_XDECREF(type);
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
