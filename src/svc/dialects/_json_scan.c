/* The module `svc.dialects._json_scan`, which `svc.dialects.json_scan` documents. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_json_scan.h"

#define MAX_FIELDS 256
#define MAX_VALUES (1 << 17) /* a body with more is rejected, so that its scan can end */
#define MAX_DEPTH 128
#define MIN_UNREAD_DEPTH 3
#define STACK_BYTES (1 << 15)

/* A scan. `output` has the skeleton of the text before `copied`. */
typedef struct {
    const uint8_t *copied, *end;
    uint8_t *output;
    size_t max_string_bytes, max_nested_bytes;
    unsigned value_count;
    bool has_emptied;
} Scan;

static inline const uint8_t *skip_spaces(const uint8_t *at, const uint8_t *end)
{
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        at++;
    return at;
}

static inline void copy_to(Scan *scan, const uint8_t *at)
{
    memcpy(scan->output, scan->copied, (size_t)(at - scan->copied));
    scan->output += at - scan->copied;
    scan->copied = at;
}

/* Scans a string from its first byte after the quote. Returns the byte after it, or NULL. */
VECTOR_TARGET static const uint8_t *scan_string(Scan *scan, const uint8_t *at, size_t max_bytes)
{
    const uint8_t *closing = find_string_end(at, scan->end);
    if (closing == NULL)
        return NULL;
    if ((size_t)(closing - at) > max_bytes) {
        copy_to(scan, at);
        scan->copied = closing;
        scan->has_emptied = true;
    }
    return closing + 1;
}

static const uint8_t *skip_digits(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *const first = at;
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at > first ? at : NULL;
}

/* Skips a number (RFC 8259, section 6). Returns the byte after it, or NULL. */
static const uint8_t *skip_number(const uint8_t *at, const uint8_t *end)
{
    if (*at == '-')
        at++;
    if (at < end && *at == '0')
        at++;
    else if ((at = skip_digits(at, end)) == NULL)
        return NULL;
    if (at < end && *at == '.' && (at = skip_digits(at + 1, end)) == NULL)
        return NULL;
    if (at < end && (*at | 0x20) == 'e') {
        at++;
        if (at < end && (*at == '+' || *at == '-'))
            at++;
        return skip_digits(at, end);
    }
    return at;
}

static const uint8_t *skip_word(const uint8_t *at, const uint8_t *end, const char *word, size_t size)
{
    return (size_t)(end - at) >= size && memcmp(at, word, size) == 0 ? at + size : NULL;
}

/* Skips what separates two values. Returns the next value or `closing`, or NULL after a comma without a value. */
static inline const uint8_t *skip_comma(const uint8_t *at, const uint8_t *end, uint8_t closing)
{
    at = skip_spaces(at, end);
    if (at == end || (*at != ',' && *at != closing))
        return NULL;
    if (*at == closing)
        return at;
    at = skip_spaces(at + 1, end);
    return at < end && *at != closing ? at : NULL;
}

/* Skips the colon after a name. Returns the value, or NULL. */
static inline const uint8_t *skip_colon(const uint8_t *at, const uint8_t *end)
{
    at = skip_spaces(at, end);
    if (at == end || *at != ':')
        return NULL;
    at = skip_spaces(at + 1, end);
    return at < end ? at : NULL;
}

/* Scans a value in `depth` objects and arrays. Returns the byte after it, or NULL. */
static const uint8_t *scan_value(Scan *scan, const uint8_t *at, unsigned depth)
{
    const uint8_t *const end = scan->end;
    if (++scan->value_count > MAX_VALUES)
        return NULL;
    switch (*at) {
    case '"':
        return scan_string(scan, at + 1, depth >= MIN_UNREAD_DEPTH ? scan->max_nested_bytes : scan->max_string_bytes);
    case '{':
    case '[':
        break;
    case 't':
        return skip_word(at, end, "true", 4);
    case 'f':
        return skip_word(at, end, "false", 5);
    case 'n':
        return skip_word(at, end, "null", 4);
    default:
        return skip_number(at, end);
    }
    const uint8_t closing = *at == '{' ? '}' : ']';
    if (depth >= MAX_DEPTH)
        return NULL;
    at = skip_spaces(at + 1, end);
    if (at < end && *at == closing)
        return at + 1;
    while (at < end) {
        if (closing == '}') {
            if (*at != '"' || (at = scan_string(scan, at + 1, scan->max_string_bytes)) == NULL ||
                (at = skip_colon(at, end)) == NULL)
                return NULL;
        }
        if ((at = scan_value(scan, at, depth + 1)) == NULL || (at = skip_comma(at, end, closing)) == NULL)
            return NULL;
        if (*at == closing)
            return at + 1;
    }
    return NULL;
}

/* Whether a text is one of a tuple of bytes. */
static bool is_one_of(PyObject *values, const uint8_t *text, size_t size)
{
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(values); index++) {
        PyObject *value = PyTuple_GET_ITEM(values, index);
        if ((size_t)PyBytes_GET_SIZE(value) == size && memcmp(PyBytes_AS_STRING(value), text, size) == 0)
            return true;
    }
    return false;
}

/* What makes an object plain: its label is one of `labels`, and its text is a string or an array of plain parts. */
typedef struct Shape {
    const char *label, *text;
    size_t label_size, text_size;
    PyObject *labels;
    const struct Shape *parts;
    bool is_text_optional;
} Shape;

static const uint8_t *scan_array(Scan *scan, const uint8_t *at, unsigned depth, const Shape *shape, bool *is_plain);

/* Scans an object in `depth` others, as `scan_value` does, and finds whether it is plain. */
static const uint8_t *scan_shape(Scan *scan, const uint8_t *at, unsigned depth, const Shape *shape, bool *is_plain)
{
    const uint8_t *const end = scan->end;
    unsigned label_count = 0, text_count = 0;
    bool has_label = false, has_text = shape->is_text_optional, has_escaped_name = false;
    *is_plain = false;
    if (*at != '{')
        return scan_value(scan, at, depth);
    at = skip_spaces(at + 1, end);
    while (at < end && *at == '"') {
        const uint8_t *const name = at + 1;
        if ((at = find_string_end(name, end)) == NULL)
            return NULL;
        const size_t size = (size_t)(at - name);
        if ((at = skip_colon(at + 1, end)) == NULL)
            return NULL;
        const uint8_t *const value = at;
        if (size == shape->text_size && memcmp(name, shape->text, size) == 0) {
            text_count++;
            has_text = *value == '"' || (shape->is_text_optional && *value == 'n');
            if (*value == '[' && shape->parts != NULL)
                at = scan_array(scan, value, depth + 1, shape->parts, &has_text);
            else
                at = scan_value(scan, value, depth + 1);
        } else {
            at = scan_value(scan, value, depth + 1);
            if (at != NULL && size == shape->label_size && memcmp(name, shape->label, size) == 0) {
                label_count++;
                has_label = *value == '"' && is_one_of(shape->labels, value + 1, (size_t)(at - value) - 2);
            } else if (memchr(name, '\\', size) != NULL) {
                has_escaped_name = true;
            }
        }
        if (at == NULL || (at = skip_comma(at, end, '}')) == NULL)
            return NULL;
    }
    if (at == end || *at != '}')
        return NULL;
    *is_plain = has_label && has_text && label_count == 1 && text_count <= 1 && !has_escaped_name;
    return at + 1;
}

/* Scans an array in `depth` others, as `scan_value` does, and finds whether its elements are plain. */
static const uint8_t *scan_array(Scan *scan, const uint8_t *at, unsigned depth, const Shape *shape, bool *is_plain)
{
    const uint8_t *const end = scan->end;
    *is_plain = true;
    at = skip_spaces(at + 1, end);
    while (at < end && *at != ']') {
        bool is_element_plain;
        if (++scan->value_count > MAX_VALUES ||
            (at = scan_shape(scan, at, depth + 1, shape, &is_element_plain)) == NULL ||
            (at = skip_comma(at, end, ']')) == NULL)
            return NULL;
        *is_plain = *is_plain && is_element_plain;
    }
    return at < end ? at + 1 : NULL;
}

/* Scans `messages`. The skeleton has the first one and those that are not plain. Returns the byte after it, or NULL. */
static const uint8_t *scan_messages(Scan *scan, const uint8_t *at, const Shape *shape)
{
    const uint8_t *const end = scan->end;
    if (*at != '[')
        return scan_value(scan, at, 1);
    at = skip_spaces(at + 1, end);
    copy_to(scan, at);
    for (bool is_first = true; at < end && *at != ']'; is_first = false) {
        uint8_t *const output = scan->output;
        bool is_plain;
        if (!is_first)
            *scan->output++ = ',';
        scan->copied = at;
        if (++scan->value_count > MAX_VALUES || (at = scan_shape(scan, at, 2, shape, &is_plain)) == NULL)
            return NULL;
        copy_to(scan, at);
        if (is_plain && !is_first)
            scan->output = output;
        if ((at = skip_comma(at, end, ']')) == NULL)
            return NULL;
    }
    scan->copied = at;
    return at < end ? at + 1 : NULL;
}

/* Adds the name of a field. Returns 1, 0 if it is repeated, escaped or one of too many, and -1 with an exception. */
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

/* Scans an object. Returns whether it is valid JSON whose names are neither repeated nor escaped, and -1 with an
   exception. `model` becomes the span of the value of `model`. */
static int scan_fields(Scan *scan, const uint8_t *at, PyObject *names, PyObject *kept, const Shape *message,
                       const uint8_t *model[2])
{
    const uint8_t *const end = scan->end;
    bool has_output = false;
    at = skip_spaces(at, end);
    if (at == end || *at != '{')
        return 0;
    *scan->output++ = '{';
    at = skip_spaces(at + 1, end);
    while (at < end && *at == '"') {
        uint8_t *const output = scan->output;
        const uint8_t *const name = at + 1;
        if (has_output)
            *scan->output++ = ',';
        scan->copied = at;
        if ((at = find_string_end(name, end)) == NULL)
            return 0;
        const size_t size = (size_t)(at - name);
        const int added = add_name(names, name, size);
        if (added <= 0)
            return added;
        if ((at = skip_colon(at + 1, end)) == NULL)
            return 0;
        const bool is_model = size == 5 && memcmp(name, "model", 5) == 0;
        const bool is_messages = kept != Py_None && size == 8 && memcmp(name, "messages", 8) == 0;
        if (is_model)
            model[0] = at;
        if ((at = is_messages ? scan_messages(scan, at, message) : scan_value(scan, at, 1)) == NULL)
            return 0;
        if (is_model)
            model[1] = at;
        if (kept == Py_None || is_one_of(kept, name, size)) {
            copy_to(scan, at);
            has_output = true;
        } else {
            scan->output = output;
        }
        if ((at = skip_comma(at, end, '}')) == NULL)
            return 0;
    }
    if (at == end || *at != '}')
        return 0;
    *scan->output++ = '}';
    return skip_spaces(at + 1, end) == end;
}

static bool is_tuple_of_bytes(PyObject *value)
{
    if (!PyTuple_CheckExact(value))
        return false;
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(value); index++) {
        if (!PyBytes_CheckExact(PyTuple_GET_ITEM(value, index)))
            return false;
    }
    return true;
}

static PyObject *scan_object(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 6 || !PyBytes_CheckExact(arguments[0]) || !is_tuple_of_bytes(arguments[2]) ||
        !is_tuple_of_bytes(arguments[3]) || !(arguments[1] == Py_None || is_tuple_of_bytes(arguments[1])))
        return PyErr_Format(PyExc_TypeError, "scan_object() takes bytes, three tuples of bytes, and two integers");
    const Py_ssize_t max_string_bytes = PyLong_AsSsize_t(arguments[4]);
    const Py_ssize_t max_nested_bytes = PyLong_AsSsize_t(arguments[5]);
    if (PyErr_Occurred())
        return NULL;
    const uint8_t *const text = (const uint8_t *)PyBytes_AS_STRING(arguments[0]);
    const size_t size = (size_t)PyBytes_GET_SIZE(arguments[0]);
    if (!is_utf8(text, size))
        Py_RETURN_NONE;
    PyObject *const kept = arguments[1];
    uint8_t buffer[STACK_BYTES];
    uint8_t *const output = size <= STACK_BYTES ? buffer : PyMem_Malloc(size);
    PyObject *names = PySet_New(NULL);
    if (output == NULL || names == NULL) {
        Py_XDECREF(names);
        PyMem_Free(output == buffer ? NULL : output);
        return PyErr_NoMemory();
    }
    const Shape part = {.label = "type", .label_size = 4, .text = "text", .text_size = 4, .labels = arguments[3],
                        .is_text_optional = true};
    const Shape message = {.label = "role", .label_size = 4, .text = "content", .text_size = 7,
                           .labels = arguments[2], .parts = &part};
    const uint8_t *model[2] = {text, text};
    Scan scan = {.copied = text,
                 .end = text + size,
                 .output = output,
                 .max_string_bytes = (size_t)max_string_bytes,
                 .max_nested_bytes = (size_t)max_nested_bytes};
    PyObject *result = NULL;
    const int is_valid = scan_fields(&scan, text, names, kept, &message, model);
    if (is_valid == 0) {
        result = Py_NewRef(Py_None);
    } else if (is_valid > 0) {
        PyObject *skeleton = kept == Py_None && !scan.has_emptied
                                 ? Py_NewRef(arguments[0])
                                 : PyBytes_FromStringAndSize((const char *)output, scan.output - output);
        if (skeleton != NULL)
            result = Py_BuildValue("(NOnn)", skeleton, names, (Py_ssize_t)(model[0] - text),
                                   (Py_ssize_t)(model[1] - text));
    }
    Py_DECREF(names);
    if (output != buffer)
        PyMem_Free(output);
    return result;
}

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
