/* The module `svc.dialects._json_scan`, which `svc.dialects.json_scan` documents. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_json_scan.h"

#define MAX_FIELDS 256
#define MAX_VALUES 100000 /* MAX_BODY_VALUES of json_skeleton.py, which counts as well */
#define MAX_DEPTH 1024    /* about that of msgspec on CPython 3.11. Later versions allow more */
#define MIN_NESTED_DEPTH 3
#define STACK_BYTES (1 << 15)

/* A scan. `output` is the end of the reduced body of the text before `uncopied`. */
typedef struct {
    const uint8_t *uncopied, *end;
    uint8_t *output;
    size_t max_string_bytes, max_nested_bytes;
    unsigned value_count; /* names count too, as the delimiters before them do in `has_excess_values` */
    bool has_emptied, is_too_deep;
} Scan;

/* What a scan finds beside the reduced body. */
typedef struct {
    PyObject *names;
    const uint8_t *model_start, *model_end;
} Fields;

static inline const uint8_t *skip_spaces(const uint8_t *at, const uint8_t *end)
{
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        at++;
    return at;
}

/* Returns whether there may be another name or value. */
static inline bool count_value(Scan *scan)
{
    return ++scan->value_count <= MAX_VALUES;
}

static inline void copy_to(Scan *scan, const uint8_t *at)
{
    memcpy(scan->output, scan->uncopied, (size_t)(at - scan->uncopied));
    scan->output += at - scan->uncopied;
    scan->uncopied = at;
}

/* Scans a string from its first byte after the quote. Returns the byte after it, or NULL. */
VECTOR_TARGET static const uint8_t *scan_string(Scan *scan, const uint8_t *at, size_t max_bytes)
{
    const uint8_t *closing = find_string_end(at, scan->end);
    if (closing == NULL)
        return NULL;
    if ((size_t)(closing - at) > max_bytes) {
        copy_to(scan, at);
        scan->uncopied = closing;
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
    if (!count_value(scan))
        return NULL;
    switch (*at) {
    case '"':
        return scan_string(scan, at + 1, depth >= MIN_NESTED_DEPTH ? scan->max_nested_bytes : scan->max_string_bytes);
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
    if (depth >= MAX_DEPTH) {
        scan->is_too_deep = true;
        return NULL;
    }
    at = skip_spaces(at + 1, end);
    if (at < end && *at == closing)
        return at + 1;
    while (at < end) {
        if (closing == '}') {
            if (!count_value(scan) || *at != '"' || (at = scan_string(scan, at + 1, scan->max_string_bytes)) == NULL ||
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

/* An object is plain if its value of `tag_name` is one of `tag_values`, and its value of `text_name` is a string or an
   array of plain `parts`. */
typedef struct PlainRule {
    const char *tag_name, *text_name;
    size_t tag_name_size, text_name_size;
    PyObject *tag_values;
    const struct PlainRule *parts;
    bool is_text_optional; /* the text may be null or absent */
} PlainRule;

static const uint8_t *scan_plain_array(Scan *scan, const uint8_t *at, unsigned depth, const PlainRule *rule,
                                       bool *is_plain);

/* Scans a value in `depth` objects and arrays, as `scan_value` does, and finds whether it is a plain object. */
static const uint8_t *scan_plain_object(Scan *scan, const uint8_t *at, unsigned depth, const PlainRule *rule,
                                        bool *is_plain)
{
    const uint8_t *const end = scan->end;
    unsigned tag_count = 0, text_count = 0;
    bool has_tag = false, is_text_plain = rule->is_text_optional, has_escaped_name = false;
    *is_plain = false;
    if (*at != '{')
        return scan_value(scan, at, depth);
    if (!count_value(scan))
        return NULL;
    at = skip_spaces(at + 1, end);
    while (at < end && *at == '"') {
        const uint8_t *const name = at + 1;
        if (!count_value(scan) || (at = find_string_end(name, end)) == NULL)
            return NULL;
        const size_t size = (size_t)(at - name);
        if ((at = skip_colon(at + 1, end)) == NULL)
            return NULL;
        const uint8_t *const value = at;
        if (size == rule->text_name_size && memcmp(name, rule->text_name, size) == 0) {
            text_count++;
            is_text_plain = *value == '"' || (rule->is_text_optional && *value == 'n');
            if (*value == '[' && rule->parts != NULL)
                at = scan_plain_array(scan, value, depth + 1, rule->parts, &is_text_plain);
            else
                at = scan_value(scan, value, depth + 1);
        } else {
            at = scan_value(scan, value, depth + 1);
            if (at != NULL && size == rule->tag_name_size && memcmp(name, rule->tag_name, size) == 0) {
                tag_count++;
                has_tag = *value == '"' && is_one_of(rule->tag_values, value + 1, (size_t)(at - value) - 2);
            } else if (memchr(name, '\\', size) != NULL) {
                has_escaped_name = true;
            }
        }
        if (at == NULL || (at = skip_comma(at, end, '}')) == NULL)
            return NULL;
    }
    if (at == end || *at != '}')
        return NULL;
    *is_plain = has_tag && is_text_plain && tag_count == 1 && text_count <= 1 && !has_escaped_name;
    return at + 1;
}

/* Scans an array in `depth` objects and arrays, as `scan_value` does, and finds whether its elements are plain. */
static const uint8_t *scan_plain_array(Scan *scan, const uint8_t *at, unsigned depth, const PlainRule *rule,
                                       bool *is_plain)
{
    const uint8_t *const end = scan->end;
    *is_plain = true;
    if (!count_value(scan))
        return NULL;
    at = skip_spaces(at + 1, end);
    while (at < end && *at != ']') {
        bool is_element_plain;
        if ((at = scan_plain_object(scan, at, depth + 1, rule, &is_element_plain)) == NULL ||
            (at = skip_comma(at, end, ']')) == NULL)
            return NULL;
        *is_plain = *is_plain && is_element_plain;
    }
    return at < end ? at + 1 : NULL;
}

/* Scans `messages`. Leaves out those that are plain, except for the first one: the types of requests tell empty arrays
   from others. Returns the byte after it, or NULL. */
static const uint8_t *scan_messages(Scan *scan, const uint8_t *at, const PlainRule *rule)
{
    const uint8_t *const end = scan->end;
    if (*at != '[')
        return scan_value(scan, at, 1);
    if (!count_value(scan))
        return NULL;
    at = skip_spaces(at + 1, end);
    copy_to(scan, at);
    for (bool is_first = true; at < end && *at != ']'; is_first = false) {
        uint8_t *const output = scan->output;
        bool is_plain;
        if (!is_first)
            *scan->output++ = ',';
        scan->uncopied = at;
        if ((at = scan_plain_object(scan, at, 2, rule, &is_plain)) == NULL)
            return NULL;
        copy_to(scan, at);
        if (is_plain && !is_first)
            scan->output = output;
        if ((at = skip_comma(at, end, ']')) == NULL)
            return NULL;
    }
    scan->uncopied = at;
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

/* Scans an object. Returns whether it is valid, and -1 with an exception. The names become empty if one is repeated,
   escaped or one of too many, and with `kept_names`, such an object counts as invalid. */
static int scan_fields(Scan *scan, const uint8_t *at, PyObject *kept_names, const PlainRule *message, Fields *fields)
{
    const uint8_t *const end = scan->end;
    const bool keeps_all = kept_names == Py_None;
    bool has_output = false, is_ambiguous = false;
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
        scan->uncopied = at;
        if (!count_value(scan) || (at = scan_string(scan, name, scan->max_string_bytes)) == NULL)
            return 0;
        const size_t size = (size_t)(at - 1 - name);
        const int added = is_ambiguous ? 0 : add_name(fields->names, name, size);
        if (added < 0 || (added == 0 && !keeps_all))
            return added;
        is_ambiguous = added == 0;
        if ((at = skip_colon(at, end)) == NULL)
            return 0;
        const bool is_model = size == 5 && memcmp(name, "model", 5) == 0;
        const bool is_messages = !keeps_all && size == 8 && memcmp(name, "messages", 8) == 0;
        if (is_model)
            fields->model_start = at;
        if ((at = is_messages ? scan_messages(scan, at, message) : scan_value(scan, at, 1)) == NULL)
            return 0;
        if (is_model)
            fields->model_end = at;
        if (keeps_all || is_one_of(kept_names, name, size)) {
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
    if (is_ambiguous)
        PySet_Clear(fields->names);
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

/* Returns what `scan_object` returns for a scan of `raw` to `output`. */
static PyObject *build_result(const Scan *scan, const Fields *fields, PyObject *raw, bool keeps_all,
                              const uint8_t *output)
{
    const uint8_t *const text = (const uint8_t *)PyBytes_AS_STRING(raw);
    PyObject *reduced = keeps_all && !scan->has_emptied
                            ? Py_NewRef(raw)
                            : PyBytes_FromStringAndSize((const char *)output, scan->output - output);
    if (reduced == NULL)
        return NULL;
    return Py_BuildValue("(NOnn)", reduced, fields->names, (Py_ssize_t)(fields->model_start - text),
                         (Py_ssize_t)(fields->model_end - text));
}

static PyObject *scan_object(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 6 || !PyBytes_CheckExact(arguments[0]) || !is_tuple_of_bytes(arguments[2]) ||
        !is_tuple_of_bytes(arguments[3]) || !(arguments[1] == Py_None || is_tuple_of_bytes(arguments[1])))
        return PyErr_Format(PyExc_TypeError, "scan_object() takes bytes, three tuples of bytes, and two integers. "
                                             "The first tuple may be None");
    PyObject *const raw = arguments[0], *const kept_names = arguments[1];
    const PlainRule part = {.tag_name = "type", .tag_name_size = 4, .text_name = "text", .text_name_size = 4,
                            .tag_values = arguments[3], .is_text_optional = true};
    const PlainRule message = {.tag_name = "role", .tag_name_size = 4, .text_name = "content", .text_name_size = 7,
                               .tag_values = arguments[2], .parts = &part};
    const Py_ssize_t max_string_bytes = PyLong_AsSsize_t(arguments[4]);
    const Py_ssize_t max_nested_bytes = PyLong_AsSsize_t(arguments[5]);
    if (PyErr_Occurred())
        return NULL;
    const uint8_t *const text = (const uint8_t *)PyBytes_AS_STRING(raw);
    const size_t size = (size_t)PyBytes_GET_SIZE(raw);
    if (!is_utf8(text, size))
        Py_RETURN_NONE;
    uint8_t buffer[STACK_BYTES];
    uint8_t *const output = size <= STACK_BYTES ? buffer : PyMem_Malloc(size); /* a reduced body is no longer */
    if (output == NULL)
        return PyErr_NoMemory();
    Scan scan = {.uncopied = text,
                 .end = text + size,
                 .output = output,
                 .max_string_bytes = (size_t)max_string_bytes,
                 .max_nested_bytes = (size_t)max_nested_bytes};
    Fields fields = {.names = PySet_New(NULL), .model_start = text, .model_end = text};
    PyObject *result = NULL;
    const int is_valid = fields.names == NULL ? -1 : scan_fields(&scan, text, kept_names, &message, &fields);
    if (is_valid > 0)
        result = build_result(&scan, &fields, raw, kept_names == Py_None, output);
    else if (is_valid == 0 && scan.value_count > MAX_VALUES)
        PyErr_SetString(PyExc_ValueError, "the body has too many values");
    else if (is_valid == 0 && scan.is_too_deep)
        PyErr_SetString(PyExc_RecursionError, "the body is nested too deeply");
    else if (is_valid == 0)
        result = Py_NewRef(Py_None);
    Py_XDECREF(fields.names);
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

static PyObject *find_closing_quote(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2 || !PyBytes_CheckExact(arguments[0]))
        return PyErr_Format(PyExc_TypeError, "find_closing_quote() takes bytes and an integer");
    const Py_ssize_t start = PyLong_AsSsize_t(arguments[1]), size = PyBytes_GET_SIZE(arguments[0]);
    if (PyErr_Occurred())
        return NULL;
    const uint8_t *const text = (const uint8_t *)PyBytes_AS_STRING(arguments[0]);
    const uint8_t *const quote = start < 0 || start > size ? NULL : find_string_end(text + start, text + size);
    return PyLong_FromSsize_t(quote == NULL ? -1 : quote - text);
}

static PyMethodDef METHODS[] = {
    {"is_utf8", py_is_utf8, METH_O, NULL},
    {"is_string", is_string, METH_O, NULL},
    {"find_closing_quote", (PyCFunction)(void (*)(void))find_closing_quote, METH_FASTCALL, NULL},
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
