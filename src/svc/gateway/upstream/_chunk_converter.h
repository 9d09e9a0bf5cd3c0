/* Matches framed chunks with a template, and converts them. `chunk_converter.py` documents it. */

#ifndef SVC_CHUNK_CONVERTER_H
#define SVC_CHUNK_CONVERTER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../../dialects/_json_scan.h"

#define MAX_SIZE_DIGITS 3 /* SIZE_LINE_COUNT of http_chunk.py is 2,048 */
#define MAX_CHUNK_BYTES 2047
#define MAX_FRAMED_CHUNK_BYTES (MAX_SIZE_DIGITS + 2 + MAX_CHUNK_BYTES + 2)
#define BYTES_PER_TOKEN 4 /* ASCII_CHARS_PER_TOKEN of text_weight.py */

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

/* Returns the estimated tokens of the text, by the rule of chunk_converter.py. */
static inline long long count_tokens(const Chunk *chunk)
{
    const size_t size = (size_t)(chunk->text_end - chunk->text_start);
    return size == 0 ? 0 : size < BYTES_PER_TOKEN ? 1 : (long long)(size / BYTES_PER_TOKEN);
}

/* Writes the chunk for the client to `output`, which has room for MAX_FRAMED_CHUNK_BYTES. Returns NULL if it is too
   large for a chunk. */
static inline uint8_t *write_chunk(const ChunkConverter *self, const Chunk *chunk, uint8_t *output)
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

#endif
