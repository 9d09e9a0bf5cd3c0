/* Scans JSON text 16 or 64 bytes at a time. Needs SSSE3 (x86-64) or NEON (64-bit Arm). No Python, no allocation.

   is_utf8          validates UTF-8 by the method of "Validating UTF-8 In Less Than One Instruction Per Byte"
                    (J. Keiser, D. Lemire, 2020, arXiv:2010.03090)
   find_string_end  finds the closing quote of a string, and validates its escapes (RFC 8259, section 7) */

#ifndef SVC_JSON_SCAN_H
#define SVC_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BLOCK_BYTES 16
#define STEP_BYTES (4 * BLOCK_BYTES)
#define MIN_STEPPED_BYTES 512 /* shorter texts end within a step too often */

#if defined(__x86_64__)
#include <immintrin.h>
#define VECTOR_TARGET __attribute__((target("ssse3")))
typedef __m128i vector;
#define LOAD(bytes) _mm_loadu_si128((const __m128i *)(bytes))
#define FILL(byte) _mm_set1_epi8((char)(byte))
#define AND(a, b) _mm_and_si128(a, b)
#define OR(a, b) _mm_or_si128(a, b)
#define XOR(a, b) _mm_xor_si128(a, b)
#define EQUAL(a, b) _mm_cmpeq_epi8(a, b)
#define MINIMUM(a, b) _mm_min_epu8(a, b)
#define SUBTRACT_SATURATED(a, b) _mm_subs_epu8(a, b)
#define HIGH_NIBBLES(a) _mm_and_si128(_mm_srli_epi16(a, 4), _mm_set1_epi8(15))
#define LOOK_UP(table, indices) _mm_shuffle_epi8(table, indices)
/* The block that begins `count` bytes before `block`. */
#define SHIFT_IN(previous, block, count) _mm_alignr_epi8(block, previous, BLOCK_BYTES - (count))
#define HAS_HIGH_BIT(a) (_mm_movemask_epi8(a) != 0)
#define IS_ZERO(a) (_mm_movemask_epi8(_mm_cmpeq_epi8(a, _mm_setzero_si128())) == 0xFFFF)
/* A mask with MASK_BITS bits for each byte of a comparison's result, the first byte lowest. */
#define MASK(a) ((uint64_t)(unsigned)_mm_movemask_epi8(a))
#define MASK_BITS 1
#elif defined(__aarch64__)
#include <arm_neon.h>
#define VECTOR_TARGET
typedef uint8x16_t vector;
#define LOAD(bytes) vld1q_u8(bytes)
#define FILL(byte) vdupq_n_u8((uint8_t)(byte))
#define AND(a, b) vandq_u8(a, b)
#define OR(a, b) vorrq_u8(a, b)
#define XOR(a, b) veorq_u8(a, b)
#define EQUAL(a, b) vceqq_u8(a, b)
#define MINIMUM(a, b) vminq_u8(a, b)
#define SUBTRACT_SATURATED(a, b) vqsubq_u8(a, b)
#define HIGH_NIBBLES(a) vshrq_n_u8(a, 4)
#define LOOK_UP(table, indices) vqtbl1q_u8(table, indices)
#define SHIFT_IN(previous, block, count) vextq_u8(previous, block, BLOCK_BYTES - (count))
#define HAS_HIGH_BIT(a) (vmaxvq_u8(a) >= 0x80)
#define IS_ZERO(a) (vmaxvq_u8(a) == 0)
#define MASK(a) vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(a), 4)), 0)
#define MASK_BITS 4
#else
#error "_json_scan needs x86-64 or 64-bit Arm"
#endif

/* What two adjacent bytes can do wrong. Each table has the errors that one of three nibbles permits, so that an error
   is one that all three have. TWO_CONTINUATIONS is none if the second byte completes a letter of three or four bytes. */
enum {
    TOO_SHORT = 1 << 0,          /* a first byte without its continuation */
    TOO_LONG = 1 << 1,           /* ASCII and a continuation */
    OVERLONG_3 = 1 << 2,         /* E0 and less than A0 */
    TOO_LARGE = 1 << 3,          /* F4 and more than 8F, or F5 and above */
    SURROGATE = 1 << 4,          /* ED and more than 9F */
    OVERLONG_2 = 1 << 5,         /* C0 or C1 */
    TOO_LARGE_1000 = 1 << 6,     /* F5 and above, and 80 to 8F */
    OVERLONG_4 = 1 << 6,         /* F0 and less than 90 */
    TWO_CONTINUATIONS = 1 << 7,
    ANY_LOW = TOO_SHORT | TOO_LONG | TWO_CONTINUATIONS, /* errors that do not depend on the first byte's low nibble */
    ABOVE_4 = ANY_LOW | TOO_LARGE | TOO_LARGE_1000,
    CONTINUATION = TOO_LONG | OVERLONG_2 | TWO_CONTINUATIONS,
};

static const uint8_t FIRST_HIGH[BLOCK_BYTES] = {
    TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG,
    TWO_CONTINUATIONS, TWO_CONTINUATIONS, TWO_CONTINUATIONS, TWO_CONTINUATIONS,
    TOO_SHORT | OVERLONG_2,
    TOO_SHORT,
    TOO_SHORT | OVERLONG_3 | SURROGATE,
    TOO_SHORT | TOO_LARGE | TOO_LARGE_1000 | OVERLONG_4,
};
static const uint8_t FIRST_LOW[BLOCK_BYTES] = {
    ANY_LOW | OVERLONG_3 | OVERLONG_2 | OVERLONG_4,
    ANY_LOW | OVERLONG_2,
    ANY_LOW, ANY_LOW,
    ANY_LOW | TOO_LARGE,
    ABOVE_4, ABOVE_4, ABOVE_4, ABOVE_4, ABOVE_4, ABOVE_4, ABOVE_4, ABOVE_4,
    ABOVE_4 | SURROGATE,
    ABOVE_4, ABOVE_4,
};
static const uint8_t SECOND_HIGH[BLOCK_BYTES] = {
    TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT,
    CONTINUATION | OVERLONG_3 | TOO_LARGE_1000 | OVERLONG_4,
    CONTINUATION | OVERLONG_3 | TOO_LARGE,
    CONTINUATION | SURROGATE | TOO_LARGE,
    CONTINUATION | SURROGATE | TOO_LARGE,
    TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT,
};

/* Whether STEP_BYTES bytes are ASCII. */
VECTOR_TARGET static inline bool is_ascii_step(const uint8_t *text)
{
    return !HAS_HIGH_BIT(OR(OR(LOAD(text), LOAD(text + BLOCK_BYTES)),
                            OR(LOAD(text + 2 * BLOCK_BYTES), LOAD(text + 3 * BLOCK_BYTES))));
}

VECTOR_TARGET static bool is_utf8(const uint8_t *text, size_t size)
{
    const vector first_high = LOAD(FIRST_HIGH), first_low = LOAD(FIRST_LOW), second_high = LOAD(SECOND_HIGH);
    vector previous = FILL(0), errors = FILL(0);
    uint8_t tail[BLOCK_BYTES];
    for (size_t index = 0;; index += BLOCK_BYTES) {
        while (size - index >= STEP_BYTES && !HAS_HIGH_BIT(previous) && is_ascii_step(text + index)) {
            index += STEP_BYTES;
            previous = FILL(0);
        }
        const bool is_last = size - index < BLOCK_BYTES;
        vector block;
        if (is_last) { /* padded with ASCII, before which the last letter must be complete */
            memset(tail, 0, BLOCK_BYTES);
            memcpy(tail, text + index, size - index);
            block = LOAD(tail);
        } else {
            block = LOAD(text + index);
        }
        if (HAS_HIGH_BIT(OR(block, previous))) {
            const vector first = SHIFT_IN(previous, block, 1);
            const vector found = AND(AND(LOOK_UP(first_high, HIGH_NIBBLES(first)),
                                         LOOK_UP(first_low, AND(first, FILL(15)))),
                                     LOOK_UP(second_high, HIGH_NIBBLES(block)));
            /* The high bit is set for the third byte after E0 to FF, and for the fourth one after F0 to FF. */
            const vector completes = OR(SUBTRACT_SATURATED(SHIFT_IN(previous, block, 2), FILL(0xE0 - 0x80)),
                                        SUBTRACT_SATURATED(SHIFT_IN(previous, block, 3), FILL(0xF0 - 0x80)));
            errors = OR(errors, XOR(found, AND(completes, FILL(TWO_CONTINUATIONS))));
        }
        if (is_last)
            return IS_ZERO(errors);
        previous = block;
    }
}

static inline bool is_hex_digit(uint8_t byte)
{
    return (byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f');
}

static inline bool is_unicode_escape(const uint8_t *text, size_t size)
{
    return size >= 6 && text[0] == '\\' && text[1] == 'u' && is_hex_digit(text[2]) && is_hex_digit(text[3]) &&
           is_hex_digit(text[4]) && is_hex_digit(text[5]);
}

/* The size of the escape at the start of `text`, or 0 if it is invalid or an unpaired surrogate. */
static inline size_t measure_escape(const uint8_t *text, size_t size)
{
    if (size < 2)
        return 0;
    switch (text[1]) {
    case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
        return 2;
    default:
        break;
    }
    if (!is_unicode_escape(text, size))
        return 0;
    if ((text[2] | 0x20) != 'd' || text[3] < '8')
        return 6;
    const bool is_high = text[3] <= '9' || (text[3] | 0x20) <= 'b';
    const bool is_pair = is_high && is_unicode_escape(text + 6, size - 6) && (text[8] | 0x20) == 'd' &&
                         (text[9] | 0x20) >= 'c';
    return is_pair ? 12 : 0;
}

/* The bytes of a block that end a string or are not its plain text: quotes, backslashes and control characters. */
VECTOR_TARGET static inline vector find_special(const uint8_t *text)
{
    const vector block = LOAD(text);
    return OR(OR(EQUAL(block, FILL('"')), EQUAL(block, FILL('\\'))), EQUAL(MINIMUM(block, FILL(0x1F)), block));
}

/* Whether STEP_BYTES bytes are the plain text of a string. */
VECTOR_TARGET static inline bool is_plain_step(const uint8_t *text)
{
    return IS_ZERO(OR(OR(find_special(text), find_special(text + BLOCK_BYTES)),
                      OR(find_special(text + 2 * BLOCK_BYTES), find_special(text + 3 * BLOCK_BYTES))));
}

/* The index of the closing quote of the string whose first byte after the opening quote is at `index`, or `size`.
   `is_valid` tells whether the string has no control characters, invalid escapes or unpaired surrogates. */
VECTOR_TARGET static size_t find_string_end(const uint8_t *text, size_t index, size_t size, bool *is_valid)
{
    const size_t start = index;
    *is_valid = true;
    while (index < size) {
        if (size - index >= BLOCK_BYTES) {
            const uint64_t mask = MASK(find_special(text + index));
            if (mask == 0) {
                index += BLOCK_BYTES;
                if (index - start >= MIN_STEPPED_BYTES) {
                    while (size - index >= STEP_BYTES && is_plain_step(text + index))
                        index += STEP_BYTES;
                }
                continue;
            }
            index += (size_t)__builtin_ctzll(mask) / MASK_BITS;
        } else if (text[index] != '"' && text[index] != '\\' && text[index] > 0x1F) {
            index++;
            continue;
        }
        if (text[index] == '"')
            return index;
        const size_t escape_size = text[index] == '\\' ? measure_escape(text + index, size - index) : 0;
        if (escape_size == 0) {
            *is_valid = false;
            index += text[index] == '\\' ? 2 : 1; /* an escaped quote does not end the string */
        } else {
            index += escape_size;
        }
    }
    return size;
}

#endif
