/* Scans JSON text 16 or 64 bytes at a time. Needs SSSE3 (x86-64) or NEON (64-bit Arm). No Python, no allocation.

   is_utf8          validates UTF-8 by the method of "Validating UTF-8 In Less Than One Instruction Per Byte"
                    (J. Keiser, D. Lemire, 2020, arXiv:2010.03090)
   find_string_end  finds the closing quote of a string, and validates its escapes (RFC 8259, section 7). It uses a mask
                    with a bit for each byte, as "Parsing Gigabytes of JSON per Second" does (G. Langdale, D. Lemire,
                    2019, arXiv:1902.08318): branches for each escape would cost more than the rest */

#ifndef SVC_JSON_SCAN_H
#define SVC_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BLOCK_BYTES 16
#define STEP_BYTES (4 * BLOCK_BYTES)

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

/* The size of the \u escape, or of the pair, at the start of `text`. 0 if it is invalid or an unpaired surrogate. */
static inline size_t measure_unicode_escape(const uint8_t *text, size_t size)
{
    if (!is_unicode_escape(text, size))
        return 0;
    if ((text[2] | 0x20) != 'd' || text[3] < '8')
        return 6;
    const bool is_high = text[3] <= '9' || (text[3] | 0x20) <= 'b';
    const bool is_pair = is_high && is_unicode_escape(text + 6, size - 6) && (text[8] | 0x20) == 'd' &&
                         (text[9] | 0x20) >= 'c';
    return is_pair ? 12 : 0;
}

/* A bit for each byte of the results of four comparisons, the first byte lowest. */
VECTOR_TARGET static inline uint64_t to_mask(vector a, vector b, vector c, vector d)
{
#if defined(__x86_64__)
    const uint64_t low = (unsigned)_mm_movemask_epi8(a) | (unsigned)_mm_movemask_epi8(b) << BLOCK_BYTES;
    const uint64_t high = (unsigned)_mm_movemask_epi8(c) | (unsigned)_mm_movemask_epi8(d) << BLOCK_BYTES;
    return low | high << (2 * BLOCK_BYTES);
#else
    static const uint8_t BITS[BLOCK_BYTES] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const vector bits = LOAD(BITS);
    const vector low = vpaddq_u8(AND(a, bits), AND(b, bits)), high = vpaddq_u8(AND(c, bits), AND(d, bits));
    const vector sums = vpaddq_u8(low, high);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)), 0);
#endif
}

VECTOR_TARGET static inline uint64_t find_byte(const vector step[4], uint8_t byte)
{
    const vector wanted = FILL(byte);
    return to_mask(EQUAL(step[0], wanted), EQUAL(step[1], wanted), EQUAL(step[2], wanted), EQUAL(step[3], wanted));
}

VECTOR_TARGET static inline vector is_control(vector block)
{
    return EQUAL(MINIMUM(block, FILL(0x1F)), block);
}

/* The bytes that end a string or are not its plain text: quotes, backslashes and control characters. */
VECTOR_TARGET static inline vector find_special(vector block)
{
    return OR(OR(EQUAL(block, FILL('"')), EQUAL(block, FILL('\\'))), is_control(block));
}

/* Whether STEP_BYTES bytes are the plain text of a string. */
VECTOR_TARGET static inline bool is_plain_step(const uint8_t *text)
{
    return IS_ZERO(OR(OR(find_special(LOAD(text)), find_special(LOAD(text + BLOCK_BYTES))),
                      OR(find_special(LOAD(text + 2 * BLOCK_BYTES)), find_special(LOAD(text + 3 * BLOCK_BYTES)))));
}

/* Letters of escapes by their nibbles: a letter is one if both have a bit in common. */
enum { COLUMN_2 = 1, COLUMN_5 = 2, COLUMN_6 = 4, COLUMN_7 = 8 };
static const uint8_t ESCAPE_HIGH[BLOCK_BYTES] = {[2] = COLUMN_2, [5] = COLUMN_5, [6] = COLUMN_6, [7] = COLUMN_7};
static const uint8_t ESCAPE_LOW[BLOCK_BYTES] = {
    [0x2] = COLUMN_2 | COLUMN_6 | COLUMN_7, /* " b r */
    [0x4] = COLUMN_7,                       /* t */
    [0x5] = COLUMN_7,                       /* u */
    [0x6] = COLUMN_6,                       /* f */
    [0xC] = COLUMN_5,                       /* the backslash */
    [0xE] = COLUMN_6,                       /* n */
    [0xF] = COLUMN_2,                       /* / */
};

VECTOR_TARGET static inline vector is_no_escape_letter(vector block)
{
    const vector found = AND(LOOK_UP(LOAD(ESCAPE_HIGH), HIGH_NIBBLES(block)),
                             LOOK_UP(LOAD(ESCAPE_LOW), AND(block, FILL(15))));
    return EQUAL(found, FILL(0));
}

/* The bytes after runs of backslashes of odd length, which are escaped. `is_escaped` tells whether the first byte is,
   and then whether the first byte of the next step is. */
static inline uint64_t find_escaped(uint64_t backslashes, bool *is_escaped)
{
    const uint64_t even = 0x5555555555555555, first = *is_escaped;
    backslashes &= ~first;
    const uint64_t starts = backslashes & ~(backslashes << 1);
    uint64_t after_odd;
    /* A carry from the first byte of a run to the one after it. A run of odd length begins at an even byte and ends
       before an odd one, or the other way round. */
    const uint64_t after_even = backslashes + (starts & even);
    *is_escaped = __builtin_add_overflow(backslashes, starts & ~even, &after_odd);
    return first | (~backslashes & ((after_even & ~even) | (after_odd & even)));
}

/* The closing quote of the string whose first byte after the opening quote is at `at`, or NULL if it has none before
   `end`, or has control characters, invalid escapes or unpaired surrogates. */
VECTOR_TARGET static const uint8_t *find_long_string_end(const uint8_t *at, const uint8_t *end)
{
    const uint8_t *checked = at; /* the end of the last \u escape */
    bool is_escaped = false;
    uint8_t tail[STEP_BYTES];
    for (; at < end; at += STEP_BYTES) {
        const uint8_t *text = at;
        if (end - at < STEP_BYTES) { /* padded with control characters, which end an unterminated string */
            memset(tail, 0, STEP_BYTES);
            memcpy(tail, at, (size_t)(end - at));
            text = tail;
        }
        const vector step[4] = {LOAD(text), LOAD(text + BLOCK_BYTES), LOAD(text + 2 * BLOCK_BYTES),
                                LOAD(text + 3 * BLOCK_BYTES)};
        const bool has_controls = HAS_HIGH_BIT(OR(OR(is_control(step[0]), is_control(step[1])),
                                                  OR(is_control(step[2]), is_control(step[3]))));
        const uint64_t backslashes = find_byte(step, '\\'), all_quotes = find_byte(step, '"');
        if ((backslashes | all_quotes) == 0 && !has_controls && !is_escaped) {
            while (end - at >= 2 * STEP_BYTES && is_plain_step(at + STEP_BYTES))
                at += STEP_BYTES;
            continue;
        }
        const uint64_t escaped = find_escaped(backslashes, &is_escaped), quotes = all_quotes & ~escaped;
        const uint64_t inside = quotes == 0 ? UINT64_MAX : (quotes & -quotes) - 1;
        if (has_controls && (to_mask(is_control(step[0]), is_control(step[1]), is_control(step[2]),
                                     is_control(step[3])) & inside) != 0)
            return NULL;
        if ((escaped & inside) != 0) {
            const uint64_t invalid = to_mask(is_no_escape_letter(step[0]), is_no_escape_letter(step[1]),
                                             is_no_escape_letter(step[2]), is_no_escape_letter(step[3]));
            if ((invalid & escaped & inside) != 0)
                return NULL;
            for (uint64_t left = find_byte(step, 'u') & escaped & inside; left != 0; left &= left - 1) {
                const uint8_t *escape = at + __builtin_ctzll(left) - 1;
                if (escape < checked)
                    continue; /* the second one of a pair of surrogates */
                const size_t size = measure_unicode_escape(escape, (size_t)(end - escape));
                if (size == 0)
                    return NULL;
                checked = escape + size;
            }
        }
        if (quotes != 0)
            return at + __builtin_ctzll(quotes);
    }
    return NULL;
}

/* As `find_long_string_end`. Most strings are short, so it looks at the first bytes alone. */
VECTOR_TARGET static inline const uint8_t *find_string_end(const uint8_t *at, const uint8_t *end)
{
    if (end - at >= BLOCK_BYTES) {
        const vector special = find_special(LOAD(at));
        const uint64_t mask = to_mask(special, FILL(0), FILL(0), FILL(0));
        if (mask == 0)
            at += BLOCK_BYTES;
        else if (at[__builtin_ctzll(mask)] == '"')
            return at + __builtin_ctzll(mask);
    }
    return find_long_string_end(at, end);
}

#endif
