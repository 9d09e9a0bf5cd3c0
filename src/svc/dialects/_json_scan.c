/* The module `svc.dialects._json_scan`, which `svc.dialects.json_scan` documents. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_json_scan.h"

#define MAX_FIELDS 256
#define MAX_STRINGS (1 << 18) /* a body with more has too many values, which is found without a scan */
#define MIN_UNREAD_DEPTH 3

static PyObject *py_is_utf8(PyObject *module, PyObject *raw)
{
    (void)module;
    if (!PyBytes_CheckExact(raw))
        return PyErr_Format(PyExc_TypeError, "is_utf8() takes bytes");
    return PyBool_FromLong(is_utf8((const uint8_t *)PyBytes_AS_STRING(raw), (size_t)PyBytes_GET_SIZE(raw)));
}

static PyObject *is_string(PyObject *module, PyObject *value)
{
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(value, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    const bool is_quoted = view.len > 0 && ((const uint8_t *)view.buf)[0] == '"';
    PyBuffer_Release(&view);
    return PyBool_FromLong(is_quoted);
}

static inline bool is_space(uint8_t byte)
{
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

/* Whether the string before `index` is the name of a field. */
static bool is_name(const uint8_t *text, size_t index, size_t size)
{
    while (index < size && is_space(text[index]))
        index++;
    return index < size && text[index] == ':';
}

/* Adds a name. Returns 1, 0 if it is repeated, escaped or one of too many, and -1 with an exception. */
static int add_name(PyObject *names, const uint8_t *text, size_t size)
{
    const Py_ssize_t count = PySet_GET_SIZE(names);
    if (count >= MAX_FIELDS || memchr(text, '\\', size) != NULL)
        return 0;
    PyObject *name = PyUnicode_DecodeUTF8((const char *)text, (Py_ssize_t)size, NULL);
    const int result = name == NULL ? -1 : PySet_Add(names, name);
    Py_XDECREF(name);
    return result < 0 ? -1 : PySet_GET_SIZE(names) > count;
}

static PyObject *scan_object(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 3 || !PyBytes_CheckExact(arguments[0]))
        return PyErr_Format(PyExc_TypeError, "scan_object() takes bytes and two integers");
    const Py_ssize_t max_bytes = PyLong_AsSsize_t(arguments[1]), max_nested_bytes = PyLong_AsSsize_t(arguments[2]);
    if (PyErr_Occurred())
        return NULL;
    const uint8_t *text = (const uint8_t *)PyBytes_AS_STRING(arguments[0]);
    const size_t size = (size_t)PyBytes_GET_SIZE(arguments[0]);
    if (!is_utf8(text, size))
        Py_RETURN_NONE;
    PyObject *names = PySet_New(NULL);
    PyObject *skeleton = names == NULL ? NULL : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (skeleton == NULL) {
        Py_XDECREF(names);
        return NULL;
    }
    uint8_t *output = (uint8_t *)PyBytes_AS_STRING(skeleton);
    uint8_t *const output_start = output;
    size_t copied = 0, model_start = 0, model_end = 0;
    Py_ssize_t depth = 0;
    unsigned string_count = 0;
    bool is_ambiguous = false, is_value = false, is_model = false;
    for (size_t index = 0; index < size; index++) {
        const uint8_t byte = text[index];
        if (byte == '"') {
            if (++string_count > MAX_STRINGS) {
                is_ambiguous = true;
                break;
            }
            bool is_valid;
            const size_t start = index + 1;
            index = find_string_end(text, start, size, &is_valid);
            const size_t bytes = index - start;
            const bool is_long = bytes > (size_t)max_bytes;
            const bool is_long_value = depth >= MIN_UNREAD_DEPTH && bytes > (size_t)max_nested_bytes;
            if ((is_long || is_long_value) && is_valid && index < size &&
                (is_long || !is_name(text, index + 1, size))) {
                memcpy(output, text + copied, start - copied);
                output += start - copied;
                copied = index;
            }
            if (depth == 1 && !is_value && !is_ambiguous) {
                const int added = add_name(names, text + start, bytes);
                if (added < 0) {
                    Py_DECREF(names);
                    Py_DECREF(skeleton);
                    return NULL;
                }
                is_ambiguous = added == 0;
                is_model = bytes == 5 && memcmp(text + start, "model", 5) == 0;
            }
            continue;
        }
        if (depth == 1) {
            if (byte == ':') {
                is_value = true;
                if (is_model) {
                    model_start = index + 1;
                    while (model_start < size && is_space(text[model_start]))
                        model_start++;
                }
            } else if (byte == ',' || byte == '}') {
                if (is_model) {
                    model_end = index;
                    while (model_end > model_start && is_space(text[model_end - 1]))
                        model_end--;
                }
                is_value = is_model = false;
            }
        }
        depth += ((byte | 0x20) == '{') - ((byte | 0x20) == '}');
    }
    if (is_ambiguous)
        PySet_Clear(names);
    if (copied == 0) {
        Py_DECREF(skeleton);
        skeleton = Py_NewRef(arguments[0]);
    } else {
        memcpy(output, text + copied, size - copied);
        output += size - copied;
        if (_PyBytes_Resize(&skeleton, output - output_start) < 0) {
            Py_DECREF(names);
            return NULL;
        }
    }
    return Py_BuildValue("(NNnn)", skeleton, names, (Py_ssize_t)model_start, (Py_ssize_t)model_end);
}

static PyMethodDef METHODS[] = {
    {"is_utf8", py_is_utf8, METH_O, NULL},
    {"is_string", is_string, METH_O, NULL},
    {"scan_object", (PyCFunction)(void (*)(void))scan_object, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_json_scan", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__json_scan(void)
{
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("ssse3"))
        return PyErr_Format(PyExc_ImportError, "_json_scan needs a processor with SSSE3");
#endif
    return PyModule_Create(&MODULE);
}
