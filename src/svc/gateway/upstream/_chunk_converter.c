/* The module `svc.gateway.upstream._chunk_converter`, which `svc.gateway.upstream.chunk_converter` documents. */

#include "_chunk_converter.h"

#define STACK_BYTES (1 << 13)

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
            if (capacity - used < MAX_FRAMED_CHUNK_BYTES) {
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
        tokens += count_tokens(&chunk);
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
