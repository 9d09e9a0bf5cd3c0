/* The module `svc.dialects._text_weight`, which `svc.dialects.text_weight` documents. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define MAX_SAMPLES_BYTES 4096
#define ESCAPE_DIGITS 4
#define ESCAPE_BYTES 6
#define TABLE_BYTES 256

/* First bytes of letters in UTF-8, as which Unicode escapes are weighed */
#define TWO_BYTE_LETTER 0xC2
#define INDIC_LETTER 0xE0
#define THREE_BYTE_LETTER 0xE1

/* Returns the weight of a letter from the digits of its escape. */
static int64_t weigh_letter(const uint8_t *digits, const uint8_t *weights)
{
    if (digits[0] != '0') /* from U+1000 on */
        return weights[THREE_BYTE_LETTER];
    return weights[digits[1] < '8' ? TWO_BYTE_LETTER : INDIC_LETTER];
}

/* Returns what escapes weigh in addition to their ASCII, which may be negative. */
static int64_t weigh_escapes(const uint8_t *at, const uint8_t *end, const uint8_t *weights)
{
    int64_t weight = 0;
    while ((at = memchr(at, '\\', (size_t)(end - at))) != NULL) {
        const uint8_t *const digits = at + 2; /* of a Unicode escape */
        if (digits > end)
            break;
        if (at[1] == '"') { /* with its ASCII, it weighs one token */
            weight += 2 * weights['"'];
        } else if (at[1] == 'u' && end - digits >= ESCAPE_DIGITS && memchr(digits, '\\', ESCAPE_DIGITS) == NULL) {
            weight += weigh_letter(digits, weights) - weights['\\'] - weights['u'];
            for (int index = 0; index < ESCAPE_DIGITS; index++)
                weight -= weights[digits[index]];
        }
        at = digits;
    }
    return weight;
}

static int64_t weigh(const uint8_t *text, size_t size, const uint8_t *weights)
{
    int64_t weight = 0;
    for (size_t index = 0; index < size; index++)
        weight += weights[text[index]];
    return weight + weigh_escapes(text, text + size, weights);
}

static bool has_unicode_escape(const uint8_t *at, const uint8_t *end)
{
    while ((at = memchr(at, '\\', (size_t)(end - at))) != NULL) {
        if (++at < end && *at == 'u')
            return true;
    }
    return false;
}

/* Returns the start of the Unicode escape that contains `index`, or `index`. */
static size_t find_escape_start(const uint8_t *text, size_t index)
{
    for (size_t distance = 1; distance < ESCAPE_BYTES && distance <= index; distance++) {
        const uint8_t *const at = text + index - distance;
        if (at[0] == '\\' && at[1] == 'u')
            return index - distance;
    }
    return index;
}

/* Copies samples of a longer text, and returns their length. */
static size_t take_samples(const uint8_t *text, size_t size, size_t count, size_t sample_size, uint8_t *samples)
{
    const size_t step = size / count, first = (step - sample_size) / 2;
    for (size_t number = 0; number < count; number++)
        memcpy(samples + number * sample_size, text + first + number * step, sample_size);
    if (!has_unicode_escape(samples, samples + count * sample_size))
        return count * sample_size;
    size_t length = 0;
    for (size_t number = 0; number < count; number++) {
        const size_t offset = first + number * step;
        const size_t start = find_escape_start(text, offset), end = find_escape_start(text, offset + sample_size);
        memcpy(samples + length, text + start, end - start);
        length += end - start;
    }
    return length;
}

static PyObject *weigh_text(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 4 || !PyBytes_CheckExact(arguments[0]) || !PyBytes_CheckExact(arguments[1]) ||
        PyBytes_GET_SIZE(arguments[1]) != TABLE_BYTES)
        return PyErr_Format(PyExc_TypeError, "weigh_text() takes bytes, 256 weights and two integers");
    const Py_ssize_t sample_count = PyLong_AsSsize_t(arguments[2]), sample_size = PyLong_AsSsize_t(arguments[3]);
    if (PyErr_Occurred())
        return NULL;
    /* A sample is longer if it begins within an escape, and shorter if it ends within one. */
    if (sample_count < 1 || sample_size <= ESCAPE_BYTES || sample_count > MAX_SAMPLES_BYTES ||
        sample_size > MAX_SAMPLES_BYTES || sample_count * (sample_size + ESCAPE_BYTES) > MAX_SAMPLES_BYTES)
        return PyErr_Format(PyExc_ValueError, "weigh_text() does not take samples of this size and number");
    const uint8_t *const text = (const uint8_t *)PyBytes_AS_STRING(arguments[0]);
    const uint8_t *const weights = (const uint8_t *)PyBytes_AS_STRING(arguments[1]);
    const size_t size = (size_t)PyBytes_GET_SIZE(arguments[0]);
    if (size <= (size_t)(sample_count * sample_size))
        return PyLong_FromLongLong(weigh(text, size, weights));
    uint8_t samples[MAX_SAMPLES_BYTES];
    const size_t length = take_samples(text, size, (size_t)sample_count, (size_t)sample_size, samples);
    return PyLong_FromLongLong(weigh(samples, length, weights) * (int64_t)size / (int64_t)length);
}

static PyMethodDef METHODS[] = {
    {"weigh_text", (PyCFunction)(void (*)(void))weigh_text, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_text_weight", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__text_weight(void)
{
    return PyModule_Create(&MODULE);
}
