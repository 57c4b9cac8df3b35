/* st_index: the header of a safetensors file, read and checked.
 *
 *   {"__metadata__": {key: text, ...}, name: {"dtype", "shape", "data_offsets": [begin, end]} ...}
 *
 * A reader for exactly this, not for JSON at large: a header of 100 MB costs memory in proportion
 * to what it really holds, lack of memory is told from a damaged file, and the first thing that
 * does not belong is named with its place.
 *
 * S1  `at` never passes `size`: every look at the text goes through peek().
 * S2  A decoded string and its NUL are never longer than the string with its quotes, so all
 *     strings of a header fit in as many bytes as the header has. */
#include "base/st_index.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { most_items = 1 << 20 }; /* tensors, and entries of metadata: each costs more than its text */

typedef struct scanner {
    wf_ctx *ctx;
    const char *label; /* the file */
    const char *text;
    size_t size, at;
    const uint8_t *data;
    size_t data_size;
    wf_st_index *index;
    size_t strings_used, tensor_room, meta_room;
    bool has_meta;
} scanner;

/* --- the text --------------------------------------------------------------------------------- */

static wf_status not_valid(const scanner *s, const char *what) {
    return wf_fail(s->ctx, WF_ERR_INPUT, "%s: the header is not valid at byte %zu: %s", s->label,
                   8 + s->at, what);
}

static wf_status no_memory(const scanner *s) {
    return wf_fail(s->ctx, WF_ERR_MEMORY, "%s: out of memory for its header", s->label);
}

#define TENSOR_FAIL(s, t, format, ...)                                                             \
    wf_fail((s)->ctx, WF_ERR_INPUT, "%s: tensor \"%.100s\": " format, (s)->label, (t)->name,       \
            __VA_ARGS__)

/* The next character, 0 at the end. A NUL in the text is no legal character either. */
static char peek(const scanner *s) { return s->at < s->size ? s->text[s->at] : '\0'; }

static char peek_token(scanner *s) {
    while (peek(s) == ' ' || peek(s) == '\t' || peek(s) == '\n' || peek(s) == '\r') s->at++;
    return peek(s);
}

static wf_status expect(scanner *s, char c) {
    if (peek_token(s) == c) {
        s->at++;
        return WF_OK;
    }
    char what[] = "'?' expected";
    what[1] = c;
    return not_valid(s, what);
}

/* Between the members of an object or list. *more: another one follows. */
static wf_status next_member(scanner *s, char close, bool first, bool *more) {
    char c = peek_token(s);
    *more = c != close;
    if (c == close) s->at++;
    else if (!first) return expect(s, ',');
    return WF_OK;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The four digits after \u. */
static wf_status read_code_unit(scanner *s, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        int digit = hex_digit(peek(s));
        if (digit < 0) return not_valid(s, "four hexadecimal digits expected");
        *out = *out << 4 | (uint32_t)digit;
    }
    return WF_OK;
}

static char *put_utf8(char *to, uint32_t c) {
    if (c < 0x80) {
        *to++ = (char)c;
        return to;
    }
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const uint8_t lead[] = {0, 0xc0, 0xe0, 0xf0};
    *to++ = (char)(lead[more] | c >> 6 * more);
    while (more-- > 0) *to++ = (char)(0x80 | (c >> 6 * more & 63));
    return to;
}

/* After "\u": a character, which outside the basic plane is two escapes. */
static wf_status read_unicode_escape(scanner *s, char **to) {
    uint32_t high, low;
    WF_TRY(read_code_unit(s, &high));
    if (high == 0) return not_valid(s, "U+0000 in a string");
    if (high >= 0xdc00 && high < 0xe000) return not_valid(s, "half of a surrogate pair");
    if (high >= 0xd800 && high < 0xdc00) {
        if (peek(s) != '\\') return not_valid(s, "half of a surrogate pair");
        s->at++;
        if (peek(s) != 'u') return not_valid(s, "half of a surrogate pair");
        s->at++;
        WF_TRY(read_code_unit(s, &low));
        if (low < 0xdc00 || low >= 0xe000) return not_valid(s, "half of a surrogate pair");
        high = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    }
    *to = put_utf8(*to, high);
    return WF_OK;
}

static wf_status read_escape(scanner *s, char **to) {
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    char c = peek(s);
    const char *known = c != '\0' ? strchr(from, c) : NULL;
    if (known != NULL) *(*to)++ = into[known - from];
    else if (c != 'u') return not_valid(s, "unknown escape");
    s->at++;
    return known != NULL ? WF_OK : read_unicode_escape(s, to);
}

/* A string, decoded into the index's own (S2). The text is known to be UTF-8. */
static wf_status read_string(scanner *s, const char **out) {
    if (peek_token(s) != '"') return not_valid(s, "a string expected");
    s->at++;
    char *start = s->index->strings + s->strings_used, *to = start;
    for (char c; (c = peek(s)) != '"';) {
        if ((unsigned char)c < 32)
            return not_valid(s, s->at < s->size ? "control character in a string"
                                                : "a string without end");
        s->at++;
        if (c == '\\') WF_TRY(read_escape(s, &to));
        else *to++ = c;
    }
    s->at++;
    *to++ = '\0';
    s->strings_used += (size_t)(to - start);
    *out = start;
    return WF_OK;
}

/* A whole number, not negative, as JSON writes one; 3.0 and 1e2 are refused. */
static bool read_size(scanner *s, size_t *out) {
    char first = peek_token(s);
    if (first < '0' || first > '9') return false;
    size_t start = s->at;
    *out = 0;
    for (char c; (c = peek(s)) >= '0' && c <= '9'; s->at++)
        if (__builtin_mul_overflow(*out, (size_t)10, out) ||
            __builtin_add_overflow(*out, (size_t)(c - '0'), out))
            return false;
    if (first == '0' && s->at > start + 1) return false;
    char c = peek(s);
    return c != '.' && c != 'e' && c != 'E';
}

/* --- one tensor ------------------------------------------------------------------------------- */

/* An entry as it stands; shape and offsets are judged when all fields are there. */
typedef struct entry {
    bool has_dtype, has_shape, has_offsets;
    size_t begin, end;
} entry;

static wf_status read_dtype(scanner *s, wf_st_tensor *tensor) {
    if (peek_token(s) != '"') return TENSOR_FAIL(s, tensor, "%s", "dtype is not a string");
    size_t before = s->strings_used;
    const char *name;
    WF_TRY(read_string(s, &name));
    s->strings_used = before; /* needed no longer than here */
    for (int i = WF_ST_BOOL; i <= WF_ST_U64; i++) {
        if (strcmp(name, wf_st_dtype_name((wf_st_dtype)i)) != 0) continue;
        tensor->dtype = (wf_st_dtype)i;
        return WF_OK;
    }
    return TENSOR_FAIL(s, tensor,
                       "dtype \"%.30s\" is not supported; BOOL, U8 to U64, I8 to I64, F16, BF16, "
                       "F32 and F64 are",
                       name);
}

static wf_status read_shape(scanner *s, wf_st_tensor *tensor) {
    if (peek_token(s) != '[') return TENSOR_FAIL(s, tensor, "%s", "shape is not a list");
    s->at++;
    bool more;
    WF_TRY(next_member(s, ']', true, &more));
    while (more) {
        if (tensor->rank == WF_ST_MAX_RANK)
            return TENSOR_FAIL(s, tensor, "more than %d dimensions", WF_ST_MAX_RANK);
        if (!read_size(s, &tensor->shape[tensor->rank++]))
            return TENSOR_FAIL(s, tensor, "shape[%d] is not a whole number from 0 up to 2^64",
                               tensor->rank - 1);
        WF_TRY(next_member(s, ']', false, &more));
    }
    return WF_OK;
}

static wf_status read_offsets(scanner *s, const wf_st_tensor *tensor, entry *e) {
    static const char problem[] = "data_offsets is not two whole numbers from 0 up";
    size_t *const parts[] = {&e->begin, &e->end};
    if (peek_token(s) != '[') return TENSOR_FAIL(s, tensor, "%s", problem);
    s->at++;
    for (int i = 0; i < 2; i++) {
        if (!read_size(s, parts[i]) || peek_token(s) != ",]"[i])
            return TENSOR_FAIL(s, tensor, "%s", problem);
        s->at++;
    }
    return WF_OK;
}

static wf_status read_field(scanner *s, wf_st_tensor *tensor, entry *e) {
    static const char *const names[] = {"dtype", "shape", "data_offsets"};
    bool *const has[] = {&e->has_dtype, &e->has_shape, &e->has_offsets};
    size_t before = s->strings_used;
    const char *name;
    WF_TRY(read_string(s, &name));
    s->strings_used = before;
    WF_TRY(expect(s, ':'));
    int which = 0;
    while (which < 3 && strcmp(name, names[which]) != 0) which++;
    if (which == 3)
        return TENSOR_FAIL(
            s, tensor, "unknown field \"%.40s\"; dtype, shape and data_offsets are all there is",
            name);
    if (*has[which]) return TENSOR_FAIL(s, tensor, "duplicate field %s", names[which]);
    *has[which] = true;
    if (which == 0) return read_dtype(s, tensor);
    return which == 1 ? read_shape(s, tensor) : read_offsets(s, tensor, e);
}

static wf_status judge_entry(const scanner *s, wf_st_tensor *tensor, const entry *e) {
    if (!e->has_dtype || !e->has_shape || !e->has_offsets)
        return TENSOR_FAIL(s, tensor, "%s is missing",
                           !e->has_dtype   ? "dtype"
                           : !e->has_shape ? "shape"
                                           : "data_offsets");
    tensor->count = 1;
    for (int i = 0; i < tensor->rank; i++)
        if (__builtin_mul_overflow(tensor->count, tensor->shape[i], &tensor->count))
            return TENSOR_FAIL(s, tensor, "%s", "the product of its shape overflows");
    if (__builtin_mul_overflow(tensor->count, wf_st_dtype_size(tensor->dtype), &tensor->bytes))
        return TENSOR_FAIL(s, tensor, "%s", "its size in bytes overflows");
    if (e->begin > e->end)
        return TENSOR_FAIL(s, tensor, "its data end at %zu, before they begin at %zu", e->end,
                           e->begin);
    if (e->end > s->data_size)
        return TENSOR_FAIL(s, tensor, "its data end at %zu, but the file holds %zu bytes of data",
                           e->end, s->data_size);
    if (e->end - e->begin != tensor->bytes)
        return TENSOR_FAIL(s, tensor, "its shape needs %zu bytes, data_offsets give %zu",
                           tensor->bytes, e->end - e->begin);
    tensor->data = s->data + e->begin;
    return WF_OK;
}

/* Room for one item more in a growing array. */
static bool make_room(void **array, size_t count, size_t *room, size_t item) {
    if (count < *room) return true;
    size_t more = *room == 0 ? 16 : 2 * *room;
    void *grown = realloc(*array, more * item);
    if (grown == NULL) return false;
    *array = grown;
    *room = more;
    return true;
}

static wf_status read_tensor(scanner *s, const char *name) {
    wf_st_index *index = s->index;
    if (index->count == most_items)
        return wf_fail(s->ctx, WF_ERR_INPUT, "%s: more than %d tensors", s->label, most_items);
    void *array = index->tensor;
    bool room = make_room(&array, index->count, &s->tensor_room, sizeof *index->tensor);
    index->tensor = array;
    if (!room) return no_memory(s);
    wf_st_tensor *tensor = &index->tensor[index->count++];
    *tensor = (wf_st_tensor){.name = name};
    if (name[0] == '\0')
        return wf_fail(s->ctx, WF_ERR_INPUT, "%s: a tensor has an empty name", s->label);
    if (peek_token(s) != '{') return TENSOR_FAIL(s, tensor, "%s", "its entry is not an object");
    s->at++;
    entry e = {0};
    bool more;
    WF_TRY(next_member(s, '}', true, &more));
    while (more) {
        WF_TRY(read_field(s, tensor, &e));
        WF_TRY(next_member(s, '}', false, &more));
    }
    return judge_entry(s, tensor, &e);
}

/* --- the whole -------------------------------------------------------------------------------- */

static wf_status read_pair(scanner *s) {
    wf_st_index *index = s->index;
    if (index->meta_count == most_items)
        return wf_fail(s->ctx, WF_ERR_INPUT, "%s: more than %d entries of metadata", s->label,
                       most_items);
    void *array = index->meta;
    bool room = make_room(&array, index->meta_count, &s->meta_room, sizeof *index->meta);
    index->meta = array;
    if (!room) return no_memory(s);
    const char **pair = index->meta[index->meta_count];
    WF_TRY(read_string(s, &pair[0]));
    WF_TRY(expect(s, ':'));
    if (peek_token(s) != '"')
        return wf_fail(s->ctx, WF_ERR_INPUT, "%s: __metadata__ \"%.100s\" is not a string",
                       s->label, pair[0]);
    WF_TRY(read_string(s, &pair[1]));
    index->meta_count++;
    return WF_OK;
}

static wf_status read_metadata(scanner *s) {
    if (s->has_meta) return wf_fail(s->ctx, WF_ERR_INPUT, "%s: duplicate __metadata__", s->label);
    s->has_meta = true;
    if (peek_token(s) != '{')
        return wf_fail(s->ctx, WF_ERR_INPUT, "%s: __metadata__ is not an object", s->label);
    s->at++;
    bool more;
    WF_TRY(next_member(s, '}', true, &more));
    while (more) {
        WF_TRY(read_pair(s));
        WF_TRY(next_member(s, '}', false, &more));
    }
    return WF_OK;
}

static wf_status read_header(scanner *s) {
    bool more;
    WF_TRY(expect(s, '{'));
    WF_TRY(next_member(s, '}', true, &more));
    while (more) {
        const char *name;
        WF_TRY(read_string(s, &name));
        WF_TRY(expect(s, ':'));
        if (strcmp(name, "__metadata__") == 0) WF_TRY(read_metadata(s));
        else WF_TRY(read_tensor(s, name));
        WF_TRY(next_member(s, '}', false, &more));
    }
    peek_token(s);
    return s->at == s->size ? WF_OK : not_valid(s, "something after the object");
}

typedef const char *const *place; /* of a string */

static int by_text(const void *a, const void *b) {
    return strcmp(**(const place *)a, **(const place *)b);
}

/* The places of n strings, `stride` bytes apart, in order of the strings, which must differ. */
static wf_status sort_places(wf_ctx *ctx, const char *label, const void *first, size_t stride,
                             size_t n, const char *what, place **out) {
    WF_TRY(wf_alloc(ctx, n, sizeof **out, label, out));
    for (size_t i = 0; i < n; i++)
        (*out)[i] = (place)(const void *)((const char *)first + i * stride);
    qsort(*out, n, sizeof **out, by_text);
    for (size_t i = 1; i < n; i++)
        if (by_text(&(*out)[i - 1], &(*out)[i]) == 0)
            return wf_fail(ctx, WF_ERR_INPUT, "%s: duplicate %s \"%.100s\"", label, what,
                           *(*out)[i]);
    return WF_OK;
}

wf_status wf__st_check_unique(wf_ctx *ctx, const char *label, const void *first, size_t stride,
                              size_t n, const char *what) {
    place *places = NULL;
    if (n < 2) return WF_OK;
    wf_status status = sort_places(ctx, label, first, stride, n, what, &places);
    free(places);
    return status;
}

static const void *find(place *places, size_t n, const char *text) {
    place key = &text;
    place *found = n > 0 ? bsearch(&key, places, n, sizeof *places, by_text) : NULL;
    return found != NULL ? *found : NULL;
}

const wf_st_tensor *wf__st_index_tensor(const wf_st_index *index, const char *name) {
    return find(index->names, index->count, name);
}

const char *wf__st_index_meta(const wf_st_index *index, const char *key) {
    const char *const *pair = find(index->keys, index->meta_count, key);
    return pair != NULL ? pair[1] : NULL;
}

/* File order; empty tensors stand before the tensor that begins where they are. */
static int by_place(const void *a_, const void *b_) {
    const wf_st_tensor *a = a_, *b = b_;
    uintptr_t at_a = (uintptr_t)a->data, at_b = (uintptr_t)b->data;
    if (at_a != at_b) return at_a < at_b ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* No overlap, no hole, nothing after. */
static wf_status check_places(const scanner *s, const wf_st_tensor *tensor, size_t count) {
    const uint8_t *next = s->data;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *begin = tensor[i].data;
        if (begin < next)
            return TENSOR_FAIL(s, &tensor[i], "overlaps \"%.100s\"", tensor[i - 1].name);
        if (begin > next)
            return TENSOR_FAIL(s, &tensor[i], "%zu bytes before its data belong to no tensor",
                               (size_t)(begin - next));
        next = begin + tensor[i].bytes;
    }
    size_t behind = s->data_size - (size_t)(next - s->data);
    if (behind > 0)
        return wf_fail(s->ctx, WF_ERR_INPUT, "%s: %zu bytes after the last tensor belong to none",
                       s->label, behind);
    return WF_OK;
}

static wf_status read_index(scanner *s) {
    wf_st_index *index = s->index;
    if (s->text[0] != '{')
        return wf_fail(s->ctx, WF_ERR_INPUT,
                       "%s: the header does not begin with '{'; is this a safetensors file?",
                       s->label);
    size_t good = wf_utf8_check(s->text, s->size);
    if (good < s->size)
        return wf_fail(s->ctx, WF_ERR_INPUT, "%s: the header is not UTF-8 at byte %zu", s->label,
                       8 + good);
    index->strings = malloc(s->size);
    if (index->strings == NULL) return no_memory(s);
    WF_TRY(read_header(s));
    if (index->count > 1) qsort(index->tensor, index->count, sizeof *index->tensor, by_place);
    if (index->count > 0)
        WF_TRY(sort_places(s->ctx, s->label, &index->tensor[0].name, sizeof *index->tensor,
                           index->count, "tensor", &index->names));
    if (index->meta_count > 0)
        WF_TRY(sort_places(s->ctx, s->label, &index->meta[0][0], sizeof *index->meta,
                           index->meta_count, "metadata key", &index->keys));
    return check_places(s, index->tensor, index->count);
}

wf_status wf__st_index_read(wf_ctx *ctx, const char *label, const char *header, size_t size,
                            const uint8_t *data, size_t data_size, wf_st_index *out) {
    *out = (wf_st_index){0};
    scanner s = {.ctx = ctx,
                 .label = label,
                 .text = header,
                 .size = size,
                 .data = data,
                 .data_size = data_size,
                 .index = out};
    wf_status status = read_index(&s);
    if (status != WF_OK) wf__st_index_free(out);
    return status;
}

void wf__st_index_free(wf_st_index *index) {
    free(index->strings);
    free(index->tensor);
    free(index->meta);
    free(index->names);
    free(index->keys);
    *index = (wf_st_index){0};
}
